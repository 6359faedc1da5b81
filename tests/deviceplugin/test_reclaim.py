"""The running plugin gives nothing that a container still has: a fake kubelet on both of its sockets."""

import asyncio
import contextlib
import json
import logging
import os
import socket as sockets_of_this_machine
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import grpc
import pytest

from gpunode.contract.checkpoint import FILE_NAME
from gpunode.contract.config import GPU, GPU_MEM, MemorySharing, Share
from gpunode.contract.status import ANNOTATION
from gpunode.deviceplugin import discovery
from gpunode.deviceplugin.cluster.events import PendingEvents
from gpunode.deviceplugin.cluster.publish import Publisher
from gpunode.deviceplugin.cluster.writer import PendingAnnotation, Writer
from gpunode.deviceplugin.directory import identity
from gpunode.deviceplugin.gpus import GIB
from gpunode.deviceplugin.kubelet import reclaim
from gpunode.deviceplugin.kubelet.podresources import PodResources
from gpunode.deviceplugin.kubelet.reclaim import Reclaim
from gpunode.deviceplugin.state import ContainerDevices, NodeState

from .apiserver import FakeApiServer
from .kubelet import Entry, FakeKubelet
from .nvml import FakeNvml, Gpu, Mig
from .test_metrics import free_port, get, until_ready
from .test_podresources import Lister, pod
from .test_process import process

BY_MEMORY = {"memory": MemorySharing(chunk=1024)}
NAMESAKE = pod(sockets_of_this_machine.gethostname())  # the pod that the plugin itself runs in
TRAIN = pod("train", gpu=["GPU-a"])
WHY = "container main of pod ml/train still uses it as nvidia.com/gpu, which it got before the configuration changed"
A = {f"GPU-a:1024:{n}" for n in range(2)}


def gpus() -> FakeNvml:
    return FakeNvml(Gpu("GPU-a", memory=2 * GIB), Gpu("GPU-b", minor=1, memory=2 * GIB))


@pytest.fixture
def lists(sockets) -> Path:
    """The pod-resources socket."""
    path = sockets / "pods" / "kubelet.sock"
    path.parent.mkdir()
    return path


@pytest.fixture
def after(plugin, lists) -> Callable[..., contextlib.AbstractAsyncContextManager[Lister]]:
    """The plugin with these settings, on a node whose kubelet has these pods from before."""

    @contextlib.asynccontextmanager
    async def running(*pods, nvml: FakeNvml | None = None, **settings) -> AsyncIterator[Lister]:
        lister = Lister(*pods)
        async with (
            lister.serving(lists),
            plugin(nvml or gpus(), pod_resources_socket=str(lists), **settings),
        ):
            yield lister

    return running


def sick(kubelet: FakeKubelet, resource: str = GPU_MEM) -> set[str]:
    return {unit for unit, health in kubelet.devices(resource).items() if health == "Unhealthy"}


async def test_a_gpu_that_a_pod_has_whole_is_given_by_memory_when_the_pod_is_gone(kubelet, after):
    """Unhealthy from the first list on, and refused with the reason; then Healthy, with no restart and no more questions."""
    async with after(NAMESAKE, TRAIN, **BY_MEMORY) as lister:
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        assert sick(kubelet) == A
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await kubelet.allocate("GPU-a:1024:0", resource=GPU_MEM)
        assert refused.value.details() == f"{GPU_MEM}: device GPU-a:1024:0 is not free yet: {WHY}"
        await kubelet.allocate("GPU-b:1024:0", resource=GPU_MEM)
        lister.pods.remove(TRAIN)
        await kubelet.until(lambda: not sick(kubelet))
        assert len(kubelet.plugins[GPU_MEM].lists) == 2
        await kubelet.allocate("GPU-a:1024:0", resource=GPU_MEM)


