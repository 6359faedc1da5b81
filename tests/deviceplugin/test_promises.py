"""The plugin allocates what the scheduler extender promised, and publishes what it can promise."""

import asyncio
import contextlib
import json
import queue
import random
from collections.abc import AsyncIterator, Iterator
from typing import Any
from unittest.mock import Mock

import grpc
import pytest

from gpunode.contract.config import GPU_COUNT, GPU_MEM, MemorySharing
from gpunode.contract.promises import ALLOCATION, INDEX, MEMORY_ANNOTATION, Part
from gpunode.contract.status import ANNOTATION as STATUS
from gpunode.deviceplugin.cluster.apiserver import ApiError, Object
from gpunode.deviceplugin.cluster.events import PendingEvents
from gpunode.deviceplugin.cluster.publish import Publisher
from gpunode.deviceplugin.cluster.writer import PendingAnnotation, Writer
from gpunode.deviceplugin.kubelet import promised
from gpunode.deviceplugin.kubelet.promised import BoundPods
from gpunode.share.book import Gpu as Shared
from gpunode.share.book import gpus_of, moved_parts
from gpunode.sim.node import podresources_pb2
from tests.share.objects import pod

from .apiserver import FakeApiServer
from .kubelet import FakeKubelet
from .nvml import FakeNvml, Gpu
from .test_podresources import Lister

GIB = 2**30
LATE = 0.2  # seconds instead of 2


class Bound:
    """The API server's pods of one node; `bind` adds one."""

    def __init__(self, *pods: Object) -> None:
        self.pods = list(pods)
        self.refuse: ApiError | None = None
        self.asked: list[str] = []
        self._events: queue.SimpleQueue[Object] = queue.SimpleQueue()

    def bind(self, pod: Object) -> None:
        self._events.put(pod | {"metadata": pod["metadata"] | {"resourceVersion": "2"}})

    def get(self, path: str) -> Object:
        self.asked.append(path)
        if self.refuse:
            raise self.refuse
        return {"items": self.pods, "metadata": {"resourceVersion": "1"}}

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        while True:
            try:
                yield "MODIFIED", self._events.get(timeout=0.05)
            except queue.Empty:
                return


@pytest.fixture
def following(kubelet: Any, plugin: Any, sockets: Any, monkeypatch) -> Any:
    """An async context with a plugin that shares two GPUs of 4 and 8 GiB, follows `api`, and asks the lister in it."""
    monkeypatch.setattr(promised, "LATE", LATE)
    socket = sockets / "pods.sock"
    settings = {"memory": MemorySharing(), "follow_promises": True, "node_name": "n"}
    gpus = FakeNvml(Gpu("GPU-a", memory=4 * GIB), Gpu("GPU-b", minor=1, memory=8 * GIB))

    @contextlib.asynccontextmanager
    async def started(api: Bound, *pods: Any, publisher: Publisher | None = None) -> AsyncIterator[Lister]:
        lister = Lister(*pods)
        running = plugin(gpus, api=api, publisher=publisher, pod_resources_socket=str(socket), **settings)
        async with lister.serving(socket), running:
            await kubelet.until(lambda: kubelet.devices(GPU_MEM) and kubelet.devices(GPU_COUNT))
            yield lister

    return started


async def chosen(kubelet: FakeKubelet, size: int, *used: str) -> dict[str, int]:
    """Units by GPU that the plugin prefers for a container, and then allocates."""
    free = [device for device in kubelet.devices(GPU_MEM) if device not in used]
    ids = await kubelet.prefer(free, [], size, GPU_MEM)
    assert len(ids) == size
    await kubelet.allocate(*ids, resource=GPU_MEM)
    return {
        gpu: sum(unit_id.startswith(gpu) for unit_id in ids)
        for gpu in {unit_id.partition(":")[0] for unit_id in ids}
    }


def holding(name: str, container: str, *ids: str) -> podresources_pb2.PodResources:
    """What the kubelet reports of a container that has its units."""
    devices = podresources_pb2.ContainerDevices(resource_name=GPU_MEM, device_ids=ids)
    held = podresources_pb2.ContainerResources(name=container, devices=[devices])
    return podresources_pb2.PodResources(name=name, namespace="default", containers=[held])


async def test_a_container_gets_the_gpu_that_it_was_promised(kubelet: Any, following: Any):
    """Not the one that the plugin would choose, the fullest; and each container of a pod its own."""
    api = Bound(pod("two", 2, 3, on="n", **{ALLOCATION: '{"0":{"1":2},"1":{"0":3}}'}))

    async with following(api) as lister:
        assert await chosen(kubelet, 2) == {"GPU-b": 2}
        lister.pods = [holding("two", "c0", "GPU-b:1024:0", "GPU-b:1024:1")]
        assert await chosen(kubelet, 3) == {"GPU-a": 3}
    assert api.asked[0] == "/api/v1/pods?fieldSelector=spec.nodeName%3Dn&limit=500"


