"""Memory limits by the driver: asked for where all of it can be had, and said why where not."""

import errno
import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Any

import grpc
import pytest
from pynvml import NVML_ERROR_GPU_IS_LOST

from gpunode.contract.config import GPU_MEM, MemorySharing
from gpunode.contract.offer import Device
from gpunode.deviceplugin import cdi, limits
from gpunode.deviceplugin.cdi import KIND
from gpunode.deviceplugin.cluster.events import Snapshot, events_between
from gpunode.deviceplugin.gpus import GIB
from gpunode.deviceplugin.metrics import render, state_samples
from gpunode.deviceplugin.state import NodeState

from .nvml import FakeNvml, Gpu, handles
from .test_cdi import named, put, toolkit

R615 = "615.71.05"
HOOK = {
    # as nvidia-ctk 1.20.1 writes it
    "hookName": "createRuntime",
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "apply-cuda-memory-limits", "--driver-root", "/", "--gpu-id", "GPU-a"],
    "env": ["NVIDIA_CTK_DEBUG=false"],
}
UNTOLD = "the driver does not enforce memory limits, so containers may exceed their share: "


@pytest.fixture
def cgroup2(monkeypatch) -> None:
    monkeypatch.setattr(limits, "only_cgroup2", lambda: True)


def settings(directory: Path, **more: Any) -> dict[str, Any]:
    common = {
        "memory": MemorySharing(),
        "device_list_strategy": ("cdi-cri",),
        "cdi_directory": str(directory),
    }
    return {**common, **more}


# What is needed.


@pytest.mark.parametrize(
    ("lacks", "message"),
    [
        ({}, None),
        ({"driver": "driver 580 is too old"}, "driver 580 is too old"),
        ({"cgroup2": False}, "the host has cgroup v1: the driver limits cgroups of v2 only"),
        ({"cdi": False, "hook": False}, "choose cdi-cri or cdi-annotations"),
        ({"hook": False}, "NVIDIA Container Toolkit 1.20.1 is the first with one"),
    ],
)
def test_everything_that_is_missing_is_named(lacks, message):
    """Driver, kernel, toolkit, strategy."""
    why = limits.obstacles(**{"driver": None, "cgroup2": True, "cdi": True, "hook": True, **lacks})
    assert why == message if message is None else message in why


def test_all_reasons_are_reported_at_once():
    """Nobody is to upgrade a driver only to read the next reason."""
    why = limits.obstacles(driver="driver 580 is too old", cgroup2=False, cdi=True, hook=False)
    assert [word in why for word in ("driver 580", "cgroup v1", "1.20.1")] == [True] * 3


def test_the_hook_is_seen_in_the_toolkits_edits():
    """By its name among the arguments; other hooks are none."""
    other = {**HOOK, "args": ["nvidia-cdi-hook", "update-ldcache"]}
    assert limits.has_hook({"hooks": [other, HOOK]})
    assert not limits.has_hook({"hooks": [other]})
    assert not limits.has_hook({"deviceNodes": [{"path": "/dev/nvidia0"}]})


def test_the_hook_is_shown_the_plugins_limit_and_nothing_of_the_container(tmp_path):
    """It is run for real: what it finds in the bundle that its input names, its other words, and its exit status."""
    hook = tmp_path / "nvidia-cdi-hook"
    hook.write_text(
        """#!/usr/bin/env python3
import json, sys
state = json.load(sys.stdin)
config = json.load(open(state["bundle"] + "/config.json"))
print(json.dumps([state["pid"], state["annotations"], config["process"]["env"], sys.argv[1:]]))
sys.exit(3)
"""
    )
    hook.chmod(0o755)
    bound = limits.bind_hook({**HOOK, "path": str(hook)}, {**limits.variables(4096), "OTHER": "x"})
    env = dict(line.split("=", 1) for line in bound["env"])
    assert env == {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "NVIDIA_CTK_DEBUG": "false"}
    annotations = {"bundle": "/evil", 'a"bundle":"b': "c"}
    state = {
        "ociVersion": "1.2.0",
        "id": "x",
        "pid": 7,
        "bundle": "/run/their/bundle",
        "annotations": annotations,
    }
    for stdin in (json.dumps(state), json.dumps(state, separators=(",", ":"))):
        ran = subprocess.run(
            [bound["path"], *bound["args"][1:]],
            input=stdin,
            capture_output=True,
            text=True,
            env={**env, "PATH": os.environ["PATH"], "TMPDIR": str(tmp_path)},
            check=False,
        )
        assert ran.returncode == 3, ran
        assert json.loads(ran.stdout) == [
            7,
            annotations,
            ["NVIDIA_GPU_MEMORY_REQUEST=4096", "NVIDIA_GPU_MEMORY_LIMIT=4096"],
            HOOK["args"][1:],
        ]
        assert list(tmp_path.iterdir()) == [hook]  # nothing is left


