"""The plugin's status: one document that writer and reader share, in the log at every level and after every change."""

import itertools
import json
import logging

import pytest

from gpunode.contract.config import BadConfig, Config, MemorySharing, Share
from gpunode.contract.offer import Device, offers
from gpunode.contract.status import (
    ENFORCED,
    MARK,
    Configuration,
    Pod,
    Reason,
    Reserved,
    Resource,
    Status,
    Unavailable,
    UnknownVersion,
    dumps,
    find_last,
    loads,
)
from gpunode.deviceplugin.cluster.publish import Publisher, gone_gpus, status_of
from gpunode.deviceplugin.gpus import GIB
from gpunode.deviceplugin.state import STARTING, NodeState, Reservation

from .nvml import FakeNvml, Gpu

GPU = "nvidia.com/gpu"
ONE, TWO = (Device(f"GPU-{n}", str(n), "Tesla P100", f"GPU-{n}", "0000:3b:00.0", 16 * GIB) for n in (0, 1))
XID = Reason("xid-79", "Xid 79: GPU has fallen off the bus")
WHOLE = Status(
    since="2026-01-01T10:00:00Z",
    configuration=Configuration(
        "mixed", "memory, mps", ("cdi-cri",), "/etc/config/a.yaml", Reason("config-refused", "no")
    ),
    driver="580.178.04",
    resources={GPU: Resource(4, True), "nvidia.com/mig-1g.10gb": Resource(0, False)},
    problem=Reason("layout", "x"),
    not_ready=Reason("taken-over", "y"),
    lost=(Unavailable("GPU-0", "0", "xid-79", "Xid 79"), Unavailable("", "3", "gpu-lost", "z", listed=False)),
    reserved=(Reserved(GPU, "GPU-1", 2, (Pod("ml/a"), Pod(uid="1-2-3")), "w"),),
    memory_limits={"GPU-0": Reason(ENFORCED, ""), "GPU-1": Reason("not-enforced", "cgroup v1")},
)
EMPTY = Status(since="", configuration=Configuration("none", "none", ()))


def state(*devices: Device, config: Config | None = None) -> NodeState:
    """A board with these devices offered as the configuration wants."""
    made, config = NodeState(), config or Config()
    made.devices = devices
    made.offer(offers(devices, config.mig_strategy, config.shares, config.memory))
    made.set_problem(None)
    return made


@pytest.mark.parametrize("status", [WHOLE, EMPTY])
def test_what_is_written_is_read(status: Status):
    assert loads(dumps(status)) == status


@pytest.mark.parametrize("version", [2, 0, None, "1"])
def test_another_version_is_refused_by_name(version: object):
    """None: a plugin from before there were versions."""
    with pytest.raises(UnknownVersion, match=f"status version {version}"):
        loads(json.dumps({**json.loads(dumps(EMPTY)), "version": version}))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"version":1}',
        dumps(WHOLE).replace('"units"', '"unit"'),
        dumps(WHOLE)[:-1],
        pytest.param("[" * 100000, id="deep"),
    ],
)
def test_what_is_no_status_is_an_error_without_a_version(text: str):
    with pytest.raises(ValueError, match=r".") as caught:
        loads(text)
    assert not isinstance(caught.value, UnknownVersion)


def test_the_last_status_of_a_log_counts_whatever_was_logged_since():
    lines = [
        f"2026-01-01T10:00:00Z INFO {MARK} {dumps(EMPTY)}",
        f"2026-01-01T10:00:01Z INFO {MARK} {dumps(WHOLE)}",
        '2026-01-01T10:00:02Z WARNING not ready: {"version":1}',
    ]
    published = find_last("\n".join(lines))
    assert published is not None
    assert loads(published) == WHOLE
    assert find_last(lines[2]) is None


def test_an_unhealthy_gpu_is_listed_and_one_that_is_not_offered_is_not():
    made = state(ONE, TWO)
    made.set_health(ONE.uuid, XID)
    made.set_not_offered({TWO.uuid: Reason("mig-uncut", "MIG is on")})
    made.set_unidentified({"2": Reason("gpu-lost", "GPU is lost")})
    assert status_of(made, Config(), {}, None).lost == (
        Unavailable("GPU-0", "0", "xid-79", XID.words),
        Unavailable("GPU-1", "1", "mig-uncut", "MIG is on", listed=False),
        Unavailable("", "2", "gpu-lost", "GPU is lost", listed=False),
    )


def test_resources_say_whether_the_kubelet_has_them():
    """Units of one that is offered no more stay, so that the kubelet sees zero."""
    made = state(ONE, TWO)
    made.offer({"other": ()})
    assert status_of(made, Config(), {GPU: True}, None).resources == {
        GPU: Resource(0, True),
        "other": Resource(0, False),
    }


