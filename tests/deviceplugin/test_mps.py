"""Sharing by MPS: what a share is, what its container gets, and when it is offered."""

import asyncio
from pathlib import Path

import grpc
import pynvml
import pytest

from gpunode.contract.config import BadConfig, Config, Share
from gpunode.contract.offer import CannotOffer, ClientLimits, Device, offers
from gpunode.deviceplugin.gpus import GIB, Handles
from gpunode.deviceplugin.kubelet.allocate import grant
from gpunode.deviceplugin.mps.daemons import Supervisor
from gpunode.deviceplugin.mps.modes import ComputeModes
from gpunode.deviceplugin.mps.report import (
    ABSENT,
    DaemonState,
    Follower,
    ReportServer,
    decode,
    encode,
    mode_path,
    status_path,
)
from gpunode.deviceplugin.settings import read

from .conftest import running
from .kubelet import FakeKubelet
from .nvml import FakeNvml, Gpu

GPU = "nvidia.com/gpu"


def device(
    number: int, *, memory: int = 16 * GIB, capability: tuple[int, int] | None = (9, 0), **more
) -> Device:
    uuid = f"GPU-{'abc'[number]}"
    return Device(uuid, str(number), "a GPU", uuid, "0000:3b:00.0", memory, capability=capability, **more)


def share(replicas: int = 4, devices: tuple[str, ...] = (), **more) -> Share:
    return Share(GPU, replicas, GPU, devices, mps=True, **more)


def limits(share: Share, gpu: Device) -> ClientLimits | None:
    return offers([gpu], "none", [share])[GPU][0].mps


# What is asked for.


def test_each_client_gets_an_equal_part_as_with_nvidias_plugin():
    """Memory in whole MiB, threads in whole percent, both rounded down; replicas can differ from GPU to GPU."""
    offered = offers([device(0), device(1), device(2)], "none", [share(3, ("0",)), share(10, ("GPU-b",))])
    limits_by_gpu = {unit.device.uuid: unit.mps for unit in offered[GPU]}
    assert limits_by_gpu == {"GPU-a": ClientLimits(5461, 33), "GPU-b": ClientLimits(1638, 10), "GPU-c": None}
    assert len(offered[GPU]) == 3 + 10 + 1


def test_memory_and_threads_can_be_said_for_each_client(tmp_path):
    """In the file, beside `replicas`; the other one is still an equal part."""
    file = tmp_path / "config.yaml"
    file.write_text(
        "version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 4, devices: [0], memory: 6000},"
        " {name: gpu, replicas: 4, devices: [1], threads: 50}]}}\n"
    )
    shares = read([f"--config-file={file}"], {}).shares
    assert shares == (share(4, ("0",), memory=6000), share(4, ("1",), threads=50))
    assert [limits(share, device(int(share.devices[0]))) for share in shares] == [
        ClientLimits(6000, 25),
        ClientLimits(4096, 50),
    ]


def test_a_gpu_that_does_not_tell_its_memory_has_no_memory_limit():
    """GPUs that share the CPU's memory; the threads are limited all the same."""
    assert limits(share(2), device(0, memory=0)) == ClientLimits(None, 50)


@pytest.mark.parametrize(
    ("share", "gpu", "message"),
    [
        (share(49), device(0), "49 replicas of GPU 0, which takes 48 clients at most"),
        (share(17), device(0, capability=(6, 0)), "17 replicas of GPU 0, which takes 16 clients at most"),
        (share(4, memory=1000), device(0, capability=(6, 0)), "need a GPU of the Volta generation or newer"),
        (share(2), device(0, mig_enabled=True), "MPS is for whole GPUs, but MIG is on for GPU 0"),
    ],
)
def test_what_mps_cannot_do_is_reported(share, gpu, message):
    """Before any pod finds out."""
    with pytest.raises(CannotOffer, match=message):
        limits(share, gpu)


