"""What the plugin said last of a node's GPUs, and what of it is still so."""

from __future__ import annotations

import re

import pytest

from gpunode.cluster import nodes, offer, plugin, said
from gpunode.cluster.api import Api
from gpunode.model import PluginImage

from .conftest import DAEMONSET, GPU_NODE, NS, PluginController, add_node
from .fake import FakeApi

UUIDS = {number: f"GPU {number} (Tesla P100, 0000:3b:00.0, GPU-{number})" for number in range(3)}


def saying(fake: FakeApi, *events: tuple[str, str, str]) -> None:
    """The plugin says these (time of a day, reason, message) in events about the node `a`."""
    for number, (clock, reason, message) in enumerate(events):
        normal = reason in ("GPUHealthy", "GPUsOffered", "GPUFree", "GPUOffered", "ConfigTaken")
        fake.put(
            {
                "kind": "Event",
                "metadata": {"name": f"said{number}", "namespace": "default"},
                "involvedObject": {"kind": "Node", "name": "a", "uid": "a"},
                "source": {"component": said.COMPONENT},
                "type": "Normal" if normal else "Warning",
                "reason": reason,
                "message": message,
                "lastTimestamp": f"2026-01-01T{clock}Z",
            }
        )


def began(fake: FakeApi, clock: str) -> None:
    """The plugin's container on the node `a` runs since then."""
    state = {"running": {"startedAt": f"2026-01-01T{clock}Z"}}
    status = {"containerStatuses": [{"name": said.CONTAINER, "state": state}]}
    fake.update("Pod", f"{DAEMONSET}-a", NS, status=status)


def why(api: Api) -> str:
    """Why the node `a` offers not all of its GPUs."""
    return offer.why_not(api, nodes.every(api)[0], 4, NS)


@pytest.fixture
def one_ill(api: Api, fake: FakeApi, told: list[str]) -> None:
    """A node `a` whose plugin runs since 10 o'clock, and that lacks one GPU of four."""
    add_node(fake, "a", 4, labels=GPU_NODE)
    PluginController(fake)
    plugin.deploy(api, NS, PluginImage("plugin:1"), seconds=10, tell=told.append)
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu": "3"}})
    began(fake, "10:00:00")


@pytest.mark.usefixtures("one_ill")
@pytest.mark.parametrize(
    ("events", "words"),
    [
        ([("10:00:00", "GPUUnhealthy", f"{UUIDS[0]} is Unhealthy: Xid 79")], f"{UUIDS[0]} is Unhealthy: Xid 79"),
        (  # another is well again: that says nothing of the first
            [
                ("10:01:00", "GPUUnhealthy", f"{UUIDS[0]} is Unhealthy: Xid 79"),
                ("10:02:00", "GPUUnhealthy", f"{UUIDS[1]} is Unhealthy: Xid 95"),
                ("10:03:00", "GPUHealthy", f"{UUIDS[1]} is Healthy again, after: Xid 95"),
            ],
            f"{UUIDS[0]} is Unhealthy: Xid 79",
        ),
        (
            [
                ("10:01:00", "GPUUnhealthy", f"{UUIDS[0]} is Unhealthy: Xid 79"),
                ("10:01:00", "GPUHealthy", f"{UUIDS[0]} is Healthy again, after: Xid 79"),
            ],
            "",
        ),
        (
            [
                ("10:01:00", "GPUUnhealthy", f"{UUIDS[0]} is Unhealthy: Xid 48"),
                ("10:02:00", "GPUUnhealthy", f"{UUIDS[0]} is Unhealthy: Xid 79"),
            ],
            f"{UUIDS[0]} is Unhealthy: Xid 79",
        ),
        (
            [
                ("10:01:00", "GPUNotOffered", f"{UUIDS[1]} is not offered: MIG is on"),
                ("10:02:00", "GPUUnhealthy", f"(combined from similar events): {UUIDS[0]} is Unhealthy: Xid 79"),
                ("10:03:00", "GPUOffered", f"{UUIDS[1]} is left out no longer"),
                ("10:04:00", "GPUHealthy", f"{UUIDS[0]} is Healthy again, after: Xid 79"),
            ],
            "",
        ),
        ([("10:01:00", "ConfigRefused", "x"), ("10:02:00", "ConfigTaken", "y")], ""),
        ([("10:01:00", "GPUsNotOffered", "x"), ("10:02:00", "GPUsOffered", "y")], ""),
        ([("09:59:59", "GPUsNotOffered", "the layout of an earlier configuration")], ""),
        ([("09:59:59", "ConfigRefused", "x"), ("09:59:59", "GPUHeld", f"{UUIDS[0]} is held back")], ""),
    ],
)  # fmt: skip
def test_an_event_is_believed_until_a_later_one_or_a_new_start_says_otherwise(
    api: Api, fake: FakeApi, events: list[tuple[str, str, str]], words: str
) -> None:
    """Each GPU for itself."""
    saying(fake, *events)
    cause = f"; the plugin says: {words}" if words else ""
    assert why(api) == f"1 of 4 nvidia.com/gpu are unhealthy{cause}"