def test_reservations_name_their_pods():
    made = state(ONE)
    pods = (Pod("ml/train"), Pod(uid="1-2-3"))
    made.reserve(
        (
            Reservation(GPU, "GPU-0", frozenset({"a", "b"}), "why", pods),
            Reservation(GPU, "GPU-0", frozenset({"c"}), "may be over", (), confirmed=False),
            Reservation(GPU, "GPU-9", frozenset({"d"}), "not here", pods),
        )
    )
    assert status_of(made, Config(), {}, None).reserved == (Reserved(GPU, "GPU-0", 2, pods, "why"),)


def test_memory_limits_are_enforced_or_say_why_not():
    made = state(ONE, TWO, config=Config(memory=MemorySharing()))
    made.set_memory_limits({"GPU-0": None, "GPU-1": "cgroup v1", "GPU-9": "gone"})
    assert status_of(made, Config(), {}, None).memory_limits == {
        "GPU-0": Reason(ENFORCED, ""),
        "GPU-1": Reason("not-enforced", "cgroup v1"),
    }


@pytest.mark.parametrize(
    ("config", "sharing"),
    [
        (Config(), "none"),
        (Config(shares=(Share(GPU, 4, GPU),)), "time-slicing"),
        (Config(shares=(Share(GPU, 4, GPU, mps=True),)), "mps"),
        (Config(memory=MemorySharing()), "memory"),
    ],
)
def test_the_configuration_in_force_is_in_it(config: Config, sharing: str):
    assert status_of(NodeState(), config, {}, None).configuration.sharing == sharing


def test_a_gpu_that_nvml_lists_no_more_is_lost_until_it_is_back():
    """A MIG device is not: its GPU was cut again. While NVML does not answer, nothing is concluded."""
    part = Device("MIG-1", "1:0", "H100", "GPU-1", TWO.bus, GIB, profile="1g.10gb")
    known = {device.uuid: device for device in (ONE, TWO, part)}
    gone = gone_gpus({}, known, state(TWO))
    assert [(lost.device, lost.code, lost.listed) for lost in gone.values()] == [("GPU-0", "gone", False)]
    assert gone_gpus(gone, {}, state(TWO)) == gone
    assert gone_gpus(gone, {}, NodeState()) == gone
    assert gone_gpus(gone, known, state(ONE, TWO)) == {}


def statuses(caplog) -> list[Status]:
    """Those logged so far, in order."""
    lines = [record.getMessage() for record in caplog.records]
    return [loads(text) for line in lines if (text := find_last(f" {line}"))]


async def test_every_change_is_in_the_log_once(kubelet, plugin, caplog):
    gpu = Gpu("GPU-a")

    async with plugin(FakeNvml(gpu, Gpu("GPU-b", minor=1))):
        await kubelet.until(lambda: kubelet.devices() and gpu.sets)
        gpu.raise_xid(79)
        await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Unhealthy")
        await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Healthy")
    published = statuses(caplog)
    assert published[0].problem == published[0].not_ready == STARTING
    assert all(before != after for before, after in itertools.pairwise(published))
    whole = [status for status in published if status.not_ready is None]
    assert [[lost.code for lost in status.lost] for status in whole] == [[], ["xid-79"], []]
    assert all(status.resources == {GPU: Resource(2, True)} for status in whole)


@pytest.mark.parametrize("level", ["error", "critical"])
def test_the_status_is_in_the_log_at_every_level(caplog, level: str):
    logging.getLogger("gpunode.deviceplugin").setLevel(level.upper())
    try:
        Publisher().publish(state(ONE), Config(), {GPU: True}, None)
    finally:
        logging.getLogger("gpunode.deviceplugin").setLevel(logging.NOTSET)
    (status,) = statuses(caplog)
    assert status.resources == {GPU: Resource(1, True)}


def test_a_refused_configuration_is_in_the_status_until_one_can_be_used(caplog):
    publisher = Publisher()
    publisher.publish(state(ONE), Config(), {GPU: True}, None)
    publisher.config_refused(BadConfig("flags.x: unknown key"))
    publisher.publish(state(ONE), Config(), {GPU: True}, None)
    publisher.config_accepted()
    refused = [statuse.configuration.refused for statuse in statuses(caplog)]
    assert refused == [None, Reason("config-refused", "flags.x: unknown key"), None]


def test_an_old_status_is_logged_again(caplog):
    """The log may have been rotated since."""
    publisher, made = Publisher(), state(ONE)
    for again in (False, False, True):
        publisher.publish(made, Config(), {GPU: True}, None, again=again)
    assert len(statuses(caplog)) == 2
