"""What is counted, and the three pages on HTTP."""

import asyncio
import contextlib
import random
import re
import select
import socket

import pynvml
import pytest

from gpunode.deviceplugin import metrics as pages
from gpunode.deviceplugin.metrics import CannotListen, Metrics, render, serving

from .nvml import FakeNvml, Gpu


def free_port() -> int:
    """None of those that the kernel hands out itself, from 32768 on: nobody gets it before it is bound again."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


async def get(port: int, path: str) -> tuple[int, str]:
    """Status and body; (0, "") if refused."""
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
    except ConnectionRefusedError:
        return 0, ""
    writer.write(f"GET {path} HTTP/1.1\r\nHost: here\r\n\r\n".encode())
    answer = (await reader.read()).decode()
    writer.close()
    head, _, body = answer.partition("\r\n\r\n")
    return int(head.split()[1]), body


async def until_ready(port: int) -> None:
    """The kubelet may have the devices a moment before the plugin knows that it has them."""
    while (await get(port, "/readyz")) != (200, "ok\n"):
        await asyncio.sleep(0.01)


async def test_metrics_tell_devices_registration_allocations_and_xids(kubelet, plugin):
    """Prometheus finds the present state and what has happened."""
    port = free_port()

    gpu = Gpu("GPU-a")
    async with plugin(FakeNvml(gpu, Gpu("GPU-b", minor=1)), metrics_address=f"127.0.0.1:{port}"):
        await kubelet.until(lambda: kubelet.devices() and gpu.sets)
        await until_ready(port)
        await kubelet.allocate("GPU-b")
        with pytest.raises(Exception, match="unknown device"):
            await kubelet.allocate("GPU-x")
        gpu.raise_xid(79)
        await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Unhealthy")
        status, body = await get(port, "/metrics")
    assert status == 200
    for line in (
        'devices{resource="nvidia.com/gpu",health="Healthy"} 1',
        'devices{resource="nvidia.com/gpu",health="Unhealthy"} 1',
        'registered{resource="nvidia.com/gpu"} 1',
        'registrations_total{resource="nvidia.com/gpu"} 1',
        'allocations_total{resource="nvidia.com/gpu"} 1',
        'allocations_refused_total{resource="nvidia.com/gpu"} 1',
        'xids_total{gpu="GPU-a",xid="79"} 1',
        'allocate_seconds_bucket{le="+Inf",resource="nvidia.com/gpu"} 1',
    ):
        assert f"gpunode_device_plugin_{line}\n" in body


async def test_metrics_tell_of_a_gpu_of_which_nothing_is_offered(kubelet, plugin):
    """It is among no devices, and not Unhealthy."""
    port = free_port()
    why = "MIG is on, but the plugin sees no MIG device there"
    line = f'gpunode_device_plugin_left_out{{gpu="GPU-b",why="{why}"}} 1\n'
    gpu = Gpu("GPU-b", minor=1, mig=[])
    nvml = FakeNvml(Gpu("GPU-a"), gpu)

    async with plugin(nvml, mig_strategy="mixed", metrics_address=f"127.0.0.1:{port}"):
        await kubelet.until(kubelet.devices)
        assert line in (await get(port, "/metrics"))[1]
        gpu.mig = None
        await kubelet.until(lambda: "GPU-b" in kubelet.devices())
        assert "left_out" not in (await get(port, "/metrics"))[1]


async def test_readyz_says_what_is_missing(kubelet, plugin, caplog):
    """Alive is not ready: without a registration /readyz is 503 with the reason, /healthz 200."""
    port = free_port()
    caplog.set_level("INFO", "gpunode.deviceplugin")

    await kubelet.stop()
    async with plugin(FakeNvml(Gpu("GPU-a")), metrics_address=f"127.0.0.1:{port}"):
        while (await get(port, "/readyz")) != (503, "not registered with the kubelet: nvidia.com/gpu\n"):
            await asyncio.sleep(0.01)
        assert "not ready: not registered with the kubelet: nvidia.com/gpu\n" in caplog.text
        assert caplog.text.count("not ready: not registered") == 1, "not at every question"
        assert (await get(port, "/healthz")) == (200, "ok\n")
        assert (await get(port, "/nothing"))[0] == 404
        await kubelet.start()
        await kubelet.until(kubelet.devices)
        await until_ready(port)


async def test_readyz_names_the_other_plugin_that_has_taken_over(kubelet, plugin):
    """`gpunode verify` has its words from there; it is ready again when the other has gone."""
    port, name = free_port(), "nvidia.com/gpu"

    async with plugin(FakeNvml(Gpu("GPU-old")), metrics_address=f"127.0.0.1:{port}"):
        await kubelet.until(lambda: "GPU-old" in kubelet.devices())
        async with plugin(FakeNvml(Gpu("GPU-new"))):
            reason = (
                f"another device plugin on this node has taken over {name}; remove it: this one stands by\n"
            )
            while (await get(port, "/readyz")) != (503, reason):
                await asyncio.sleep(0.01)
        await until_ready(port)


async def test_readyz_says_why_nvml_cannot_be_used(kubelet, plugin):
    """A node that waits for its driver is alive, but not ready."""
    port = free_port()
    nvml = FakeNvml(init_error=pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    async with plugin(nvml, fail_on_init_error=False, metrics_address=f":{port}"):
        while "Driver Not Loaded" not in (await get(port, "/readyz"))[1]:
            await asyncio.sleep(0.01)
        assert (await get(port, "/healthz"))[0] == 200


async def test_readyz_says_which_device_has_no_cdi_name(kubelet, plugin, tmp_path):
    """Registered, but nothing can be given out as the configuration asks."""
    port = free_port()
    settings = {"device_list_strategy": ("cdi-cri",), "cdi_directory": str(tmp_path)}

    async with plugin(FakeNvml(Gpu("GPU-a")), metrics_address=f"127.0.0.1:{port}", **settings):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Unhealthy"})
        why = f"no CDI specification of kind nvidia.com/gpu in {tmp_path}"
        while why not in (await get(port, "/readyz"))[1]:
            await asyncio.sleep(0.01)


async def test_readyz_is_ok_while_some_device_can_be_given(kubelet, plugin, tmp_path):
    """One MIG device that has no CDI name yet is no reason to call the plugin down."""
    port = free_port()
    (tmp_path / "nvidia.yaml").write_text(
        "cdiVersion: 0.5.0\nkind: nvidia.com/gpu\n"
        "devices: [{name: GPU-a, containerEdits: {deviceNodes: [{path: /dev/nvidia0}]}}]\ncontainerEdits: {}\n"
    )
    nvml = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", minor=1))
    settings = {"device_list_strategy": ("cdi-cri",), "cdi_directory": str(tmp_path)}

    async with plugin(nvml, probe_address=f"127.0.0.1:{port}", **settings):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy", "GPU-b": "Unhealthy"})
        await until_ready(port)


async def test_a_plugin_that_the_kubelet_has_not_asked_for_its_devices_is_not_ready(kubelet, plugin):
    """Registered is not enough: a pod that came now would be refused."""
    port = free_port()

    kubelet.deaf = True
    async with plugin(FakeNvml(Gpu("GPU-a")), probe_address=f"127.0.0.1:{port}"):
        await kubelet.until(lambda: kubelet.plugins)
        for _ in range(20):
            assert (await get(port, "/readyz"))[0] == 503
        kubelet.deaf = False
        await kubelet.restart()
        await kubelet.until(kubelet.devices)
        await until_ready(port)


async def test_a_node_without_gpus_is_ready(kubelet, plugin):
    """It has nothing to offer and nothing to wait for."""
    port = free_port()

    async with plugin(FakeNvml(), probe_address=f"127.0.0.1:{port}"):
        await until_ready(port)
        assert not kubelet.requests


async def test_the_address_for_probes_has_no_metrics(kubelet, plugin):
    """Who did not ask for metrics serves none."""
    port = free_port()

    async with plugin(FakeNvml(Gpu("GPU-a")), probe_address=f"127.0.0.1:{port}"):
        await kubelet.until(kubelet.devices)
        assert (await get(port, "/healthz"))[0] == 200
        assert (await get(port, "/metrics")) == (404, "/gpus, /healthz and /readyz are here\n")


async def test_a_port_in_use_ends_the_plugin_with_the_reason(kubelet, plugin):
    """Better than metrics that are silently missing."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        address = f"127.0.0.1:{other.getsockname()[1]}"
        async with plugin(FakeNvml(Gpu("GPU-a")), metrics_address=address) as task:
            with pytest.raises(CannotListen, match=f"{address}: .*address already in use"):
                await task


