"""Which containers and processes use a GPU without MPS, by the kubelet's checkpoint and by NVML."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from gpunode.contract import offer
from gpunode.contract.checkpoint import entries

from ..gpus.devices import unsupported
from ..gpus.handles import Handles

log = logging.getLogger(__name__)

SERVER = "nvidia-cuda-mps"  # of nvidia-cuda-mps-server: the kernel keeps 15 characters


def owner(record: Path, gpu: str) -> str | None:
    """A sentence that names a container with this GPU by a configuration without MPS; None: there is none.

    The container may be idle. After its pod has ended, the plugin makes the kubelet update the checkpoint soon.
    """
    try:
        found = entries(record)
    except (OSError, ValueError) as error:
        log.warning("cannot read which containers have the GPU: %s: %s", record, error, extra={"gpu": gpu})
        return None
    for one in found:
        claims = [claim for unit_id in one.ids if (claim := offer.claim_of(unit_id))]
        others = [claim for claim in claims if claim.device == gpu and claim.way != offer.MPS]
        if others or any(claim.way == offer.GPUSHARE for claim in claims):  # any GPU may be that one's
            return f"container {one.container} of pod with UID {one.pod} still uses this GPU without MPS"
    return None


def user(handles: Handles, gpu: str, proc: Path = Path("/proc")) -> str | None:
    """A sentence that names a process that uses the GPU and is no MPS server; None: there is none, or it is unknown.

    `proc` has the host's processes. Raises NVMLError.
    """
    named = {pid: _name(proc, pid) for pid in sorted(_pids(handles.nvml, handles.of(gpu)))}
    found = [f"{pid} ({name})" for pid, name in named.items() if name != SERVER]
    if not found:
        return None
    return f"process {found[0]}{f' and {len(found) - 1} more use' if len(found) > 1 else ' uses'} this GPU without MPS"


def _pids(nvml: Any, handle: Any) -> set[int]:
    # The call's version of newer drivers, then that of drivers before R510.
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
        return "?"  # it has just ended