@pytest.mark.parametrize(
    ("flags", "environ", "message"),
    [
        ([], {"MIG_STRATEGY": "mixed"}, "does not work with the MIG strategy mixed"),
        (["--mps-root=mps"], {}, "mpsRoot: expected a path from / on, found 'mps'"),
    ],
)
def test_what_mps_excludes_is_refused_wherever_that_is_set(tmp_path, flags, environ, message):
    """The mixed MIG strategy, as in NVIDIA's plugin, and a root that would be another one in each container."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nsharing: {mps: {resources: [{name: gpu, replicas: 2}]}}\n")
    with pytest.raises(BadConfig, match=message):
        read([f"--config-file={file}", *flags], environ)


def test_the_root_is_set_by_nvidias_names(tmp_path):
    """Flag, variable, file."""
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nflags: {mpsRoot: /srv/file}\n")
    assert read([f"--config-file={file}"], {}).mps_root == "/srv/file"
    assert read([f"--config-file={file}"], {"MPS_ROOT": "/srv/env"}).mps_root == "/srv/env"
    assert read(["--mps-root=/srv/flag"], {"MPS_ROOT": "/srv/env"}).mps_root == "/srv/flag"
    assert read([], {}).mps_root == "/run/nvidia/mps"


# What containers get.


@pytest.mark.parametrize("strategy", ["envvar", "volume-mounts", "cdi-cri", "cdi-annotations"])
def test_a_container_gets_its_gpus_daemon_whatever_tells_it_the_gpu(strategy):
    """The pipe directory, by a variable and at the same path, and the /dev/shm of the daemons; both to write."""
    (unit, *_) = offers([device(0)], "none", [share(2)])[GPU]
    given = grant(GPU, [unit], Config(device_list_strategy=(strategy,)), lambda _: True)
    pipe = "/run/nvidia/mps/GPU-a/pipe"
    assert given.envs["CUDA_MPS_PIPE_DIRECTORY"] == pipe
    assert given.mounts[-2:] == [(pipe, pipe), ("/dev/shm", "/run/nvidia/mps/shm")]


def test_a_whole_gpu_gets_nothing_of_mps():
    """Of a resource whose other GPUs are shared by it."""
    (unit,) = (
        unit for unit in offers([device(0), device(1)], "none", [share(2, ("0",))])[GPU] if not unit.mps
    )
    given = grant(GPU, [unit], Config(), lambda _: True)
    assert (given.envs, given.mounts) == ({"NVIDIA_VISIBLE_DEVICES": "GPU-b"}, [])


# When it is offered.


def test_a_report_comes_out_as_it_went_in():
    """One line each."""
    report = {
        "GPU-a": DaemonState(ClientLimits(8192, 50), None),
        "GPU-b": DaemonState(ClientLimits(None, 10), "it has\nended"),
    }
    assert decode(encode(report)) == report
    assert encode(report).count(b"\n") == 1
    for line in (b"", b"[]\n", b'{"GPU-a": 1}\n'):
        with pytest.raises(ValueError, match=r"not a report|Expecting value"):
            decode(line)


async def test_shares_are_offered_while_their_daemon_serves_with_their_limits(
    kubelet, plugin, sockets, monkeypatch
):
    """Unhealthy from the first list on, with the reason in a refused allocation; Healthy and back with the daemon."""
    monkeypatch.setattr("gpunode.deviceplugin.mps.report.RETRY", 0.05)
    report_server = ReportServer()
    sick, well = (
        {"GPU-a::mps-0": "Unhealthy", "GPU-a::mps-1": "Unhealthy"},
        {"GPU-a::mps-0": "Healthy", "GPU-a::mps-1": "Healthy"},
    )
    both = ClientLimits(8192, 50)

    async def refusal(kubelet: FakeKubelet) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.allocate("GPU-a::mps-0")
        return str(caught.value.details())

    nvml = FakeNvml(Gpu("GPU-a"))
    settings = {"shares": (share(2),), "mps_root": str(sockets), "fail_requests_greater_than_one": True}

    async with plugin(nvml, **settings):
        await kubelet.until(kubelet.devices)
        assert kubelet.plugins[GPU].lists == [sick]  # not for a moment Healthy
        assert ABSENT.words in await refusal(kubelet)
        async with report_server.open(status_path(str(sockets))):
            report_server.publish({"GPU-a": DaemonState(both, "it is being started")})
            report_server.publish({"GPU-a": DaemonState(both, None)})
            await kubelet.until(lambda: kubelet.devices() == well)
            answer = await kubelet.allocate("GPU-a::mps-0")
            pipe = f"{sockets}/GPU-a/pipe"
            assert answer.envs["CUDA_MPS_PIPE_DIRECTORY"] == pipe
            mounts = {(mount.container_path, mount.host_path, mount.read_only) for mount in answer.mounts}
            assert mounts == {(pipe, pipe, False), ("/dev/shm", f"{sockets}/shm", False)}
            report_server.publish({"GPU-a": DaemonState(both, "it has ended by signal 9")})
            await kubelet.until(lambda: kubelet.devices() == sick)
            assert "MPS control daemon: it has ended by signal 9" in await refusal(kubelet)
            report_server.publish({"GPU-a": DaemonState(ClientLimits(4096, 25), None)})
            report_server.publish({"GPU-a": DaemonState(both, None)})
            await kubelet.until(lambda: kubelet.devices() == well)
        await kubelet.until(lambda: kubelet.devices() == sick)
        assert ABSENT.words in await refusal(kubelet)


async def test_other_limits_than_the_configurations_are_not_offered(sockets, tmp_path):
    """A daemon that has not yet followed a change."""
    from gpunode.deviceplugin.state import NodeState

    offered = offers([device(0)], "none", [share(2)])

    state = NodeState()
    follower = Follower(status_path(str(sockets)), state)
    state.offer(offered)
    report_server = ReportServer()
    report_server.publish({"GPU-a": DaemonState(ClientLimits(4096, 25), None)})
    async with report_server.open(status_path(str(sockets))):
        change = state.changed()
        following = asyncio.create_task(follower.run())
        try:
            while "other limits" not in str(state.unhealthy.get("GPU-a", "")):
                await asyncio.wait_for(change.wait(), 60)
                change = state.changed()
        finally:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)


async def test_the_socket_is_gone_with_the_bulletin_and_an_old_one_is_no_hindrance(sockets: Path):
    """A killed process leaves its socket."""
    path = status_path(str(sockets))
    for _ in range(2):
        async with ReportServer().open(path):
            reader, writer = await asyncio.open_unix_connection(path)
            assert decode(await reader.readline()) == {}
            writer.close()
    assert not path.exists()


@pytest.mark.parametrize(("later", "restored"), [(3, 2), (0, 0)], ids=["", "but its owner's mode stays"])
async def test_a_gpu_that_a_killed_process_left_exclusive_is_restored_where_it_is_not_shared_any_more(
    tmp_path, later, restored
):
    """The configuration has changed by the time the container starts again. A GPU that is gone needs nothing."""
    gpu = Gpu("GPU-a", mode=2)
    nvml = FakeNvml(gpu)
    nvml.nvmlInit()
    taken = Handles(nvml)
    modes = ComputeModes(taken, str(tmp_path), tmp_path / "checkpoint")
    for name in ("GPU-a", "GPU-gone"):
        mode_path(str(tmp_path), name).parent.mkdir()
    mode_path(str(tmp_path), "GPU-gone").write_text("0\n")
    supervisor = Supervisor(taken, str(tmp_path), modes, ReportServer())

    await modes.exclusive("GPU-a")
    assert gpu.mode == pynvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS
    gpu.mode = later
    async with running(supervisor.run(Config())):
        while modes.unrestored():
            await asyncio.sleep(0.01)
    assert gpu.mode == restored
