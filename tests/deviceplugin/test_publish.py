"""What the running plugin tells the cluster, and that no trouble with the API server is the plugin's trouble."""

import asyncio
import json
import logging
import threading
from collections.abc import Iterator

import pynvml
import pytest

from gpunode.contract.condition import ACCEPTED, Condition
from gpunode.contract.config import BadConfig, Config
from gpunode.contract.status import ANNOTATION, MARK, Reason, loads
from gpunode.deviceplugin.cluster import writer as writer_module
from gpunode.deviceplugin.cluster.apiserver import ApiError
from gpunode.deviceplugin.cluster.events import NodeEvent, PendingEvents
from gpunode.deviceplugin.cluster.publish import Publisher
from gpunode.deviceplugin.cluster.writer import EXPECTED, REFRESH, PendingAnnotation, PendingCondition, Writer
from gpunode.deviceplugin.health import Health
from gpunode.deviceplugin.settings import read
from gpunode.deviceplugin.state import NodeState

from .apiserver import FakeApiServer, due
from .nvml import FakeNvml, Gpu, Mig

NODE = "/api/v1/nodes/gpu-01"
KUBELETS = {"type": "Ready", "status": "True"}
DOWN = ApiError(0, "the API server at 10.96.0.1:443 cannot be reached: timed out")
NO = ApiError(403, 'events is forbidden: User "x" cannot create resource "events"')


@pytest.fixture
def api() -> FakeApiServer:
    made = FakeApiServer()
    made.objects[NODE] = {"metadata": {}, "status": {"conditions": [KUBELETS]}}
    return made


@pytest.fixture
def publisher(api: FakeApiServer, monkeypatch) -> Iterator[Publisher]:
    """One that says all that can be said, with short waits."""
    monkeypatch.setattr(writer_module, "FIRST", 0.01)
    monkeypatch.setattr(writer_module, "LONGEST", 0.05)
    own = PendingCondition("gpu-01")
    made = Publisher(
        Writer(api, PendingEvents("gpu-01"), "events"),
        Writer(api, PendingAnnotation("gpu-01"), "annotation"),
        Writer(api, own, "condition", own.read),
    )
    yield made
    made.close()


def note(api: FakeApiServer) -> str | None:
    notes: dict[str, str | None] = api.objects[NODE]["metadata"].get("annotations", {})
    return notes.get(ANNOTATION)


def gpu_ready(api: FakeApiServer) -> tuple[str, str, str] | None:
    """Status, reason and message of the node's condition; the kubelet's stays beside it."""
    conditions = {condition["type"]: condition for condition in api.objects[NODE]["status"]["conditions"]}
    assert conditions.pop("Ready") == KUBELETS
    own = conditions.get("GpuReady")
    return (own["status"], own["reason"], own["message"]) if own else None


async def test_the_condition_follows_a_fault_and_is_removed_at_the_end(kubelet, plugin, api, publisher):
    """False with the code of the status and the GPU's UUID; by itself True again; without a change nothing is written."""
    gpu = Gpu("GPU-a")

    async with plugin(FakeNvml(gpu, Gpu("GPU-b", minor=1)), publisher=publisher):
        await kubelet.until(lambda: kubelet.devices() and gpu.sets)
        await api.until(lambda: gpu_ready(api) == ("True", "ready", "all GPUs are healthy"))
        gpu.raise_xid(79)
        await api.until(lambda: (gpu_ready(api) or ("",))[0] == "False")
        status, reason, message = gpu_ready(api) or ("", "", "")
        assert (status, reason) == ("False", "xid-79")
        assert "GPU-a) is Unhealthy: Xid 79" in message
        await api.until(lambda: gpu_ready(api) == ("True", "ready", "all GPUs are healthy"))
    publisher.close()
    assert gpu_ready(api) is None


def look(pending: PendingCondition, ready: Condition, now: float, notes: dict[str, str]) -> None:
    """The first write, which changes nothing; its answer has the node's annotations."""
    pending.add(ready, now)
    write = due(pending, now)
    assert write.body == {"status": {"conditions": []}}
    assert not pending.done(write, 503, now)
    assert pending.due(now) == write
    assert pending.done(write, 200, now)
    pending.read({"metadata": {"annotations": notes}})