def test_other_hooks_and_other_containers_are_left_alone():
    """A hook without the words, and an allocation without a limit."""
    other = {"hookName": "createContainer", "path": "/x", "args": ["x", "update-ldcache"]}
    assert limits.bind_hook(other, limits.variables(1)) is other
    assert limits.bind_hook(HOOK, {"A": "1"}) is HOOK


def test_cgroup_v2_alone_counts(tmp_path):
    """Where v1 is mounted, v2's tree, if there, lies one floor below."""
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified/cgroup.controllers").touch()
    assert not limits.only_cgroup2(tmp_path)
    (tmp_path / "cgroup.controllers").touch()
    assert limits.only_cgroup2(tmp_path)


@pytest.mark.parametrize(
    ("taken", "message"),
    [
        (handles(Gpu("GPU-a"), driver=R615), None),
        (handles(Gpu("GPU-a")), "driver 580.178.04 is too old: 615 is the first that limits memory"),
        (
            handles(Gpu("GPU-a", limits=False), driver=R615),
            "the driver limits no memory of this GPU: NVML: Not Supported",
        ),
        (handles(Gpu("GPU-a", error=NVML_ERROR_GPU_IS_LOST), driver=R615), "GPU is lost"),
    ],
)
def test_the_driver_is_asked_itself(taken, message):
    """By its branch, and then for this very GPU."""
    why = limits.refusal(taken, "GPU-a", limits.CGROUPS)
    assert why is None if message is None else message in why


def test_a_driver_is_not_asked_about_a_cgroup_that_is_not_there():
    """It would call the path wrong, which says nothing of the driver."""
    assert limits.refusal(handles(Gpu("GPU-a", limits=False), driver=R615), "GPU-a", None) is None


# What comes of it.


async def test_where_all_is_there_a_container_is_limited_by_a_cdi_device_of_its_own(
    kubelet, plugin, tmp_path, cgroup2, caplog
):
    """Both variables, in MiB, before the pod's own (Allocate) and behind them (CDI): the hook reads the first."""
    put(tmp_path, toolkit("GPU-a", hooks=[HOOK]))
    caplog.set_level("INFO")
    nvml = FakeNvml(Gpu("GPU-a", memory=8 * GIB), driver=R615)

    async with plugin(nvml, **settings(tmp_path, device_list_strategy=("cdi-cri", "cdi-annotations"))):
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        ids = list(kubelet.devices(GPU_MEM))
        answer = await kubelet.allocate(*ids[2:5], resource=GPU_MEM)
        name = "allocation-GPU-a:1024:2-3"
        assert [device.name for device in answer.cdi_devices] == [f"{KIND}={name}"]
        assert answer.annotations == {"cdi.k8s.io/gpunode_aliyun.com_gpu-mem": f"{KIND}={name}"}
        assert answer.envs["NVIDIA_GPU_MEMORY_REQUEST"] == "3072"
        assert answer.envs["NVIDIA_GPU_MEMORY_LIMIT"] == "3072"
        edits = named(tmp_path)[name]
        assert edits["env"] == ["NVIDIA_GPU_MEMORY_REQUEST=3072", "NVIDIA_GPU_MEMORY_LIMIT=3072"]
        assert edits["hooks"] == [limits.bind_hook(HOOK, limits.variables(3072))]
    assert "the driver enforces memory limits" in caplog.text


async def test_a_container_that_starts_again_finds_its_device_again(kubelet, plugin, tmp_path, cgroup2):
    """After a reboot /var/run/cdi is empty, and the kubelet, which remembers what it was given, allocates nothing."""
    put(tmp_path, toolkit("GPU-a", hooks=[HOOK]))
    nvml = FakeNvml(Gpu("GPU-a", memory=8 * GIB), driver=R615)

    async with plugin(nvml, **settings(tmp_path)):
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        assert kubelet.requests[0].options.pre_start_required
        await kubelet.allocate("GPU-a:1024:2", "GPU-a:1024:3", resource=GPU_MEM)
        before = named(tmp_path)["allocation-GPU-a:1024:2-2"]
        (tmp_path / cdi.FILE).unlink()
        await kubelet.pre_start("GPU-a:1024:2", "GPU-a:1024:3", resource=GPU_MEM)
        assert named(tmp_path)["allocation-GPU-a:1024:2-2"] == before
        (tmp_path / "nvidia.yaml").unlink()
        with pytest.raises(
            grpc.aio.AioRpcError, match="its memory limit cannot be set: no CDI specification"
        ):
            await kubelet.pre_start("GPU-a:1024:2", "GPU-a:1024:3", resource=GPU_MEM)