@pytest.mark.parametrize(
    ("envs", "reserved"), [({"ALIYUN_COM_GPU_MEM_IDX": "1"}, {"GPU-b"}), ({}, {"GPU-a", "GPU-b"})]
)
async def test_a_pod_of_gpushare_keeps_the_gpu_that_its_plugin_gave_it(kubelet, after, envs, reserved):
    """Its plugin gives equal pods each other's GPUs, so their annotations do not say which; the kubelet keeps its answer."""
    ids = ["GPU-a-_-0", "GPU-a-_-1"]

    kubelet.given = [Entry("uid", "main", GPU_MEM, ids, envs)]
    kubelet.write_down()
    theirs = pod("theirs", gpu=ids)
    theirs.containers[0].devices[0].resource_name = GPU_MEM
    async with after(theirs, **BY_MEMORY) as lister:
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        assert {unit_id.partition(":")[0] for unit_id in sick(kubelet)} == reserved
        kubelet.given = []
        lister.pods.remove(theirs)
        await kubelet.until(lambda: not sick(kubelet))


async def test_an_xid_counts_while_the_kubelet_is_waited_for(kubelet, plugin, lists, monkeypatch, caplog):
    """Before anything is offered: it would not come again. The first list has it."""
    ask = PodResources.ask

    answered = asyncio.Event()

    async def slowly(self: PodResources, age: float = 0.0) -> tuple[ContainerDevices, ...] | None:
        await answered.wait()
        return await ask(self, age)

    monkeypatch.setattr(PodResources, "ask", slowly)
    nvml = gpus()
    async with (
        Lister(NAMESAKE).serving(lists),
        plugin(nvml, pod_resources_socket=str(lists), recovery_seconds=60.0),
    ):
        while not nvml.gpus[0].sets:
            await asyncio.sleep(0.01)
        nvml.gpus[0].raise_xid(79)
        while "unhealthy: Xid 79" not in caplog.text:
            await asyncio.sleep(0.01)
        answered.set()
        await kubelet.until(kubelet.devices)
        assert kubelet.plugins[GPU].lists[0] == {"GPU-a": "Unhealthy", "GPU-b": "Healthy"}


async def test_held_units_are_preferred_last(kubelet, after):
    """A kubelet that asks which units to take just before it hears of them takes others."""
    async with after(NAMESAKE, TRAIN, **BY_MEMORY):
        every = list(await kubelet.until(lambda: kubelet.devices(GPU_MEM)))
        assert set(await kubelet.prefer(every, [], 2, GPU_MEM)).isdisjoint(A)


async def test_where_nothing_is_held_the_kubelet_is_asked_twice_and_no_more(kubelet, after):
    """Before the devices are offered and soon after, and again when there are others."""
    nvml = gpus()
    async with after(NAMESAKE, TRAIN, nvml=nvml) as lister:
        await kubelet.until(kubelet.devices)
        await lister.until(2)
        await asyncio.sleep(10 * reclaim.POLL)  # nothing is to happen: that cannot be waited for
        assert lister.asked == 2
        nvml.gpus.append(Gpu("GPU-c", minor=2))
        await lister.until(4)


async def test_a_kubelet_that_starts_again_and_knows_no_pods_yet_has_forgotten_nothing(kubelet, after):
    """Its first lists are empty, or lack some, until the API server has told it; its record has all, and stays."""
    kubelet.given = [Entry("1-2-3", "main", GPU, ["GPU-a"])]
    kubelet.write_down()
    async with after(NAMESAKE, TRAIN, **BY_MEMORY) as lister:
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        for early in ([], [pod("kube-proxy")], [NAMESAKE]):
            lister.pods = early
            await lister.until(lister.asked + 5)
        assert [set(devices.values()) for devices in kubelet.plugins[GPU_MEM].lists] == [
            {"Healthy", "Unhealthy"} for _ in kubelet.plugins[GPU_MEM].lists
        ]
        with pytest.raises(grpc.aio.AioRpcError, match=WHY):  # by its name, which it is not told now
            await kubelet.allocate("GPU-a:1024:0", resource=GPU_MEM)


def alive(kubelet: FakeKubelet, lister: Lister, *uids: str) -> None:
    """These pods run, and the kubelet has learned of it: the next time that it is asked it forgets what others had."""

    def forget() -> None:
        kubelet.given = [entry for entry in kubelet.given if entry.pod in uids]

    lister.asking = forget