def test_a_condition_keeps_the_time_of_its_last_change():
    pending = PendingCondition("a")
    ready = Condition("True", "ready", "all GPUs are healthy")
    look(pending, ready, 0.0, {})
    for now, condition, since in (
        (0.0, ready, 0),
        (60.0, Condition("False", "xid-79", "GPU 0"), 60),
        (90.0, Condition("False", "xid-48", "GPU 1"), 60),
        (99.0, ready, 99),
    ):
        pending.add(condition, now)
        write = due(pending, now)
        (fields,) = write.body["status"]["conditions"]
        assert fields["lastTransitionTime"] == f"1970-01-01T00:{since // 60:02}:{since % 60:02}Z"
        assert pending.done(write, 200, now)
        assert pending.due(now) is None
    assert due(pending, 99.0 - REFRESH)  # the clock was set back
    write = due(pending, 99.0 + REFRESH)  # the node may be a new one
    assert write.body["status"]["conditions"][0]["lastTransitionTime"] == "1970-01-01T00:01:39Z"


def test_an_acceptance_that_runs_out_ends_the_condition_at_its_time_and_a_new_one_is_seen_soon():
    pending = PendingCondition("a")

    def accepted(until: str | None) -> str:
        note = {
            "kind": "gpunode-acceptance", "version": 1, "level": "quick", "verdict": "accepted",
            "at": "1970-01-01T00:00:00Z", "until": until, "required": True,
        }  # fmt: skip
        return json.dumps(note)

    def shown(now: float, until: str | None) -> tuple[str, str] | None:
        """What is written now, if anything is; the answer has the acceptance."""
        write = pending.due(now)
        if write is None:
            return None
        pending.done(write, 200, now)
        pending.read({"metadata": {"annotations": {ACCEPTED: accepted(until)}}})
        (fields,) = write.body["status"]["conditions"]
        return fields["status"], fields["lastTransitionTime"]

    ready = Condition("True", "ready", "all GPUs are healthy")
    look(pending, ready, 0.0, {})
    first, second = "1970-01-01T00:10:00Z", "1970-01-01T01:00:00Z"
    assert shown(0.0, first) == ("True", "1970-01-01T00:00:00Z")
    assert shown(0.0, first) == ("True", "1970-01-01T00:00:00Z")  # with the acceptance
    assert shown(1.0, first) is None
    assert shown(600.0, first) == ("False", "1970-01-01T00:10:00Z")
    assert shown(600.0 + EXPECTED - 1, second) is None
    assert shown(600.0 + EXPECTED, second) == ("False", "1970-01-01T00:10:00Z")
    assert shown(600.0 + EXPECTED, second) == ("True", "1970-01-01T00:10:30Z")

    pending = PendingCondition("a")  # of a plugin that starts after it ran out: the condition is never True
    look(pending, ready, 7200.0, {ACCEPTED: accepted(second)})
    assert shown(7200.0, second) == ("False", "1970-01-01T02:00:00Z")


async def test_the_condition_has_the_acceptance_of_the_nodes_annotation(kubelet, plugin, api, publisher):
    note = {
        "kind": "gpunode-acceptance", "version": 1, "level": "standard", "verdict": "accepted",
        "at": "2026-11-26T00:00:00Z", "until": "9999-12-26T00:00:00Z",
    }  # fmt: skip
    api.objects[NODE]["metadata"]["annotations"] = {ACCEPTED: json.dumps(note)}
    text = "all GPUs are healthy; accepted 2026-11-26 (standard), valid until 9999-12-26"

    async with plugin(FakeNvml(Gpu("GPU-a")), publisher=publisher):
        await api.until(lambda: gpu_ready(api) == ("True", "ready", text))


def lost_by(api: FakeApiServer) -> list[tuple[str, str, bool]] | None:
    """Device, code, and whether it is listed, of each that the annotation calls lost; None without one."""
    text = note(api)
    return [(lost.device, lost.code, lost.listed) for lost in loads(text).lost] if text else None


