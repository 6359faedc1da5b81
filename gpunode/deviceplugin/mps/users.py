"""Processes that use a GPU past MPS, as NVML lists them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..devices import unsupported

SERVER = "nvidia-cuda-mps"  # of nvidia-cuda-mps-server: the kernel keeps 15 characters


def users(nvml: Any, gpu: str, proc: Path = Path("/proc")) -> tuple[str, ...]:
    """The processes that have a GPU and are no MPS server, each with its id (of the host, like `proc`) and name.

    Nobody where the driver cannot tell. Raises NVMLError.
    """
    handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
    named = {pid: _name(proc, pid) for pid in sorted(_pids(nvml, handle))}
    return tuple(f"{pid} ({name})" for pid, name in named.items() if name != SERVER)


def _pids(nvml: Any, handle: Any) -> set[int]:
    # The same question in the version of newer drivers, and of those before R510.
    for ask in (nvml.nvmlDeviceGetComputeRunningProcesses_v3, nvml.nvmlDeviceGetComputeRunningProcesses_v2):
        try:
            return {int(one.pid) for one in ask(handle)}
        except nvml.NVMLError as error:
            if not unsupported(nvml, error):
                raise
    return set()


def _name(proc: Path, pid: int) -> str:
    try:
        return (proc / str(pid) / "comm").read_text().strip()
    except OSError:
        return "?"  # it ends just now