async def test_what_an_init_container_has_is_held_back_until_its_pod_is_gone(kubelet, after, caplog):
    """The kubelet does not tell of it, but has written it down; it writes anew when it gets a list, and not before."""
    with caplog.at_level(logging.INFO, logger=reclaim.__name__):
        kubelet.given = [Entry("1-2-3", "load", GPU, ["GPU-a"])]
        kubelet.write_down()
        async with after(NAMESAKE, pod("train"), **BY_MEMORY) as lister:
            await kubelet.until(lambda: kubelet.devices(GPU_MEM))
            assert sick(kubelet) == A
            with pytest.raises(
                grpc.aio.AioRpcError, match="container load of pod with UID 1-2-3 still uses it"
            ):
                await kubelet.allocate("GPU-a:1024:0", resource=GPU_MEM)
            await lister.until(5)
            assert sick(kubelet) == A
            alive(kubelet, lister)
            await kubelet.until(lambda: not sick(kubelet))
            await kubelet.allocate("GPU-a:1024:0", resource=GPU_MEM)
    lines = [record.getMessage() for record in caplog.records if record.name == reclaim.__name__]
    assert [line.partition(":")[0] for line in lines] == ["reserved", "no longer reserved"]


async def test_a_pod_that_ended_after_the_kubelet_wrote_is_not_spoken_of(kubelet, after, caplog):
    """What it had comes back at once, when the kubelet has written anew."""
    with caplog.at_level(logging.INFO, logger=reclaim.__name__):
        kubelet.given = [Entry("1-2-3", "main", GPU, ["GPU-a"])]
        kubelet.write_down()
        kubelet.given = []
        async with after(NAMESAKE, **BY_MEMORY):
            await kubelet.until(lambda: kubelet.devices(GPU_MEM) and not sick(kubelet))
            assert "Unhealthy" in kubelet.plugins[GPU_MEM].lists[0].values()
    assert [record.getMessage() for record in caplog.records if record.name == reclaim.__name__] == []


async def test_a_record_that_cannot_be_read_is_reported_once_and_the_kubelet_believed(kubelet, after, caplog):
    """It is the kubelet's own, and could change."""
    with caplog.at_level(logging.WARNING, logger=reclaim.__name__):
        kubelet.write_down = lambda: None
        (kubelet.directory / FILE_NAME).write_text('{"Data": {"Devices": []}}')
        async with after(NAMESAKE, TRAIN, **BY_MEMORY) as lister:
            await kubelet.until(lambda: kubelet.devices(GPU_MEM))
            (kubelet.directory / FILE_NAME).write_text("{")
            await lister.until(5)
            assert sick(kubelet) == A
    lines = [
        record.getMessage()
        for record in caplog.records
        if "devices of init containers" in record.getMessage()
    ]
    assert len(lines) == len(set(lines)) == 2


async def test_what_is_held_stays_so_while_the_kubelet_does_not_tell(kubelet, plugin, lists):
    """A kubelet that is down for a while, or too busy."""
    lister = Lister(NAMESAKE, TRAIN)

    async with contextlib.AsyncExitStack() as first:
        await first.enter_async_context(lister.serving(lists))
        async with plugin(gpus(), pod_resources_socket=str(lists), **BY_MEMORY):
            await kubelet.until(lambda: kubelet.devices(GPU_MEM))
            await first.aclose()
            await kubelet.restart()
            await kubelet.until(lambda: kubelet.devices(GPU_MEM))
            assert sick(kubelet) == A
            lister.pods.remove(TRAIN)
            async with lister.serving(lists):
                await kubelet.until(lambda: not sick(kubelet))


async def test_a_kubelet_that_only_starts_is_not_waited_for(kubelet, plugin, lists):
    """Its record says what is held from the first list on."""
    lister = Lister(NAMESAKE, TRAIN)

    kubelet.given = [Entry("1-2-3", "main", GPU, ["GPU-a"])]
    kubelet.write_down()
    lists.touch()  # what a kubelet leaves that was stopped
    async with plugin(gpus(), pod_resources_socket=str(lists), **BY_MEMORY):
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        assert sick(kubelet) == A
        lists.unlink()
        async with lister.serving(lists):
            await lister.until(3)
            assert sick(kubelet) == A
            lister.pods.remove(TRAIN)
            alive(kubelet, lister)
            await kubelet.until(lambda: not sick(kubelet))


