"""The plugin towards the kubelet: registration, lists, allocation, and every fault between the two."""

import asyncio
import errno
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest

from gpunode.contract.checkpoint import FILE_NAME
from gpunode.deviceplugin import directory
from gpunode.deviceplugin.directory import alive
from gpunode.deviceplugin.kubelet import messages, server, service
from gpunode.sim.node import v1beta1_pb2 as api

from .kubelet import FakeKubelet
from .nvml import FakeNvml, Gpu

TWO = ("GPU-a", "GPU-b")
BOTH_WELL = {"GPU-a": "Healthy", "GPU-b": "Healthy"}


def two_gpus() -> FakeNvml:
    return FakeNvml(Gpu(TWO[0], minor=0), Gpu(TWO[1], minor=1, bus="00000000:D8:00.0"))


async def test_registers_with_what_the_kubelet_needs(kubelet, plugin):
    """Version, endpoint (a base name), resource and options are in the registration."""
    async with plugin(two_gpus()):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    request = kubelet.requests[0]
    assert (request.version, request.endpoint) == ("v1beta1", "nvidia-gpu.sock")
    assert request.resource_name == "nvidia.com/gpu"
    assert request.options.get_preferred_allocation_available
    assert not request.options.pre_start_required


async def given(kubelet: FakeKubelet, unit: str) -> bool:
    """Whether an allocation is not refused."""
    try:
        await kubelet.allocate(unit)
    except grpc.aio.AioRpcError as error:
        assert error.code() is grpc.StatusCode.INVALID_ARGUMENT  # noqa: PT017 (it need not be raised)
        return False
    return True


async def test_others_are_answered_while_a_list_is_put_together(kubelet, plugin, monkeypatch):
    """A list of tens of thousands of shares takes a while; allocations do not wait for it."""
    go_on = threading.Event()
    device = messages.device

    def slow(unit, health):
        if health == "Unhealthy":
            go_on.wait(30)
        return device(unit, health)

    gpus = two_gpus()

    try:
        async with plugin(gpus):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL and gpus.gpus[0].sets)
            monkeypatch.setattr(messages, "device", slow)
            gpus.gpus[0].raise_xid(79)
            while await given(kubelet, "GPU-a"):
                pass
            assert kubelet.devices() == BOTH_WELL
            await kubelet.allocate("GPU-b")
            go_on.set()
            await kubelet.until(lambda: kubelet.devices()["GPU-a"] == "Unhealthy")
    finally:
        go_on.set()


async def test_allocates_the_devices_that_were_asked_for(kubelet, plugin):
    """A container is told its GPUs by UUID, each once, in the order asked."""
    async with plugin(two_gpus()):
        await kubelet.until(kubelet.devices)
        answer = await kubelet.allocate("GPU-b", "GPU-a", "GPU-b")
        assert answer.envs == {"NVIDIA_VISIBLE_DEVICES": "GPU-b,GPU-a"}
        started = await kubelet.plugins["nvidia.com/gpu"].call(
            "PreStartContainer",
            api.PreStartContainerRequest(devices_ids=["GPU-a"]),
            api.PreStartContainerResponse,
        )
        assert started == api.PreStartContainerResponse()


async def test_an_unknown_device_is_refused_with_its_name(kubelet, plugin):
    """The kubelet puts the refusal into the pod's event, so it names resource and device."""
    async with plugin(two_gpus()):
        await kubelet.until(kubelet.devices)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.allocate("GPU-a", "GPU-x")
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "nvidia.com/gpu: unknown device 'GPU-x'" in caught.value.details()
        assert (await kubelet.allocate("GPU-a")).envs  # and goes on serving


async def test_an_empty_request_shows_no_gpu(kubelet, plugin):
    """An empty NVIDIA_VISIBLE_DEVICES would let the image's own value, often `all`, stand."""
    async with plugin(two_gpus()):
        await kubelet.until(kubelet.devices)
        assert (await kubelet.allocate()).envs == {"NVIDIA_VISIBLE_DEVICES": "void"}