async def test_an_xid_and_the_recovery_are_events_and_in_the_annotation(kubelet, plugin, api, publisher):
    """The words say which GPU, what happened and what to do."""
    gpu = Gpu("GPU-a")

    async with plugin(FakeNvml(gpu, Gpu("GPU-b", minor=1)), publisher=publisher):
        await kubelet.until(lambda: kubelet.devices() and gpu.sets)
        gpu.raise_xid(79)
        await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Unhealthy")
        await api.until(lambda: api.said() == [("GPUUnhealthy", 1)])
        assert (
            "GPU-a) is Unhealthy: Xid 79: GPU has fallen off the bus; reboot the host"
            in (api.events[0]["message"])
        )
        await api.until(lambda: lost_by(api) == [("GPU-a", "xid-79", True)])
        await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Healthy")
        await api.until(lambda: api.said() == [("GPUUnhealthy", 1), ("GPUHealthy", 1)])
        await api.until(lambda: lost_by(api) == [])


async def test_a_gpu_that_is_cut_into_mig_devices_is_not_called_gone(kubelet, plugin, api, publisher):
    """With the strategy mixed it is offered no more, but it is there; a MIG device that is no more is told."""
    gpu = Gpu("GPU-a", name="NVIDIA H100 80GB HBM3")

    async with plugin(FakeNvml(gpu, Gpu("GPU-b", minor=1)), publisher=publisher, mig_strategy="mixed"):
        await kubelet.until(lambda: len(kubelet.devices()) == 2)
        gpu.mig = [Mig("MIG-1")]
        await kubelet.until(lambda: kubelet.devices("nvidia.com/mig-1g.10gb"))
        gpu.mig = []
        await api.until(lambda: ("GPUGone", 1) in api.said())
        messages = [event["message"] for event in api.events if event["reason"] == "GPUGone"]
        assert "MIG device 0:0 (1g.10gb of GPU-a, MIG-1) is gone" in messages[0]


async def test_a_gpu_of_which_nothing_is_offered_is_an_event_and_in_the_annotation(
    kubelet, plugin, api, publisher
):
    """MIG is on, and nothing was cut: the usual state after a reboot. What to do is said, and that it was done."""
    gpu = Gpu("GPU-a", mig=[])

    async with plugin(FakeNvml(gpu), publisher=publisher, mig_strategy="mixed"):
        await api.until(lambda: api.said() == [("GPUNotOffered", 1)])
        message = api.events[0]["message"]
        assert "GPU-a) is not offered: MIG is on, but the plugin sees no MIG device there" in message
        assert "nvidia-smi mig -i 0 -cgi" in message
        await api.until(lambda: lost_by(api) == [("GPU-a", "mig-uncut", False)])
        gpu.mig = [Mig("MIG-1")]
        await api.until(lambda: api.said() == [("GPUNotOffered", 1), ("GPUOffered", 1)])
        await api.until(lambda: lost_by(api) == [])


async def test_a_gpu_that_is_lost_before_the_start_is_an_event_and_in_the_annotation(
    kubelet, plugin, api, publisher
):
    """It has no UUID to tell; that it is back is said too."""
    lost = Gpu("GPU-a", error=pynvml.NVML_ERROR_GPU_IS_LOST)

    async with plugin(FakeNvml(lost, Gpu("GPU-b", minor=1)), publisher=publisher):
        await api.until(lambda: api.said() == [("GPUNotOffered", 1)])
        assert api.events[0]["message"].startswith("GPU 0 is not offered: NVML: GPU is lost")
        await api.until(lambda: lost_by(api) == [("", "gpu-lost", False)])
        lost.error = None
        await api.until(lambda: api.said() == [("GPUNotOffered", 1), ("GPUOffered", 1)])
        await api.until(lambda: lost_by(api) == [])


