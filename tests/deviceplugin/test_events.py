"""What is said about the node, how often, and what the cluster's objects then hold."""

from typing import Any

import pytest

from gpunode.contract.offer import Device
from gpunode.contract.status import Reason
from gpunode.deviceplugin.cluster.events import (
    BURST,
    KEPT,
    REFILL,
    SIMILAR,
    WITHIN,
    NodeEvent,
    PendingEvents,
    Snapshot,
    events_between,
)

from .apiserver import due

XID = NodeEvent("GPUUnhealthy", "GPU 0 is Unhealthy: Xid 79")
NOW = 1_700_000_000.0


def written(events: PendingEvents, now: float = NOW) -> list[tuple[str, Any]]:
    """Write all that is due; method and body of each."""
    writes = []
    while (write := events.due(now)) is not None:
        assert events.done(write, 200, now)
        writes.append((write.method, write.body))
    return writes


def test_an_event_is_about_the_node_as_kubectl_describe_looks_for_it():
    """By kind, name and, as kubelets write it, the name as uid; in the namespace of what has none."""
    events = PendingEvents("gpu-01")
    events.add(XID, NOW)
    write = due(events, NOW)
    assert (write.method, write.path) == ("POST", "/api/v1/namespaces/default/events")
    body = write.body
    assert {key: body["involvedObject"][key] for key in ("kind", "name", "uid")} == {
        "kind": "Node",
        "name": "gpu-01",
        "uid": "gpu-01",
    }
    assert (body["type"], body["reason"], body["count"]) == ("Warning", "GPUUnhealthy", 1)
    assert body["firstTimestamp"] == body["lastTimestamp"] == "2023-11-14T22:13:20Z"
    assert body["source"] == {"component": "gpunode-device-plugin", "host": "gpu-01"}


def test_what_is_said_again_is_counted():
    """One object whose count and time grow."""
    events = PendingEvents("gpu-01")
    events.add(XID, NOW)
    ((_, made),) = written(events)
    for second in (1, 2, 3):
        events.add(XID, NOW + second)
    assert due(events, NOW + 3).path.endswith(f"/{made['metadata']['name']}")
    ((method, body),) = written(events, NOW + 3)
    assert (method, body["count"], body["lastTimestamp"]) == ("PATCH", 4, "2023-11-14T22:13:23Z")


def test_many_similar_ones_become_one():
    """As with client-go: after ten messages of one reason in ten minutes the next share an object."""
    events = PendingEvents("gpu-01")
    for number in range(SIMILAR + 5):
        events.add(NodeEvent("GPUUnhealthy", f"GPU {number}"), NOW)
    bodies = [body for _, body in written(events)]
    assert len(bodies) == SIMILAR + 1
    assert bodies[-1]["message"] == f"(combined from similar events): GPU {SIMILAR + 4}"
    assert bodies[-1]["count"] == 5
    events.add(NodeEvent("GPUUnhealthy", "later"), NOW + WITHIN + 1)
    assert [body["message"] for _, body in written(events, NOW + WITHIN + 1)] == ["later"]


def test_a_storm_costs_the_api_server_little_and_loses_nothing():
    """A burst is written at once, then one every five minutes, each with the count it has by then."""
    events, writes = PendingEvents("gpu-01"), 0
    for second in range(1000):
        events.add(XID, NOW + second)
        writes += len(written(events, NOW + second))
    assert writes == BURST + 1000 // REFILL
    ((_, body),) = written(events, NOW + 1000 + REFILL)
    assert body["count"] == 1000


def test_an_event_that_the_cluster_has_forgotten_is_made_again():
    """They live for an hour there; the count begins again."""
    events = PendingEvents("gpu-01")
    events.add(XID, NOW)
    ((_, first),) = written(events)
    events.add(XID, NOW + 7200)
    assert events.done(due(events, NOW + 7200), 404, NOW + 7200)
    ((method, again),) = written(events, NOW + 7200)
    assert (method, again["count"]) == ("POST", 1)
    assert again["metadata"]["name"] != first["metadata"]["name"]
    assert again["firstTimestamp"] == "2023-11-15T00:13:20Z"


def test_an_answer_that_was_lost_makes_no_second_object():
    """The retry finds its own object there."""
    events = PendingEvents("gpu-01")
    events.add(XID, NOW)
    write = due(events, NOW)
    assert not events.done(write, 0, NOW)
    assert events.due(NOW) == write
    assert events.done(write, 409, NOW)
    assert events.due(NOW) is None