@pytest.mark.parametrize(
    ("available", "must", "size", "answer"),
    [
        (["GPU-a", "GPU-b"], [], 1, ["GPU-a"]),
        (["GPU-a", "GPU-b"], ["GPU-b"], 1, ["GPU-b"]),
        (["GPU-a", "GPU-b"], [], 5, ["GPU-a", "GPU-b"]),
        ([], [], 1, []),
        (["GPU-x", "GPU-a"], ["GPU-y"], 2, ["GPU-a", "GPU-y"]),
        (["GPU-a"], [], -1, []),
    ],
)
async def test_preferred_allocation_always_answers(kubelet, plugin, available, must, size, answer):
    """More than there is, unknown ids, nonsense: never an error, which would fail the pod's admission."""
    async with plugin(two_gpus()):
        await kubelet.until(kubelet.devices)
        assert sorted(await kubelet.prefer(available, must, size)) == answer


async def test_others_are_answered_while_a_preference_is_worked_out(kubelet, plugin, monkeypatch):
    """Of many GPUs there are many sets to compare."""
    go_on, prefer = threading.Event(), service.prefer_units

    def slow(*arguments, **more):
        go_on.wait(30)
        return prefer(*arguments, **more)

    try:
        async with plugin(two_gpus()):
            await kubelet.until(kubelet.devices)
            monkeypatch.setattr(service, "prefer_units", slow)
            asking = asyncio.create_task(kubelet.prefer(list(TWO), [], 1))
            await kubelet.allocate("GPU-b")
            assert not asking.done()
            go_on.set()
            assert await asking == ["GPU-a"]
    finally:
        go_on.set()


async def until_a_late_kubelet_is_noticed(kubelet: FakeKubelet, plugin: Any, monkeypatch, caplog) -> None:
    """The plugin starts first, and the kubelet once it is waited for."""
    monkeypatch.setattr(server, "CHECK_ANYWAY", 3600.0)  # not by a look now and then
    caplog.set_level("INFO")
    await kubelet.stop()
    (kubelet.directory / "kubelet.sock").unlink(missing_ok=True)
    async with plugin(two_gpus()):
        while "waiting for the kubelet" not in caplog.text:
            await asyncio.sleep(0.01)
        await kubelet.start()
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)


async def test_waits_for_a_kubelet_that_is_not_there_yet(kubelet, plugin, monkeypatch, caplog):
    """The plugin may start first: it registers as soon as kubelet.sock appears."""
    await until_a_late_kubelet_is_noticed(kubelet, plugin, monkeypatch, caplog)


async def test_registers_again_after_a_kubelet_restart(kubelet, plugin):
    """A kubelet wipes the socket directory when it starts; its list is complete again soon after."""
    async with plugin(two_gpus()):
        for times in (1, 2, 3):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            assert len(kubelet.requests) == times
            assert (await kubelet.allocate("GPU-a")).envs
            await kubelet.restart()


async def test_without_inotify_it_looks_every_now_and_then(kubelet, plugin, monkeypatch, caplog):
    """Busy nodes have no inotify instance left; a kubelet that comes, of which nothing else tells, is noticed all the same."""

    def exhausted(path):
        raise OSError(errno.EMFILE, "inotify_init1: Too many open files", str(path))

    monkeypatch.setattr(directory, "watch", exhausted)
    monkeypatch.setattr(directory, "POLL", 0.05)
    await until_a_late_kubelet_is_noticed(kubelet, plugin, monkeypatch, caplog)
    assert "raise fs.inotify.max_user_instances" in caplog.text


async def test_serves_again_when_only_its_socket_was_removed(kubelet, plugin):
    """A user cleaned up the directory while the kubelet kept running."""
    async with plugin(two_gpus()):
        await kubelet.until(kubelet.devices)
        (kubelet.directory / "nvidia-gpu.sock").unlink()
        await kubelet.until(lambda: len(kubelet.requests) == 2 and kubelet.devices() == BOTH_WELL)


async def test_registers_again_when_the_kubelet_drops_the_stream(kubelet, plugin):
    """Kubelets lose a plugin that re-registers quickly; nothing in the directory changes then."""
    async with plugin(two_gpus()):
        await kubelet.until(kubelet.devices)
        await kubelet.drop("nvidia.com/gpu")
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)