async def test_equal_containers_get_one_promise_each(kubelet: Any, following: Any):
    """Which gets which does not matter; that both promises are kept does. A pod that ended waits for nothing."""
    api = Bound(
        pod("a", 2, on="n", **{INDEX: "1"}),
        pod("b", 2, on="n", **{INDEX: "0"}),
        pod("c", 2, on="n", phase="Succeeded", **{INDEX: "0"}),
    )

    async with following(api) as lister:
        first = await chosen(kubelet, 2)
        # It was b's container, not a's: a gets what was b's.
        (gpu,) = first
        lister.pods = [holding("b", "c0", f"{gpu}:1024:0", f"{gpu}:1024:1")]
        second = await chosen(kubelet, 2)
        assert [first, second] == [{"GPU-b": 2}, {"GPU-a": 2}]
        lister.pods.append(holding("a", "c0", "GPU-a:1024:0", "GPU-a:1024:1"))
        assert await chosen(kubelet, 2) == {"GPU-a": 2}  # nothing is promised any more: its own choice


async def test_a_container_gets_memory_of_several_gpus_where_they_were_promised(kubelet: Any, following: Any):
    """Else it is refused, as without an extender."""
    api = Bound(pod("wide", 4, gpus=2, on="n", **{ALLOCATION: '{"0":{"0":2,"1":2}}'}))

    async with following(api) as lister:
        assert await chosen(kubelet, 4) == {"GPU-a": 2, "GPU-b": 2}
        lister.pods = [holding("wide", "c0", "GPU-a:1024:0")]
        ids = ["GPU-a:1024:0", "GPU-b:1024:0"]
        with pytest.raises(grpc.aio.AioRpcError, match="a container gets memory of one GPU"):
            await kubelet.allocate(*ids, resource=GPU_MEM)


async def test_uneven_parts_that_an_annotation_names_are_not_given(kubelet: Any, following: Any):
    """One limit holds on each GPU: 3 units of one and 1 of the other would be 3 of each. Its memory is one GPU's then."""
    api = Bound(pod("wide", 4, on="n", **{ALLOCATION: '{"0":{"0":3,"1":1}}'}))

    async with following(api):
        assert await chosen(kubelet, 4) == {"GPU-a": 4}
        with pytest.raises(grpc.aio.AioRpcError, match="a container gets memory of one GPU"):
            await kubelet.allocate(*(f"GPU-a:1024:{n}" for n in range(3)), "GPU-b:1024:0", resource=GPU_MEM)


async def test_memory_of_several_gpus_that_nobody_promised_is_refused(kubelet: Any, following: Any):
    """Here the promised GPU has no room left: a limit that holds on each GPU would give more than was asked for."""
    api = Bound(pod("a", 6, on="n", **{INDEX: "1"}))

    async with following(api):
        with pytest.raises(grpc.aio.AioRpcError, match="a container gets memory of one GPU"):
            await chosen(kubelet, 6, *(f"GPU-b:1024:{n}" for n in range(4)))


async def test_a_pod_that_the_kubelet_knew_first_is_waited_for(kubelet: Any, following: Any, monkeypatch):
    """The plugin's watch may be behind the kubelet's."""
    monkeypatch.setattr(promised, "LATE", 30.0)
    api = Bound()

    async with following(api) as lister:
        asked = asyncio.create_task(chosen(kubelet, 3))
        await lister.until(lister.asked + 1)
        api.bind(pod("late", 3, on="n", **{INDEX: "1"}))
        assert await asked == {"GPU-b": 3}


@pytest.mark.parametrize("why", ["no pod", "not placed", "full", "no answer", "API server away"])
async def test_without_a_promise_that_can_be_kept_the_plugin_chooses(kubelet: Any, following: Any, why: str):
    """As it does without an extender: nothing fails for it."""
    api = Bound(
        *([] if why == "no pod" else [pod("a", 3, on="n", **({} if why == "not placed" else {INDEX: "1"}))])
    )
    if why == "API server away":
        api.refuse = ApiError(0, "away")

    async with following(api) as lister:
        lister.slow = why == "no answer"
        used = [f"GPU-b:1024:{n}" for n in range(6)] if why == "full" else []
        assert await chosen(kubelet, 3, *used) == {"GPU-a": 3}