@pytest.mark.usefixtures("one_ill")
def test_that_a_gpu_was_ill_before_the_plugin_was_started_anew_is_told_with_its_age(
    api: Api, fake: FakeApi
) -> None:
    """It may be why the GPU is missing now; what the plugin says now comes first, in its log too."""
    xid = f"{UUIDS[0]} is Unhealthy: Xid 79"
    saying(fake, ("09:58:00", "GPUUnhealthy", xid))
    cause = why(api)
    assert re.search(r"; the plugin said \d+ h ago, before it was started anew: ", cause)
    assert cause.endswith(xid)
    fake.logs[f"{DAEMONSET}-a", "device-plugin"] = "WARNING not offered: no MPS\n"
    assert why(api).endswith("; the plugin's log: WARNING not offered: no MPS")
    saying(
        fake, ("09:58:00", "GPUUnhealthy", xid), ("10:01:00", "GPUHeld", f"{UUIDS[1]} is held back, for a/b")
    )
    assert why(api).endswith(f"; the plugin says: {UUIDS[1]} is held back, for a/b")


def test_a_gpu_of_which_the_plugin_offers_nothing_is_missing_in_its_status(
    api: Api, fake: FakeApi, told: list[str]
) -> None:
    """The kubelet has never heard of it."""
    add_node(fake, "a", 3, labels=GPU_NODE)
    PluginController(fake)
    plugin.deploy(api, NS, PluginImage("plugin:1"), seconds=10, tell=told.append)
    began(fake, "10:00:00")
    words = f"{UUIDS[1]} is not offered: MIG is on"
    saying(fake, ("10:01:00", "GPUNotOffered", words))
    (row,) = plugin.status(api, NS)
    assert row.wrong == words
    saying(
        fake,
        ("10:01:00", "GPUNotOffered", words),
        ("10:02:00", "GPUOffered", f"{UUIDS[1]} is left out no longer"),
    )
    (row,) = plugin.status(api, NS)
    assert row.wrong == ""


@pytest.mark.usefixtures("one_ill")
@pytest.mark.parametrize(
    ("log", "words"),
    [
        ("WARNING nothing is offered: profiles differ\nINFO starting anew because=changed\n", ""),
        ("WARNING nothing is offered: profiles differ\nINFO no longer so: nothing is offered: profiles differ\n", ""),
        ("ERROR unhealthy: Xid 95 device=GPU-1\nINFO healthy again device=GPU-1\n", ""),
        (
            "ERROR unhealthy: Xid 95 device=GPU-1\nINFO healthy again device=GPU-2\n",
            "ERROR unhealthy: Xid 95 device=GPU-1",
        ),
        (
            "WARNING GPU 1 is not offered: MIG is on\nWARNING GPU 2 is not offered: MIG is on\nWARNING other\n",
            "WARNING GPU 1 is not offered: MIG is on; WARNING GPU 2 is not offered: MIG is on",
        ),
    ],
)  # fmt: skip
def test_a_warning_in_the_log_is_no_cause_once_it_is_mended(
    api: Api, fake: FakeApi, log: str, words: str
) -> None:
    """Nor that of another configuration."""
    fake.logs[f"{DAEMONSET}-a", "device-plugin"] = log
    cause = f"; the plugin's log: {words}" if words else ""
    assert why(api) == f"1 of 4 nvidia.com/gpu are unhealthy{cause}"