async def test_a_kubelet_that_drops_us_again_and_again_is_tried_ever_more_seldom(
    kubelet, plugin, monkeypatch, caplog
):
    """It may be another plugin's doing, with which this one is not to fight; but never is it given up."""
    monkeypatch.setattr(server, "PAUSE", 0.01)
    monkeypatch.setattr(server, "SOON", 0.01)

    monkeypatch.setattr(server.log, "warning", lambda message, *values, **_: warnings.append(values))
    warnings: list[tuple[str, float]] = []
    async with plugin(two_gpus()):
        for times in range(1, 6):
            await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
            assert len(kubelet.requests) == times
            await kubelet.drop("nvidia.com/gpu")
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    assert [pause for _, pause in warnings] == [0.01, 0.02, 0.04, 0.08, 0.16]
    assert [
        "does another device plugin on this node register nvidia.com/gpu?" in why for why, _ in warnings
    ] == [
        False,
        False,
        True,
        True,
        True,
    ]
    assert "5 times in a row" in warnings[-1][0]


async def test_a_kubelet_that_refuses_is_quoted_and_tried_again(kubelet, plugin, caplog):
    """What the kubelet says is in the log, and the next try can succeed."""
    kubelet.refuse = (grpc.StatusCode.UNKNOWN, "requested API version is not supported by kubelet")
    async with plugin(two_gpus()):
        await kubelet.until(lambda: kubelet.requests)
        kubelet.refuse = None
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    assert "the kubelet answers UNKNOWN: requested API version is not supported by kubelet" in caplog.text


async def test_a_kubelet_that_never_asks_for_the_devices_is_told_again(kubelet, plugin, monkeypatch, caplog):
    """Kubelets before 1.26 connect to the plugin after they have answered; when that fails, nobody says so."""
    monkeypatch.setattr(server, "STREAM_DEADLINE", 0.1)

    kubelet.deaf = True
    async with plugin(two_gpus()):
        await kubelet.until(lambda: kubelet.plugins)
        while "did not ask for its devices" not in caplog.text:
            await asyncio.sleep(0.01)
        kubelet.deaf = False
        monkeypatch.setattr(server, "STREAM_DEADLINE", 20)
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)


async def test_a_kubelet_that_comes_back_ends_the_pause_before_the_next_try(
    kubelet, plugin, monkeypatch, caplog
):
    """A dead kubelet.sock is tried ever more seldom, but a new one at once."""
    monkeypatch.setattr(server, "PAUSE", 600)

    await kubelet.stop()
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(kubelet.directory / "kubelet.sock"))
    async with plugin(two_gpus()):
        while "trying again in 600 s" not in caplog.text:
            await asyncio.sleep(0.01)
        monkeypatch.setattr(server, "PAUSE", 0.1)  # the new one may not listen yet when it is tried
        await kubelet.start()
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    assert "no kubelet answers at its socket" in caplog.text


async def test_a_new_kubelet_that_does_not_listen_yet_is_tried_again_soon(kubelet, plugin, caplog):
    """Its socket is there a moment before; the long pauses were for the one before it."""

    def dead(path) -> None:
        path.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(str(path))

    await kubelet.stop()
    dead(kubelet.directory / "kubelet.sock")
    async with plugin(two_gpus()):
        while "trying again in 2 s" not in caplog.text:
            await asyncio.sleep(0.01)
        dead(kubelet.directory / "kubelet.sock")
        while caplog.text.count("trying again in") < 3:
            await asyncio.sleep(0.01)
        assert caplog.text.rpartition("trying again in ")[2].startswith("1 s")


async def test_the_newest_of_two_plugins_wins_and_the_other_stands_by(kubelet, plugin, caplog):
    """Two plugins for one resource do not fight; when the newer one goes, the older takes over again."""
    async with plugin(FakeNvml(Gpu("GPU-old"))):
        await kubelet.until(lambda: "GPU-old" in kubelet.devices())
        async with plugin(FakeNvml(Gpu("GPU-new"))):
            await kubelet.until(lambda: "GPU-new" in kubelet.devices())
            while "stands by" not in caplog.text:
                await asyncio.sleep(0.01)
            assert "GPU-new" in kubelet.devices()
        await kubelet.until(lambda: "GPU-old" in kubelet.devices())