async def test_a_kubelet_that_tells_only_after_long_is_asked_soon_again(kubelet, plugin, lists, monkeypatch):
    """Not when the GPUs are looked for next, which is a minute later: until then they could be given twice."""
    monkeypatch.setattr(discovery, "RESCAN", 60.0)

    lists.touch()
    async with plugin(gpus(), pod_resources_socket=str(lists), **BY_MEMORY):
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        assert not sick(kubelet)
        lists.unlink()
        async with Lister(NAMESAKE, TRAIN).serving(lists):
            await kubelet.until(lambda: sick(kubelet) == A)


@pytest.mark.parametrize("how", ["no socket", "no v1", "a clock set back"])
async def test_a_kubelet_that_never_tells_is_not_waited_for(
    kubelet, plugin, lists, sockets, monkeypatch, caplog, how
):
    """Kubernetes before 1.20: all is offered at once, whatever it wrote, and the log says what to do instead."""
    monkeypatch.setattr(reclaim, "PATIENCE", 0.0)

    with caplog.at_level(logging.WARNING, logger=reclaim.__name__):
        kubelet.given = [Entry("1-2-3", "main", GPU, ["GPU-a"])]
        kubelet.write_down()
        old = Lister(TRAIN).serving(lists, "Other") if how == "no v1" else contextlib.nullcontext()
        if how == "a clock set back":
            os.utime(sockets / "kubelet.sock", (2**32, 2**32))
        async with old, plugin(gpus(), pod_resources_socket=str(lists), **BY_MEMORY):
            await kubelet.until(lambda: kubelet.devices(GPU_MEM))
            assert not sick(kubelet)
    (line,) = [record.getMessage() for record in caplog.records if record.name == reclaim.__name__]
    assert "drain this node before you change how its GPUs are shared" in line


async def test_a_kubelet_that_starts_again_has_its_time_again(kubelet, sockets, lists, monkeypatch):
    """Also where the clock was set back: by it alone, the kubelet would have no age."""
    checked = Reclaim(PodResources(str(lists)), NodeState(), lists, sockets / "kubelet.sock")
    never = []
    for moment in (0.0, reclaim.PATIENCE, reclaim.PATIENCE, 2 * reclaim.PATIENCE):
        if len(never) == 2:
            await kubelet.restart()
        monkeypatch.setattr(
            reclaim, "time", SimpleNamespace(time=lambda: 0.0, monotonic=lambda now=moment: now)
        )
        never.append(checked._never())
    assert never == [False, True, False, True]


async def test_a_checkpoint_from_before_the_question_is_read_again_soon(kubelet, sockets, lists):
    """It may have pods that have ended; what it still has after that is polled."""
    kubelet.given = [Entry("1-2-3", "main", GPU, ["GPU-a"])]
    kubelet.write_down()
    pods = PodResources(str(lists))
    checked = Reclaim(pods, NodeState(), lists, sockets / "kubelet.sock")
    checked._old = identity(sockets / FILE_NAME)
    pauses = []
    for _ in range(2):
        await checked._holders(())
        pauses.append(checked._pause)
    checked._old = None
    await checked._holders(())
    assert [*pauses, checked._pause] == [reclaim.SOON, reclaim.SOON, reclaim.POLL]


async def test_a_mig_device_is_not_given_while_its_gpu_is_held_as_a_whole(kubelet, after):
    """Made while the plugin runs; the other GPU's is given."""
    part = "nvidia.com/mig-1g.10gb"

    nvml = FakeNvml(Gpu("GPU-a", name="H100"), Gpu("GPU-b", name="H100", minor=1))
    async with after(NAMESAKE, TRAIN, nvml=nvml, mig_strategy="mixed") as lister:
        await kubelet.until(lambda: len(kubelet.devices()) == 2)
        nvml.gpus[0].mig, nvml.gpus[1].mig = [Mig("MIG-1")], [Mig("MIG-2")]
        await kubelet.until(lambda: len(kubelet.devices(part)) == 2)
        assert sick(kubelet, part) == {"MIG-1"}
        assert all(each.get("MIG-1") != "Healthy" for each in kubelet.plugins[part].lists)
        lister.pods.remove(TRAIN)
        await kubelet.until(lambda: not sick(kubelet, part))


