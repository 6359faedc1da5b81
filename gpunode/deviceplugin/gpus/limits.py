"""Memory limits that the driver holds a container to: whether this node can have them, and how one is asked for.

The driver (R615 on) limits what a cgroup may allocate on a GPU (nvmlDeviceSetMemoryLimits_v1; docs.nvidia.com/deploy/nvml-api).
The NVIDIA Container Toolkit (1.20.1 on) sets that limit before a container starts: its CDI specification has a hook for
every GPU that reads two variables out of the container's environment
(cmd/nvidia-cdi-hook/apply-cuda-memory-limits). Where the hook cannot do it, it fails the container; where there is no
hook, nobody says a word. So the variables are set only where everything that they need was seen.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .devices import explain, text

HOOK = "apply-cuda-memory-limits"
FIRST_BRANCH = 615  # of the driver
CGROUPS = Path("/sys/fs/cgroup")
# Runs a hook ($2 …) on a bundle that holds nothing but a configuration ($1): the state that the runtime hands to hooks on
# their standard input names the container's bundle, and here that one.
_SHOWN = """set -e
bundle=$(mktemp -d "${TMPDIR:-/run}/gpunode-limits.XXXXXX")
trap 'rm -r "$bundle"' EXIT
printf %s "$1" >"$bundle/config.json"
shift
sed 's|"bundle": *"[^"]*"|"bundle":"'"$bundle"'"|' | "$@"
"""
_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"  # hooks begin with none


def variables(mib: int) -> dict[str, str]:
    """What makes the hook limit a container to so much memory. Both, or the one would stand for the other.

    In the container's CDI device, for the hook as `fixed` has it and for the program in the container, which sees the last
    value of a variable; and in the answer to Allocate, for a hook that the nvidia runtime adds by itself.
    """
    return {"NVIDIA_GPU_MEMORY_REQUEST": str(mib), "NVIDIA_GPU_MEMORY_LIMIT": str(mib)}


def fixed(hook: Mapping[str, Any], env: Mapping[str, str]) -> Mapping[str, Any]:
    """The toolkit's hook for memory limits, which goes by these variables whatever the container's configuration says;
    any other hook, and without such variables this one too, as it is.

    By itself it takes the first of several values that the container's configuration has for a variable (LookupEnv in
    internal/oci/spec_memory.go of the toolkit), and those that an image sets by ENV come before everybody's.
    """
    if HOOK not in hook.get("args", ()) or not env.keys() & variables(0).keys():
        return hook
    own = {
        "ociVersion": "1.0.2",
        "process": {"cwd": "/", "env": [f"{name}={env[name]}" for name in variables(0)]},
    }
    _, *args = hook["args"]  # the first is the program's own name
    words = ["sh", "-c", _SHOWN, HOOK, json.dumps(own), hook["path"], *args]
    return {**hook, "path": "/bin/sh", "args": words, "env": [_PATH, *hook.get("env", ())]}


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