async def test_a_newer_plugin_that_the_kubelet_drops_for_our_end_is_registered_again(
    kubelet, plugin, monkeypatch, caplog
):
    """Since 1.25 the kubelet disconnects it if our stream ends after its registration; NVIDIA's would not notice."""

    class Slow(service.Service):
        """Ends its streams late, as on a busy machine."""

        async def changes(self):
            async for change in super().changes():
                yield change
            await asyncio.sleep(0.3)

    async def listed(_request, _context):
        devices = [api.Device(ID="GPU-new", health="Healthy")]
        yield api.ListAndWatchResponse(devices=devices).SerializeToString()
        await asyncio.Event().wait()

    async def options(_request, _context):
        return api.DevicePluginOptions(get_preferred_allocation_available=True)

    monkeypatch.setattr(server, "Service", Slow)
    other = grpc.aio.server()
    handlers = {
        "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(
            options, response_serializer=api.DevicePluginOptions.SerializeToString
        ),
        "ListAndWatch": grpc.unary_stream_rpc_method_handler(listed),
    }
    other.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", handlers),))
    path, name = kubelet.directory / "nvidia-gpu.sock", "nvidia.com/gpu"
    other.add_insecure_port(f"unix:{path}.new")
    async with plugin(FakeNvml(Gpu("GPU-old"))):
        await kubelet.until(lambda: "GPU-old" in kubelet.devices())
        await other.start()
        path.with_name(f"{path.name}.new").rename(path)
        await kubelet.register(name, path.name, await options(None, None))
        await kubelet.until(lambda: "GPU-new" in kubelet.devices())
        dropped = kubelet.plugins[name]
        await kubelet.until(lambda: dropped.ended)
        await kubelet.until(lambda: kubelet.plugins[name] is not dropped and "GPU-new" in kubelet.devices())
        assert not kubelet.plugins[name].ended
        assert "stands by" in caplog.text
    await other.stop(grace=None)


def test_a_process_that_hangs_with_a_full_queue_is_alive(sockets):
    """Looking costs no time: everything else would wait for it too."""
    with socket.socket(socket.AF_UNIX) as hung, socket.socket(socket.AF_UNIX) as first:
        hung.bind(str(sockets / "hung.sock"))
        assert not alive(sockets / "hung.sock")
        hung.listen(0)
        first.connect(str(sockets / "hung.sock"))
        seen = ThreadPoolExecutor().submit(alive, sockets / "hung.sock")
        assert seen.result(timeout=60)


async def test_a_dead_socket_left_behind_is_replaced(kubelet, plugin, sockets):
    """A plugin that was killed leaves its socket; the next one starts all the same."""
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(sockets / "nvidia-gpu.sock"))
    async with plugin(two_gpus()):
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)


async def test_stopping_takes_the_socket_away(kubelet, plugin, sockets):
    """After a clean stop the directory holds what is the kubelet's, and the plugin's own folder, and the stream has ended."""
    async with plugin(two_gpus()):
        await kubelet.until(kubelet.devices)
    assert {path.name for path in sockets.iterdir()} == {"kubelet.sock", FILE_NAME, "gpunode"}
    await kubelet.until(lambda: kubelet.plugins["nvidia.com/gpu"].ended)


async def test_a_socket_directory_that_is_missing_is_waited_for(kubelet, plugin, sockets, caplog):
    """The reason is in the log, with the path."""
    await kubelet.stop()
    kubelet.directory = sockets / "later"
    async with plugin(two_gpus(), kubelet_socket=str(sockets / "later/kubelet.sock")):
        while "No such file or directory" not in caplog.text:
            await asyncio.sleep(0.01)
        kubelet.directory.mkdir()
        await kubelet.start()
        await kubelet.until(lambda: kubelet.devices() == BOTH_WELL)
    assert str(sockets / "later") in caplog.text