async def test_gpus_that_cannot_be_counted_are_reported_and_nvml_is_started_again(
    kubelet, plugin, api, publisher
):
    """NVML started, but tells nothing: the reason is no secret of the log, and starting it again may help."""
    nvml = FakeNvml(Gpu("GPU-a"))
    number, started = nvml.nvmlDeviceGetCount, nvml.nvmlInit
    starts: list[int] = []

    def init() -> None:
        starts.append(1)
        started()

    def none() -> int:
        if nvml.inits and len(starts) == 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_UNKNOWN)
        return number()

    nvml.nvmlInit, nvml.nvmlDeviceGetCount = init, none
    async with plugin(nvml, publisher=publisher):
        await api.until(lambda: ("GPUsNotOffered", 1) in api.said())
        assert "cannot count the GPUs: NVML: Unknown Error" in api.events[0]["message"]
        await kubelet.until(kubelet.devices)
        await api.until(lambda: ("GPUsOffered", 1) in api.said())
    assert len(starts) == 2


async def test_a_driver_that_is_missing_is_reported_and_that_it_came(kubelet, plugin, api, publisher):
    """A node that waits for its driver says so where people look: at the node."""
    nvml = FakeNvml(Gpu("GPU-a"), init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    async with plugin(nvml, publisher=publisher, fail_on_init_error=False):
        await api.until(lambda: api.said() == [("GPUsNotOffered", 1)])
        assert "Driver Not Loaded" in api.events[0]["message"]
        nvml.init_error = None
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
        await api.until(lambda: api.said()[1:] == [("GPUsOffered", 1)])


async def test_an_api_server_that_hangs_or_refuses_does_not_disturb(kubelet, plugin, api, publisher, caplog):
    """Health goes its way; one line in the log; what happened meanwhile is told when it can be."""
    api.hang, api.refuse = threading.Event(), NO
    gpu = Gpu("GPU-a")

    with caplog.at_level(logging.INFO, logger="gpunode.deviceplugin"):
        async with plugin(FakeNvml(gpu), publisher=publisher):
            await kubelet.until(lambda: kubelet.devices() and gpu.sets)
            for _ in range(2):
                gpu.raise_xid(79)
                await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Unhealthy")
                await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Healthy")
                api.hang.set()  # from now on it refuses
                await api.until(lambda: len(api.requests) > 10)
            api.refuse = None
            await api.until(lambda: sorted(api.said()) == [("GPUHealthy", 2), ("GPUUnhealthy", 2)])
    messages = [record.getMessage() for record in caplog.records if record.name.endswith("writer")]
    assert [line for line in messages if line.startswith("events")] == [
        f"events cannot be written: {NO}; trying again, at last every 0 s"
    ]
    assert "the API server accepts events again" in messages


def test_what_the_api_server_finds_invalid_holds_nothing_up(api, publisher, caplog):
    """It is named and left out; the next one is written."""
    api.refuse = ApiError(422, "metadata.name: Invalid value")
    with caplog.at_level(logging.WARNING, logger="gpunode.deviceplugin.cluster.writer"):
        publisher.publish_event(NodeEvent("Bad", "x"))
        api.wait(lambda: len(api.requests) == 1)
        api.refuse = None
        publisher.publish_event(NodeEvent("Good", "x"))
        api.wait(lambda: api.said() == [("Good", 1)])
    assert "it is not written: metadata.name: Invalid value" in caplog.text


def test_the_annotation_goes_with_the_plugin(api, publisher):
    """What is no longer kept up to date is not left there."""
    publisher._annotation.put((ANNOTATION, "{}"))
    api.wait(lambda: note(api) == "{}")
    publisher.close()
    assert api.objects[NODE]["metadata"]["annotations"] == {}


def test_a_plugin_that_publishes_no_status_removes_none(api):
    """Its annotation has the sizes alone."""
    Publisher(None, Writer(api, PendingAnnotation("gpu-01"), "annotation"), status=False).close()
    assert api.requests == []


def test_annotations_are_written_again_on_a_node_that_may_be_a_new_one():
    """All of them, whichever changed last; also after the clock was set back."""
    pending = PendingAnnotation("a")
    assert pending.due(0.0) is None
    for key, now in (("status", 0.0), ("memory", 60.0)):
        pending.add((key, "text"), now)
        assert pending.done(due(pending, now), 200, now)
        assert pending.due(now + REFRESH - 1) is None
    for now in (60.0 + REFRESH, 60.0 - REFRESH):
        assert due(pending, now).body == {"metadata": {"annotations": {"status": "text", "memory": "text"}}}


def test_last_words_are_reported_and_not_waited_for_long(api, publisher):
    """What is said just before the end is written if that goes at once; an API server that is away is left."""
    publisher.publish_event(NodeEvent("GPUsNotOffered", "the end"))
    publisher.close()
    assert api.said() == [("GPUsNotOffered", 1)]
    api.refuse = DOWN
    later = Writer(api, PendingEvents("gpu-01"), "events")
    later.start()
    later.put(NodeEvent("R", "x"))
    later.close(30)
    assert not later.is_alive()


def test_nothing_is_said_that_the_configuration_does_not_ask_for():
    """No thread that could."""
    silent = Publisher.of(Config(node_name="gpu-01"), {})
    silent.publish_event(NodeEvent("R", "x"))
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("writer of ")]
    silent.close()


