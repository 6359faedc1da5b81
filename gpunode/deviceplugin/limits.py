"""Memory limits that the driver enforces on containers: whether this node supports them, and how to request one.

The driver (R615 on) limits what a cgroup may allocate on a GPU (nvmlDeviceSetMemoryLimits_v1; docs.nvidia.com/deploy/nvml-api).
The NVIDIA Container Toolkit (1.20.1 on) sets that limit before a container starts: its CDI specification has a hook for
every GPU that reads two variables out of the container's environment
(cmd/nvidia-cdi-hook/apply-cuda-memory-limits). If the hook cannot set the limit, it fails the container; without
the hook, nothing reports that. So the variables are set only where all requirements are known to be met.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .gpus import Handles, explain, text

HOOK = "apply-cuda-memory-limits"
FIRST_BRANCH = 615  # of the driver
CGROUPS = Path("/sys/fs/cgroup")
# Runs a hook ($2 …) on a bundle with only a configuration ($1): the runtime's state on standard input names the
# container's bundle, and this replaces it.
_SHOWN = """set -e
bundle=$(mktemp -d "${TMPDIR:-/run}/gpunode-limits.XXXXXX")
trap 'rm -r "$bundle"' EXIT
printf %s "$1" >"$bundle/config.json"
shift
sed 's|"bundle": *"[^"]*"|"bundle":"'"$bundle"'"|' | "$@"
"""
_PATH = "PATH=/usr/sbin:/usr/bin:/sbin:/bin"  # hooks start without it


def variables(mib: int) -> dict[str, str]:
    """The variables that make the hook limit a container's memory. Both, because a missing one defaults to the other.

    They go into the container's CDI device, for the hook of `fixed` and for the program in the container, which sees the
    last value of a variable; and into the answer to Allocate, for a hook that the nvidia runtime adds on its own.
    """
    return {"NVIDIA_GPU_MEMORY_REQUEST": str(mib), "NVIDIA_GPU_MEMORY_LIMIT": str(mib)}


def bind_hook(hook: Mapping[str, Any], env: Mapping[str, str]) -> Mapping[str, Any]:
    """The toolkit's hook for memory limits, bound to these variables whatever the container's configuration says; any
    other hook, or this one without such variables, unchanged.

    On its own, the hook takes the first of several values of a variable in the container's configuration (LookupEnv in
    internal/oci/spec_memory.go of the toolkit), and an image's ENV comes first.
    """
    if HOOK not in hook.get("args", ()) or not env.keys() & variables(0).keys():
        return hook
    own = {
        "ociVersion": "1.0.2",
        "process": {"cwd": "/", "env": [f"{name}={env[name]}" for name in variables(0)]},
    }
    _, *args = hook["args"]  # the first is the program's own name
    arguments = ["sh", "-c", _SHOWN, HOOK, json.dumps(own), hook["path"], *args]
    return {**hook, "path": "/bin/sh", "args": arguments, "env": [_PATH, *hook.get("env", ())]}


def has_hook(edits: Mapping[str, Any]) -> bool:
    """True if the toolkit's CDI edits for a GPU have the hook. Not by version: a hook can be disabled."""
    return any(HOOK in hook.get("args", ()) for hook in edits.get("hooks", ()))


def only_cgroup2(cgroups: Path = CGROUPS) -> bool:
    """True if the host has only cgroup v2, by this container's own tree (v1 has no cgroup.controllers)."""
    return (cgroups / "cgroup.controllers").is_file()


def refusal(handles: Handles, uuid: str, cgroup: Path | None) -> str | None:
    """Why the driver cannot limit this GPU's memory; None if it can. Works for any user.

    Reads the limit of `cgroup` (v2; None: there is none): a driver or GPU without limits returns an error.
    """
    nvml = handles.nvml
    try:
        driver = text(nvml.nvmlSystemGetDriverVersion())
        if int(driver.partition(".")[0]) < FIRST_BRANCH:
            return f"driver {driver} is too old: {FIRST_BRANCH} is the first that limits memory"
        if cgroup is None:
            return None
        limits = nvml.c_nvmlGetMemoryLimits_v1_t(nameSpace=str(cgroup).encode())
        nvml.nvmlDeviceGetMemoryLimits_v1(handles.of(uuid), limits)
    except nvml.NVMLError as error:
        return f"the driver limits no memory of this GPU: {explain(error)}"
    return None


def obstacles(*, driver: str | None, cgroup2: bool, cdi: bool, hook: bool) -> str | None:
    """All reasons why a GPU's memory cannot be limited, each with its fix; None if it can."""
    reasons = [] if driver is None else [driver]
    if not cgroup2:
        reasons.append("the host has cgroup v1: the driver limits cgroups of v2 only")
    if not cdi:
        reasons.append("the device list strategy is not CDI's: choose cdi-cri or cdi-annotations")
    elif not hook:
        reasons.append(
            "the toolkit's CDI specification has no hook for it: NVIDIA Container Toolkit 1.20.1 is the first with one"
        )
    return "; ".join(reasons) or None
