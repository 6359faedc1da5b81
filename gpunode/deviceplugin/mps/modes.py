"""The compute mode of GPUs: exclusive while MPS serves, so that no process bypasses it, once nothing uses the GPU without
MPS (by the kubelet's checkpoint and by NVML); restored afterwards."""

import asyncio
import logging
from pathlib import Path
from typing import Any

from gpunode.contract import offer
from gpunode.contract.checkpoint import entries

from ..gpus import Handles, compute_pids, explain, process_name, unsupported
from ..health import BOOT_ID
from ..threads import Calls
from .report import mode_path

log = logging.getLogger(__name__)

SERVER = "nvidia-cuda-mps"  # of nvidia-cuda-mps-server: the kernel keeps 15 characters


def container_using(record: Path, gpu: str) -> str | None:
    """A sentence that names a container with this GPU by a configuration without MPS; None: there is none.

    The container may be idle. After its pod has ended, the plugin makes the kubelet update the checkpoint soon.
    """
    try:
        records = entries(record)
    except (OSError, ValueError) as error:
        log.warning("cannot read which containers have the GPU: %s: %s", record, error, extra={"gpu": gpu})
        return None
    for entry in records:
        claims = [claim for unit_id in entry.ids if (claim := offer.claim_of(unit_id))]
        others = [claim for claim in claims if claim.device == gpu and claim.way != offer.MPS]
        if others or any(claim.way == offer.GPUSHARE for claim in claims):  # any GPU may be that one's
            return f"container {entry.container} of pod with UID {entry.pod} still uses this GPU without MPS"
    return None


def process_using(handles: Handles, gpu: str, proc: Path = Path("/proc")) -> str | None:
    """A sentence that names a process that uses the GPU and is no MPS server; None: there is none, or it is unknown.

    `proc` has the host's processes. Raises NVMLError.
    """
    named = {pid: process_name(pid, proc) for pid in compute_pids(handles.nvml, handles.of(gpu))}
    processes = [f"{pid} ({name or '?'})" for pid, name in named.items() if name != SERVER]
    if not processes:
        return None
    return f"process {processes[0]}{f' and {len(processes) - 1} more use' if len(processes) > 1 else ' uses'} this GPU without MPS"


DEADLINE = 10.0  # seconds that NVML may take


class ModeError(Exception):
    """The compute mode cannot be set; the message has the reason."""


class InUse(Exception):
    """A container or process uses the GPU, and an exclusive mode would lock it out; the message names it."""


class ComputeModes:
    """Sets modes through NVML. The previous mode is kept in a file, in case this process dies before it restores it. Both
    calls raise ModeError."""

    def __init__(self, handles: Handles, root: str, record: Path) -> None:
        self._handles = handles
        self._nvml = handles.nvml
        self._calls = Calls()
        self._root = root
        self._record = record  # the kubelet's, of what containers have

    async def exclusive(self, gpu: str) -> None:
        """Let only the MPS server use the GPU. Raises InUse while others use it: they could start no more processes."""
        await self._within(self._exclusive, gpu)

    async def restore(self, gpu: str) -> None:
        """Restore the mode from before `exclusive`, if that changed it."""
        await self._within(self._restore, gpu)

    def unrestored(self) -> set[str]:
        """The GPUs whose mode was changed, also by an earlier process, and is not restored yet."""
        return {path.parent.name for path in Path(self._root).glob(mode_path("", "*").as_posix())}

    async def _within(self, act: Any, gpu: str) -> None:
        try:
            await self._calls.within(DEADLINE, act, gpu)
        except asyncio.TimeoutError:
            raise ModeError(f"NVML does not answer within {DEADLINE:.0f} s about the compute mode") from None
        except OSError as error:
            raise ModeError(f"the previous compute mode cannot be saved: {error}") from None
        except self._nvml.NVMLError as error:
            raise ModeError(f"the compute mode cannot be set: {explain(error)}") from None

    def _exclusive(self, gpu: str) -> None:
        try:
            handle = self._handles.of(gpu)
            before = int(self._nvml.nvmlDeviceGetComputeMode(handle))
            if before == self._nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
                return
            if who := container_using(self._record, gpu) or process_using(self._handles, gpu):
                raise InUse(who)
            self._boot_file(gpu).write_text(BOOT_ID.read_text())
            self._mode_file(gpu).write_text(f"{before}\n")
            self._nvml.nvmlDeviceSetComputeMode(handle, self._nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        except self._nvml.NVMLError as error:
            if not unsupported(self._nvml, error):
                raise
            self._mode_file(gpu).unlink(missing_ok=True)
            log.warning("this GPU has no compute modes: processes can bypass MPS", extra={"gpu": gpu})

    def _restore(self, gpu: str) -> None:
        try:
            before: int | None = int(self._mode_file(gpu).read_text())
        except FileNotFoundError:
            return
        except ValueError:
            before = None  # its write was cut off, before the mode was set or at a reboot
        nvml = self._nvml
        boot = self._boot_file(gpu)  # older versions write none
        this_boot = not boot.exists() or boot.read_text() == BOOT_ID.read_text()  # a reboot resets modes
        try:
            handle = self._handles.of(gpu)
            # Another mode is its owner's, who set it since
            mode = int(nvml.nvmlDeviceGetComputeMode(handle))
            if before is not None and this_boot and mode == nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
                nvml.nvmlDeviceSetComputeMode(handle, before)
        except nvml.NVMLError as error:
            # A GPU that is gone has lost its mode with its driver
            if error.value != nvml.NVML_ERROR_NOT_FOUND:
                raise
        self._mode_file(gpu).unlink()
        boot.unlink(missing_ok=True)

    def _mode_file(self, gpu: str) -> Path:
        return mode_path(self._root, gpu)

    def _boot_file(self, gpu: str) -> Path:
        """The boot in which the mode was changed. A file of its own: older versions read a number from the other."""
        return mode_path(self._root, gpu).with_name("boot")