def test_a_refused_configuration_is_told_until_one_is_accepted(publisher, caplog):
    """A start again with the earlier configuration, by SIGHUP, does not make the file valid."""

    def refusal() -> Reason | None:
        publisher.publish(NodeState(), Config(), {}, None, again=True)
        return loads(caplog.messages[-1].removeprefix(MARK)).configuration.refused

    publisher.config_refused(BadConfig("config.yaml: Permission denied"))
    publisher.begin()
    assert refusal() == Reason("config-refused", "config.yaml: Permission denied")
    publisher.config_accepted()
    assert refusal() is None


def test_whose_node_it_is_must_be_known():
    """Better than events about a node without a name."""
    with pytest.raises(BadConfig, match=r"--node-name \(NODE_NAME\) is not set"):
        read(["--node-events"], {})
    assert read(["--node-events"], {"NODE_NAME": "gpu-01"}).node_name == "gpu-01"


async def test_an_unhealthy_gpu_stays_unhealthy_when_the_plugin_starts_again(kubelet, plugin, api, publisher):
    """A changed configuration is no cure: Unhealthy from the first list on, until the quiet time is over, told once."""
    health: dict[str, Health] = {}

    gpu = Gpu("GPU-a")
    nvml = FakeNvml(gpu)
    async with plugin(nvml, publisher=publisher, health=health, recovery_seconds=3600.0):
        await kubelet.until(lambda: kubelet.devices() and gpu.sets)
        gpu.raise_xid(79)
        await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Unhealthy")
    first = len(kubelet.requests)
    async with plugin(nvml, publisher=publisher, health=health, recovery_seconds=3600.0):
        await kubelet.until(lambda: len(kubelet.requests) > first and kubelet.devices())
        assert kubelet.plugins["nvidia.com/gpu"].lists == [{"GPU-a": "Unhealthy"}]
        await kubelet.until(lambda: gpu.sets)
    assert kubelet.plugins["nvidia.com/gpu"].lists == [{"GPU-a": "Unhealthy"}]
    await api.until(lambda: api.said() == [("GPUUnhealthy", 1)])


async def test_an_xid_soon_after_a_start_again_counts(kubelet, plugin):
    """The watches of before may not have ended yet; what they hear is not theirs any more."""
    health: dict[str, Health] = {}
    gpus = [Gpu(f"GPU-{number}", minor=number) for number in range(8)]

    settings = {"health": health, "health_interval": 5.0, "recovery_seconds": 3600.0}
    async with plugin(FakeNvml(*gpus), **settings):
        await kubelet.until(lambda: kubelet.devices() and all(gpu.sets for gpu in gpus))
    first = len(kubelet.requests)
    async with plugin(FakeNvml(*gpus), **settings):
        await kubelet.until(lambda: len(kubelet.requests) > first and kubelet.devices())
        while not all(len(gpu.sets) == 2 for gpu in gpus):
            await asyncio.sleep(0.01)
        for gpu in gpus:
            gpu.raise_xid(79)
        await kubelet.until(lambda: set(kubelet.devices().values()) == {"Unhealthy"})