def test_what_is_remembered_is_bounded():
    """However long the API server is away; the latest is kept."""
    events = PendingEvents("gpu-01")
    for number in range(3 * KEPT):
        events.add(NodeEvent(f"Reason{number}", "x"), NOW + number)
    assert len(events._events) == KEPT
    assert NodeEvent(f"Reason{3 * KEPT - 1}", "x") in events._events


def test_names_fit_the_cluster_however_long_the_nodes_is():
    """253 characters at most, and none twice."""
    events = PendingEvents("n" * 253)
    for number in range(SIMILAR):
        events.add(NodeEvent("R", f"{number}"), NOW)
    names = [body["metadata"]["name"] for _, body in written(events)]
    assert len(set(names)) == SIMILAR
    assert max(map(len, names)) <= 253


def device(index: str, **more: Any) -> Device:
    return Device(f"GPU-{index}", index, "Tesla P100", f"GPU-{index}", f"0000:0{index}:00.0", 0, **more)


GPU0, GPU1 = device("0"), device("1")
BOTH = {GPU0.uuid: GPU0, GPU1.uuid: GPU1}
WELL = Snapshot(BOTH, {"nvidia.com/gpu": 2})
XID_79 = Reason("xid-79", "Xid 79: GPU has fallen off the bus; reboot the host")
NO_DRIVER = Reason("driver-not-loaded", "NVML: Driver Not Loaded")


@pytest.mark.parametrize(
    ("before", "after", "messages"),
    [
        (Snapshot(), WELL, []),
        (WELL, WELL, []),
        (
            WELL,
            Snapshot(BOTH, WELL.units, {GPU0.uuid: XID_79}),
            [
                "Warning GPUUnhealthy GPU 0 (Tesla P100, 0000:00:00.0, GPU-0) is Unhealthy: Xid 79: GPU has fallen "
                "off the bus; reboot the host. New pods do not get it; running pods keep it"
            ],
        ),
        (
            Snapshot(BOTH, WELL.units, {GPU0.uuid: XID_79}),
            WELL,
            [
                "Normal GPUHealthy GPU 0 (Tesla P100, 0000:00:00.0, GPU-0) is Healthy again, after: Xid 79: GPU has "
                "fallen off the bus; reboot the host. New pods can get it again"
            ],
        ),
        (
            WELL,
            Snapshot(BOTH, WELL.units, {}, NO_DRIVER),
            ["Warning GPUsNotOffered No GPU of this node can be offered: NVML: Driver Not Loaded"],
        ),
        (
            Snapshot(problem=NO_DRIVER),
            WELL,
            ["Normal GPUsOffered GPUs are offered again: 2 nvidia.com/gpu"],
        ),
        (
            WELL,
            Snapshot({GPU1.uuid: GPU1}, {"nvidia.com/gpu": 1}),
            [
                "Warning GPUGone GPU 0 (Tesla P100, 0000:00:00.0, GPU-0) is gone: NVML no longer lists it; "
                "see the kernel log, reboot the host"
            ],
        ),
        (
            Snapshot({"MIG-1": device("1:0", profile="1g.10gb")}, {"nvidia.com/gpu": 1}),
            Snapshot({}, {"nvidia.com/gpu": 0}),
            [
                "Normal GPUGone MIG device 1:0 (1g.10gb of GPU-1:0, GPU-1:0) is gone: NVML no longer "
                "lists it; its GPU was repartitioned"
            ],
        ),
    ],
    ids=["start", "same", "xid", "well again", "no driver", "driver", "gone", "repartitioned"],
)
def test_what_is_news(before: Snapshot, after: Snapshot, messages: list[str]):
    """What happened to which GPU, and what to do; nothing where nothing happened."""
    assert [
        f"{event.type} {event.reason} {event.message}" for event in events_between(before, after)
    ] == messages


def test_what_is_merely_not_offered_any_more_is_no_news():
    """Another MIG strategy, or a GPU that is being cut: it is still there, nor is it well again."""
    unhealthy = Snapshot(BOTH, WELL.units, {GPU0.uuid: XID_79})
    idle = Snapshot(BOTH, {"nvidia.com/gpu": 1}, idle=frozenset({GPU0.uuid}))
    assert events_between(WELL, idle) == events_between(unhealthy, idle) == []
    assert events_between(idle, Snapshot({GPU1.uuid: GPU1}, idle.units)) == []
