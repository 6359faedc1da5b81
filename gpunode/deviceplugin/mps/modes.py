"""The compute mode of GPUs: exclusive while MPS serves, so that no process bypasses it; restored afterwards."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Protocol

from ..gpus.devices import explain, unsupported
from ..gpus.handles import Handles
from ..settings import mps_paths
from ..threads import Calls
from .users import owner, user

log = logging.getLogger(__name__)

DEADLINE = 10.0  # seconds that NVML may take


class ModeError(Exception):
    """The compute mode cannot be set; the message has the reason."""


class InUse(Exception):
    """A container or process uses the GPU, and an exclusive mode would lock it out; the message names it."""


class ComputeModes(Protocol):
    """Sets the compute mode of a GPU. Both raise ModeError."""

    async def exclusive(self, gpu: str) -> None:
        """Raises InUse, too."""

    async def restore(self, gpu: str) -> None: ...


class NvmlModes:
    """Sets modes through NVML. The previous mode is kept in a file, in case this process dies before it restores it."""

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
            if who := owner(self._record, gpu) or user(self._handles, gpu):
                raise InUse(who)
            self._kept(gpu).write_text(f"{before}\n")
            self._nvml.nvmlDeviceSetComputeMode(handle, self._nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        except self._nvml.NVMLError as error:
            if not unsupported(self._nvml, error):
                raise
            self._kept(gpu).unlink(missing_ok=True)
            log.warning("this GPU has no compute modes: processes can bypass MPS", extra={"gpu": gpu})

    def _restore(self, gpu: str) -> None:
        try:
            before = int(self._kept(gpu).read_text())
        except (FileNotFoundError, ValueError):
            return
        self._nvml.nvmlDeviceSetComputeMode(self._handles.of(gpu), before)
        self._kept(gpu).unlink()

    def _kept(self, gpu: str) -> Path:
        return mps_paths.mode(self._root, gpu)