async def test_an_address_of_another_machine_is_named(kubelet, plugin):
    """With what is wrong with it."""
    async with plugin(FakeNvml(Gpu("GPU-a")), probe_address="192.0.2.1:9401") as task:
        with pytest.raises(CannotListen, match=r"on 192\.0\.2\.1:9401: .*annot assign"):
            await task


def test_how_long_allocations_took_is_a_histogram():
    """Each bucket has what took no longer than its bound."""
    metrics = Metrics()
    for seconds in (0.0004, 0.003, 2.0):
        metrics.observe_allocation("r", seconds)
    page = render(metrics.samples())
    buckets = re.findall(r'allocate_seconds_bucket\{le="([^"]+)",resource="r"\} (\d+)', page)
    assert [
        (bound, count) for bound, count in buckets if bound in ("0.0005", "0.001", "0.005", "1", "+Inf")
    ] == [
        ("0.0005", "1"),
        ("0.001", "1"),
        ("0.005", "2"),
        ("1", "2"),
        ("+Inf", "3"),
    ]
    assert 'allocate_seconds_sum{resource="r"} 2.0034\n' in page
    assert 'allocate_seconds_count{resource="r"} 3\n' in page


def test_large_counts_lose_nothing():
    """A rate is the difference of two of them."""
    metrics = Metrics()
    metrics.count("allocations_total", by=12_345_678)
    assert "allocations_total{} 12345678\n" in render(metrics.samples())


