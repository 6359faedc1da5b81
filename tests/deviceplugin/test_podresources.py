"""Which pod has which GPU, on /metrics, from a stand-in for the kubelet's pod-resources socket."""

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from gpunode.deviceplugin.kubelet import podresources
from gpunode.deviceplugin.kubelet.messages import containers_devices
from gpunode.sim.node import podresources_pb2 as api

from .nvml import FakeNvml, Gpu
from .test_metrics import free_port, get

PREFIX = "gpunode_device_plugin_"


def pod(name: str, **devices: list[str]) -> api.PodResources:
    """A pod whose one container has these devices by resource."""
    given = [
        api.ContainerDevices(resource_name=f"nvidia.com/{resource}", device_ids=ids)
        for resource, ids in devices.items()
    ]
    main = api.ContainerResources(name="main", devices=given)
    return api.PodResources(name=name, namespace="ml", containers=[main])


class Lister:
    """Answers List with its pods; `slow` makes it answer never. `asking` is what the kubelet does then."""

    def __init__(self, *pods: api.PodResources) -> None:
        self.pods = list(pods)
        self.slow = False
        self.asking: Callable[[], None] = lambda: None
        self.asked = 0
        self._changed = asyncio.Event()

    async def until(self, times: int) -> None:
        """Wait until it was asked so often."""
        while self.asked < times:
            self._changed.clear()
            await asyncio.wait_for(self._changed.wait(), 60)

    async def list(self, request: Any, context: Any) -> api.ListPodResourcesResponse:
        self.asked += 1
        self._changed.set()
        if self.slow:
            await asyncio.Event().wait()
        self.asking()
        return api.ListPodResourcesResponse(pod_resources=self.pods)

    @contextlib.asynccontextmanager
    async def serving(self, socket: Path, method: str = "List") -> AsyncIterator[None]:
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(
            self.list,
            request_deserializer=api.ListPodResourcesRequest.FromString,
            response_serializer=api.ListPodResourcesResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1.PodResourcesLister", {method: handler}),)
        )
        server.add_insecure_port(f"unix:{socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=None)


async def scrape(port: int) -> list[str]:
    """The lines of /metrics about pods, without the prefix."""
    status, body = await get(port, "/metrics")
    assert status == 200
    lines = [line.removeprefix(PREFIX) for line in body.splitlines()]
    return [line for line in lines if line.startswith("pod_")]


async def test_every_containers_devices_are_reported_with_the_gpu_behind_them(kubelet, plugin, sockets):
    """Shares of one GPU are counted; the GPU is named, not the share. Others' resources are others' matter."""
    port, socket = free_port(), sockets / "pods.sock"
    lister = Lister(
        pod("train", gpu=["GPU-a", "GPU-b"], fpga=["f0"]), pod("idle"), pod("old", gpu=["GPU-gone"])
    )

    settings = {"metrics_address": f"127.0.0.1:{port}", "pod_resources_socket": str(socket)}
    gpus = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", minor=1))
    async with lister.serving(socket), plugin(gpus, **settings):
        await kubelet.until(kubelet.devices)
        where = 'namespace="ml",pod="{}",container="main",resource="nvidia.com/gpu",gpu="{}"'
        assert await scrape(port) == [
            f"pod_devices{{{where.format('old', 'GPU-gone')}}} 1",
            f"pod_devices{{{where.format('train', 'GPU-a')}}} 1",
            f"pod_devices{{{where.format('train', 'GPU-b')}}} 1",
            "pod_resources_up{} 1",
        ]
        await lister.until(2)  # before and after the devices were offered
        await scrape(port)
        assert lister.asked == 2  # the answer is still fresh


async def test_allocations_do_not_wait_for_a_long_page(kubelet, plugin, sockets, monkeypatch):
    """Of tens of thousands of units it takes a while to say whose they are."""
    port, socket = free_port(), sockets / "pods.sock"
    begun, go_on, given = threading.Event(), threading.Event(), podresources.pod_samples

    def slow(*arguments: Any) -> Any:
        begun.set()
        go_on.wait(60)
        return given(*arguments)

    settings = {"metrics_address": f"127.0.0.1:{port}", "pod_resources_socket": str(socket)}
    async with Lister(pod("train")).serving(socket), plugin(FakeNvml(Gpu("GPU-a")), **settings):
        await kubelet.until(kubelet.devices)
        monkeypatch.setattr(podresources, "pod_samples", slow)
        page = asyncio.create_task(scrape(port))
        assert await asyncio.to_thread(begun.wait, 5)
        await kubelet.allocate("GPU-a")
        assert not page.done()
        go_on.set()
        assert await page == ["pod_resources_up{} 1"]


def test_shares_count_for_their_gpu():
    """Two shares of one GPU are two units of it."""
    from gpunode.contract.offer import Device, Unit

    gpu = Device("GPU-a", "0", "Tesla P100", "GPU-a", "0000:3b:00.0", 0)
    offers = {"nvidia.com/gpu": tuple(Unit(f"GPU-a::{n}", gpu, shared=True) for n in range(4))}
    answer = api.ListPodResourcesResponse(pod_resources=[pod("train", gpu=["GPU-a::1", "GPU-a::3"])])
    ((name, labels, count),) = podresources.pod_samples(
        containers_devices(answer.SerializeToString()), offers
    )
    assert (name, labels["gpu"], count) == ("pod_devices", "GPU-a", 2)


def test_what_an_earlier_configuration_gave_counts_for_its_gpu_too():
    """Not each piece of memory for itself: there may be thousands."""
    ids = [f"GPU-a:1:{n}" for n in range(3)] + ["GPU-a", "GPU-a::mps-0", "MIG-b::1", "GPU-c-_-5", "words"]
    answer = api.ListPodResourcesResponse(pod_resources=[pod("train", gpu=ids)])
    scrape = podresources.pod_samples(containers_devices(answer.SerializeToString()), {"nvidia.com/gpu": ()})
    assert {labels["gpu"]: count for _, labels, count in scrape} == {
        "GPU-a": 5,
        "MIG-b": 1,
        "GPU-c-_-5": 1,
        "words": 1,
    }


@pytest.mark.parametrize("how", ["nobody listens", "it hangs", "it knows no v1"])
async def test_a_kubelet_that_does_not_tell_costs_only_that(
    kubelet, plugin, sockets, monkeypatch, caplog, how
):
    """The page comes, without pods; one line in the log, and all is as before when the kubelet tells again."""
    monkeypatch.setattr(podresources, "DEADLINE", 0.2)
    monkeypatch.setattr(podresources, "FRESH", 0.0)
    port, socket = free_port(), sockets / "pods.sock"
    lister = Lister(pod("train", gpu=["GPU-a"]))
    lister.slow = how == "it hangs"

    with caplog.at_level(logging.WARNING, logger="gpunode.deviceplugin.kubelet.podresources"):
        settings = {"metrics_address": f"127.0.0.1:{port}", "pod_resources_socket": str(socket)}
        method = "Other" if how == "it knows no v1" else "List"
        wrong = contextlib.nullcontext() if how == "nobody listens" else lister.serving(socket, method)
        async with contextlib.AsyncExitStack() as then, contextlib.AsyncExitStack() as first:
            await first.enter_async_context(wrong)
            async with plugin(FakeNvml(Gpu("GPU-a")), **settings):
                await kubelet.until(kubelet.devices)
                for _ in range(2):
                    assert await scrape(port) == ["pod_resources_up{} 0"]
                await first.aclose()
                lister.slow = False
                await then.enter_async_context(lister.serving(socket))  # until after the plugin's end
                assert (await scrape(port))[-1] == "pod_resources_up{} 1"
    (line,) = [record.getMessage() for record in caplog.records if record.name.endswith("podresources")]
    problems = {
        "nobody listens": "UNAVAILABLE",
        "it hangs": "DEADLINE_EXCEEDED",
        "it knows no v1": "UNIMPLEMENTED",
    }
    assert f"the kubelet does not report which pods have GPUs: {problems[how]}" in line
