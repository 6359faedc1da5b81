"""Memory limits that the driver holds a container to: whether this node can have them, and how one is asked for.

The driver (R615 on) limits what a cgroup may allocate on a GPU (nvmlDeviceSetMemoryLimits_v1; docs.nvidia.com/deploy/nvml-api).
The NVIDIA Container Toolkit (1.20.1 on) sets that limit before a container starts: its CDI specification has a hook for
every GPU that reads two variables out of the container's environment
(cmd/nvidia-cdi-hook/apply-cuda-memory-limits). Where the hook cannot do it, it fails the container; where there is no
hook, nobody says a word. So the variables are set only where everything that they need was seen.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .devices import explain, text

HOOK = "apply-cuda-memory-limits"
FIRST_BRANCH = 615  # of the driver
CGROUPS = Path("/sys/fs/cgroup")


def variables(mib: int) -> dict[str, str]:
    """What makes the hook limit a container to so much memory. Both, or the one would stand for the other.

    They have to be in the container's CDI device and in the answer to Allocate. The hook takes the first of several
    values that the container's configuration has for a variable (LookupEnv, internal/oci/spec_memory.go); the kubelet
    puts Allocate's before the pod's own (pkg/kubelet/kubelet_pods.go), and containerd adds CDI's behind them (up to
    the 2.2 at hand without taking the pod's out: createEnvCacheMap in opencontainers/runtime-tools). The process in
    the container sees the last. What nobody can be put before is an image's ENV: such an image sets its own limit.
    """
    return {"NVIDIA_GPU_MEMORY_REQUEST": str(mib), "NVIDIA_GPU_MEMORY_LIMIT": str(mib)}


def hooked(edits: Mapping[str, Any]) -> bool:
    """Whether the toolkit's CDI edits for a GPU have the hook. Surer than a version: a hook can be left out."""
    return any(HOOK in hook.get("args", ()) for hook in edits.get("hooks", ()))


def unified(cgroups: Path = CGROUPS) -> bool:
    """Whether the host has cgroup v2 alone; this container's own tree tells (cgroup.controllers is only there)."""
    return (cgroups / "cgroup.controllers").is_file()


def refusal(nvml: Any, uuid: str, cgroup: Path | None) -> str | None:
    """Why the driver limits no memory of this GPU, in its own words; None if it can. Any user may ask.

    It asks what the limit of `cgroup` (of v2, None where there is none) is: a driver or GPU without limits has no answer.
    """
    try:
        driver = text(nvml.nvmlSystemGetDriverVersion())
        if int(driver.partition(".")[0]) < FIRST_BRANCH:
            return f"driver {driver} is too old: {FIRST_BRANCH} is the first that limits memory"
        if cgroup is None:
            return None
        limits = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(cgroup).encode())
        nvml.nvmlDeviceGetMemoryLimits_v1(nvml.nvmlDeviceGetHandleByUUID(uuid), limits)
    except nvml.NVMLError as error:
        return f"the driver limits no memory of this GPU: {explain(error)}"
    return None


def obstacles(*, driver: str | None, cgroup2: bool, cdi: bool, hook: bool) -> str | None:
    """Why a GPU's memory cannot be limited, all reasons at once, each with its way out; None if it can."""
    found = [] if driver is None else [driver]
    if not cgroup2:
        found.append("the host has cgroup v1: the driver limits cgroups of v2 only")
    if not cdi:
        found.append(
            "the device list strategy is not CDI's, so it cannot be seen whether the toolkit has the hook for it; choose cdi-cri or cdi-annotations"
        )
    elif not hook:
        found.append(
            "the toolkit's CDI specification has no hook for it: NVIDIA Container Toolkit 1.20.1 is the first with one"
        )
    return "; ".join(found) or None