async def test_a_pod_that_went_long_ago_holds_nothing_back(kubelet, after):
    """Not what the kubelet told when it was asked last counts, but what it tells when there is a new device."""
    part = "nvidia.com/mig-1g.10gb"

    nvml = FakeNvml(Gpu("GPU-a", name="H100"))
    async with after(NAMESAKE, TRAIN, nvml=nvml, mig_strategy="mixed") as lister:
        await kubelet.until(kubelet.devices)
        await lister.until(2)
        lister.pods.remove(TRAIN)
        nvml.gpus[0].mig = [Mig("MIG-1")]
        await kubelet.until(lambda: kubelet.devices(part))
        await lister.until(4)
        assert [*kubelet.plugins[part].lists] == [{"MIG-1": "Healthy"}]


async def test_a_changed_configuration_file_holds_back_what_pods_have(kubelet, sockets, lists, tmp_path):
    """Whole, then shares, then whole again, with one pod of each time; the process goes on."""
    file = tmp_path / "config.yaml"
    sharing = "sharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"

    def write(text: str) -> None:
        new = tmp_path / "new"
        new.write_text(f"version: v1\n{text}")
        new.rename(file)

    write("")
    lister = Lister(NAMESAKE, TRAIN)
    flags = (f"--config-file={file}", f"--pod-resources-socket={lists}")
    async with lister.serving(lists), process(sockets, *flags, gpus="GPU-a,GPU-b"):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy", "GPU-b": "Healthy"})
        write(sharing)
        await kubelet.until(lambda: len(kubelet.devices()) == 4)
        assert sick(kubelet, "nvidia.com/gpu") == {"GPU-a::0", "GPU-a::1"}
        lister.pods.append(pod("infer", gpu=["GPU-b::1"]))
        write("")
        await kubelet.until(lambda: len(kubelet.devices()) == 2)
        assert sick(kubelet, "nvidia.com/gpu") == {"GPU-b"}


@pytest.fixture
def api() -> FakeApiServer:
    made = FakeApiServer()
    made.objects["/api/v1/nodes/gpu-01"] = {"metadata": {}}
    return made


@pytest.fixture
def publisher(api) -> Iterator[Publisher]:
    made = Publisher(
        Writer(api, PendingEvents("gpu-01"), "events"), Writer(api, PendingAnnotation("gpu-01"), "annotation")
    )
    yield made
    made.close()


async def test_it_is_reported_where_people_look(kubelet, after, api, publisher, caplog):
    """Events about the node, its annotation, a gauge, the log. The plugin is ready all the same: it may take days."""
    port = free_port()

    def note() -> dict[str, object]:
        notes = api.objects["/api/v1/nodes/gpu-01"]["metadata"].get("annotations", {})
        return dict(json.loads(notes.get(ANNOTATION) or "{}"))

    with caplog.at_level(logging.INFO, logger=reclaim.__name__):
        settings = {"publisher": publisher, "metrics_address": f"127.0.0.1:{port}"}
        async with after(NAMESAKE, TRAIN, shares=(Share(GPU, 2, GPU),), **settings) as lister:
            await kubelet.until(kubelet.devices)
            await api.until(lambda: api.said() == [("GPUHeld", 1)])
            event = api.events[0]
            assert event["type"] == "Warning"
            assert f"GPU-a) is reserved, whole or in part: {WHY}. It is free again when" in event["message"]
            await api.until(lambda: [each["words"] for each in note().get("reserved", [])] == [WHY])  # type: ignore[attr-defined]
            assert note()["lost"] == []
            _, page = await get(port, "/metrics")
            labels = f'resource="{GPU}",gpu="GPU-a",why="{WHY}"'
            assert f"gpunode_device_plugin_held{{{labels}}} 2\n" in page
            assert f'gpunode_device_plugin_devices{{resource="{GPU}",health="Unhealthy"}} 2\n' in page
            await until_ready(port)
            lister.pods.remove(TRAIN)
            await api.until(lambda: api.said() == [("GPUHeld", 1), ("GPUFree", 1)])
            await api.until(lambda: not note()["reserved"])
            assert "_held{" not in (await get(port, "/metrics"))[1]
    lines = [record.getMessage() for record in caplog.records if record.name == reclaim.__name__]
    assert lines == [f"reserved: {WHY}", "no longer reserved"]