async def test_each_gpus_memory_is_published_as_the_extender_reads_it(kubelet: Any, plugin: Any):
    """Its own size, whether it is Unhealthy; the plugin's end takes only its status away."""
    api = FakeApiServer()
    path = "/api/v1/nodes/n"
    api.objects[path] = {"metadata": {}}
    publisher = Publisher(annotation=Writer(api, PendingAnnotation("n"), "annotation"))

    def notes() -> dict[str, str | None]:
        gpus: dict[str, str | None] = api.objects[path]["metadata"].get("annotations", {})
        return gpus

    def seen() -> Any:
        annotations = {key: text for key, text in notes().items() if text}
        capacity = {GPU_MEM: "12", GPU_COUNT: "2"}
        return gpus_of({"metadata": {"annotations": annotations}, "status": {"capacity": capacity}}, GPU_MEM)

    broken = Gpu("GPU-b", minor=1, memory=8 * GIB)
    settings = {"memory": MemorySharing(), "follow_promises": True, "node_name": "n"}

    try:
        async with plugin(
            FakeNvml(Gpu("GPU-a", memory=4 * GIB), broken), publisher=publisher, api=Bound(), **settings
        ):
            await api.until(lambda: MEMORY_ANNOTATION in notes())
            whole = Shared("0", 4, "GPU-a"), Shared("1", 8, "GPU-b")
            assert seen() == whole
            await kubelet.until(lambda: broken.sets)
            broken.raise_xid(79)
            await api.until(lambda: seen() == (whole[0], Shared("1", 8, "GPU-b", lost=True)))
    finally:
        publisher.close()
    assert json.loads(notes()[MEMORY_ANNOTATION] or "")["version"] == 1
    assert STATUS not in notes()


async def test_a_container_on_another_gpu_is_published_with_an_event_until_it_is_noted(
    following: Any, monkeypatch
):
    """The kubelet's record is the truth; the extender reads it beside the GPUs' sizes."""
    monkeypatch.setattr(promised, "TICK", 0.05)
    server, path = FakeApiServer(), "/api/v1/nodes/n"
    server.objects[path] = {"metadata": {}}
    publisher = Publisher(
        Writer(server, PendingEvents("n"), "events"), Writer(server, PendingAnnotation("n"), "annotation")
    )
    api = Bound(pod("a", 2, on="n", **{INDEX: "0"}))

    def moved() -> Any:
        return moved_parts(server.objects[path])

    try:
        async with following(api, holding("a", "c0", "GPU-b:1024:0", "GPU-b:1024:1"), publisher=publisher):
            await server.until(lambda: moved() == {"uid-a": (Part("c0", "1", 2, "GPU-b"),)})
            await server.until(lambda: "GPUElsewhere" in [event["reason"] for event in server.events])
            api.bind(pod("a", 2, on="n", **{INDEX: "1"}))
            await server.until(lambda: not moved())
    finally:
        publisher.close()
    (event,) = [event for event in server.events if event["reason"] == "GPUElsewhere"]
    assert "Container c0 of pod default/a has memory of GPU 1 " in event["message"]


def test_containers_are_compared_at_once_when_pods_change_and_less_often_while_they_do_not(monkeypatch):
    """A pod that is gone is a change, too."""
    following = promised.Promised(Mock(), Mock(), Mock(), "n", GPU_MEM)
    following._bound.kind.seen(pod("a", 2, on="n"))
    seconds, compared = list[float](), list[int]()

    async def pass_second(second: float) -> None:
        seconds.append(second)
        if len(seconds) == 60:
            following._bound.kind.gone("uid-a")
        if len(seconds) == 70:
            raise EOFError

    async def compare() -> bool:
        compared.append(len(seconds))
        return False

    monkeypatch.setattr(promised.asyncio, "sleep", pass_second)
    monkeypatch.setattr(following, "_all_in_place", compare)
    with pytest.raises(EOFError):
        asyncio.run(following._compare())
    assert compared == [1, 2, 4, 8, 16, 32, 60, 61, 63, 67]


def test_whatever_the_order_each_gpu_gives_what_was_promised_of_it():
    """1,000 by chance: kubelets take pods in any order, and pods end, which the API server may not say yet."""
    chance = random.Random(1000)
    for schedule in range(1000):
        sizes = {f"GPU-{gpu}": 8 for gpu in range(chance.randint(1, 3))}
        bound, promised = BoundPods("n", GPU_MEM), dict.fromkeys(sizes, 0)
        index = {str(number): gpu for number, gpu in enumerate(sizes)}
        held: dict[tuple[str, str], frozenset[tuple[str, int]]] = {}
        waiting: list[tuple[str, int]] = []
        for step in range(12):
            size = chance.choice([1, 2, 2, 4])
            room = [number for number, gpu in index.items() if promised[gpu] + size <= 8]
            if room and chance.random() < 0.6:
                where = chance.choice(room)
                bound.kind.seen(pod(f"p{step}", size, on="n", **{INDEX: where}))
                promised[index[where]] += size
                waiting.append((f"default/p{step}", size))
            elif waiting:
                name, size = waiting.pop(chance.randrange(len(waiting)))
                places = bound.wait_for_places(size, held, index, 0)
                held[name, "c0"] = places[0]
        while waiting:
            name, size = waiting.pop(chance.randrange(len(waiting)))
            held[name, "c0"] = bound.wait_for_places(size, held, index, 0)[0]
        used = dict.fromkeys(sizes, 0)
        for place in held.values():
            for gpu, units in place:
                used[gpu] += units
        assert used == promised, schedule
        assert bound.wait_for_places(2, held, index, 0) == []
        for key in [key for key in held if chance.random() < 0.5]:
            del held[key]  # ended on the node; the API server still has it
        assert bound.wait_for_places(2, held, index, 0) == []
        assert bound._find(2, held, index) is None  # that of a new pod is waited for