def test_label_values_are_escaped():
    """A quote in a value must not break the page."""
    metrics = Metrics()
    metrics.count("xids_total", gpu='a"b\\c')
    assert 'xids_total{gpu="a\\"b\\\\c"} 1\n' in render(metrics.samples())


async def ended(talks):
    """Wait until the server has ended each of these connections without an answer."""
    for reader, writer in talks:
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()


async def test_a_crowd_that_asks_nothing_keeps_nobody_out(monkeypatch):
    """Any pod may connect; the oldest connections make room, at once, for who has a question."""
    monkeypatch.setattr(pages, "DEADLINE", 3600.0)
    port = free_port()

    async with serving(f"127.0.0.1:{port}", lambda: None):
        talks = [await asyncio.open_connection("127.0.0.1", port) for _ in range(pages.CONNECTIONS + 20)]
        for _, writer in talks:
            writer.write(b"GET /healthz HTTP/1.1\r\n")
        assert await get(port, "/healthz") == (200, "ok\n")
        await ended(talks[:20])
        for reader, writer in talks[21:]:  # one has made room for the question
            writer.write(b"\r\n")
            assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
            writer.close()
        await ended(talks[20:21])


async def test_a_request_that_does_not_end_is_ended(monkeypatch):
    """After its time, or when it is longer than any request needs to be."""
    monkeypatch.setattr(pages, "DEADLINE", 0.1)
    port = free_port()

    async with serving(f"127.0.0.1:{port}", lambda: None):
        talks = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        talks[0][1].write(b"GET /healthz HTTP/1.1\r\n")
        await ended(talks)
        monkeypatch.setattr(pages, "DEADLINE", 3600.0)
        long = await asyncio.open_connection("127.0.0.1", port)
        long[1].write(b"GET /healthz HTTP/1.1\r\nCookie: " + b"a" * 3 * pages.REQUEST)
        await ended([long])


async def test_who_does_not_take_the_answer_is_cut_off(monkeypatch):
    """The page is not kept for ever for who has asked for it and does not read."""
    monkeypatch.setattr(pages, "DEADLINE", 0.2)
    port = free_port()

    async def page() -> str:
        return "a" * 30_000_000

    async with serving(f"127.0.0.1:{port}", lambda: None, {"/metrics": page}):
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.connect(("127.0.0.1", port))
            deaf.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
            gone = select.poll()
            gone.register(deaf, select.POLLERR | select.POLLHUP)
            while not gone.poll(0):
                await asyncio.sleep(0.01)
        monkeypatch.setattr(pages, "DEADLINE", 3600.0)
        assert len((await get(port, "/metrics"))[1]) == 30_000_000  # who reads gets all of it