@pytest.mark.parametrize(
    ("driver", "hooks", "strategy", "message"),
    [
        ("580.178.04", [HOOK], "cdi-cri", "driver 580.178.04 is too old"),
        (R615, [], "cdi-cri", "NVIDIA Container Toolkit 1.20.1 is the first with one"),
        (R615, [HOOK], "envvar", "the device list strategy is not CDI's: choose"),
    ],
)
async def test_where_something_is_missing_the_container_runs_and_the_log_says_why(
    kubelet, plugin, tmp_path, cgroup2, caplog, driver, hooks, strategy, message
):
    """The hook would fail the container; so no variable is set."""
    put(tmp_path, toolkit("GPU-a", **({"hooks": hooks} if hooks else {})))
    nvml = FakeNvml(Gpu("GPU-a", memory=8 * GIB), driver=driver)

    async with plugin(nvml, **settings(tmp_path, device_list_strategy=(strategy,))):
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        answer = await kubelet.allocate("GPU-a:1024:2", resource=GPU_MEM)
        assert not [key for key in answer.envs if key.startswith("NVIDIA_GPU_MEMORY")]
        assert [device.name for device in answer.cdi_devices] == (
            [f"{KIND}=GPU-a"] if strategy == "cdi-cri" else []
        )
    assert caplog.text.count(UNTOLD) == 1
    assert message in caplog.text


async def test_a_gpu_that_cannot_is_no_others_trouble(kubelet, plugin, tmp_path, cgroup2, caplog):
    """One of two: the other's containers are limited."""
    put(tmp_path, toolkit("GPU-a", "GPU-b", hooks=[HOOK]))
    nvml = FakeNvml(Gpu("GPU-a", limits=False), Gpu("GPU-b", minor=1), driver=R615)

    async with plugin(nvml, **settings(tmp_path)):
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        plain = await kubelet.allocate("GPU-a:1024:0", resource=GPU_MEM)
        made = await kubelet.allocate("GPU-b:1024:0", resource=GPU_MEM)
        assert [plain.cdi_devices[0].name, made.cdi_devices[0].name] == [
            f"{KIND}=GPU-a",
            f"{KIND}=allocation-GPU-b:1024:0-1",
        ]
    assert UNTOLD + "the driver limits no memory of this GPU" in caplog.text


async def test_gpus_are_asked_side_by_side(kubelet, plugin, tmp_path, cgroup2, monkeypatch):
    """Some that hang delay the offer by one deadline: here none answers before both were asked."""
    together = threading.Barrier(2)

    def refusal(*_: object) -> None:
        together.wait(5)

    monkeypatch.setattr(limits, "refusal", refusal)
    put(tmp_path, toolkit("GPU-a", "GPU-b", hooks=[HOOK]))

    async with plugin(FakeNvml(Gpu("GPU-a"), Gpu("GPU-b", minor=1), driver=R615), **settings(tmp_path)):
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        assert not together.broken


async def test_a_limit_that_cannot_be_written_refuses_the_container(
    kubelet, plugin, tmp_path, cgroup2, monkeypatch
):
    """Without it, it could take what others were promised. The reason is in the pod's event; the next try may work."""
    put(tmp_path, toolkit("GPU-a", hooks=[HOOK]))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with plugin(FakeNvml(Gpu("GPU-a"), driver=R615), **settings(tmp_path)):
        await kubelet.until(lambda: kubelet.devices(GPU_MEM))
        with monkeypatch.context() as patched:
            patched.setattr(cdi.os, "fsync", full)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await kubelet.allocate("GPU-a:1024:0", resource=GPU_MEM)
        assert "its memory limit cannot be set: cannot write" in caught.value.details()
        assert "No space left on device" in caught.value.details()
        assert (await kubelet.allocate("GPU-a:1024:0", resource=GPU_MEM)).cdi_devices


async def test_whole_gpus_are_not_asked_about(kubelet, plugin, tmp_path, caplog):
    """Who does not share by memory hears nothing of limits."""
    async with plugin(FakeNvml(Gpu("GPU-a"))):
        await kubelet.until(kubelet.devices)
    assert UNTOLD not in caplog.text


def test_the_metrics_say_whether_and_why_not():
    """One gauge for each GPU that is shared by memory."""
    state = NodeState()
    state.memory_limits = {"GPU-a": None, "GPU-b": "driver 580 is too old"}
    lines = render(state_samples(state)).splitlines()
    assert 'gpunode_device_plugin_memory_limited{gpu="GPU-a",why=""} 1' in lines
    assert 'gpunode_device_plugin_memory_limited{gpu="GPU-b",why="driver 580 is too old"} 0' in lines


def test_the_node_says_so_in_an_event():
    """Once for each GPU and reason; nothing where limits are enforced."""
    gpu = Device("GPU-a", "0", "H100", "GPU-a", "0000:3b:00.0", GIB)
    seen = Snapshot(devices={"GPU-a": gpu}, memory_limits={"GPU-a": "the host has cgroup v1"})
    (event,) = events_between(Snapshot(devices=seen.devices), seen)
    assert (event.reason, event.type) == ("GPUMemoryNotLimited", "Warning")
    assert "GPU 0 (H100, 0000:3b:00.0, GPU-a) is shared by memory, and containers may exceed" in event.message
    assert event.message.endswith("the host has cgroup v1")
    assert events_between(seen, seen) == []
    assert events_between(seen, Snapshot(devices=seen.devices, memory_limits={"GPU-a": None})) == []
