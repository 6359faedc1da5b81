"""The compute mode of GPUs: exclusive while MPS serves, so that no process gets past it, and then as it was before."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path
from typing import Any, Protocol

from ..gpus.devices import explain, unsupported
from ..threads import Calls
from . import files
from .users import owner, user

log = logging.getLogger(__name__)

DEADLINE = 10.0  # seconds that NVML may take


class ModeError(Exception):
    """The compute mode cannot be set; says why."""


class InUse(Exception):
    """Somebody has the GPU whom an exclusive mode would shut out; says who."""


class ComputeModes(Protocol):
    """Sets the compute mode of a GPU. Both raise ModeError."""

    async def exclusive(self, gpu: str) -> None:
        """Raises InUse, too."""

    async def restore(self, gpu: str) -> None: ...


class NvmlModes:
    """By NVML. What a GPU had before is kept in a file, as the process that set it may die without putting it back."""

    def __init__(self, nvml: Any, root: str, record: Path) -> None:
        self._nvml = nvml
        self._calls = Calls()
        self._root = root
        self._record = record  # the kubelet's, of what containers have

    async def exclusive(self, gpu: str) -> None:
        """Let only the MPS server have the GPU. Raises InUse while others have it, who could start no process more."""
        await self._within(self._exclusive, gpu)

    async def restore(self, gpu: str) -> None:
        """Put back what the GPU had before `exclusive`; nothing where it had that already."""
        await self._within(self._restore, gpu)

    async def _within(self, act: Any, gpu: str) -> None:
        try:
            await self._calls.within(DEADLINE, act, gpu)
        except asyncio.TimeoutError:
            raise ModeError(f"NVML does not answer within {DEADLINE:.0f} s about the compute mode") from None
        except OSError as error:
            raise ModeError(f"the compute mode cannot be kept for later: {error}") from None
        except self._nvml.NVMLError as error:
            raise ModeError(f"the compute mode cannot be set: {explain(error)}") from None

    def _exclusive(self, gpu: str) -> None:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByUUID(gpu)
            before = int(self._nvml.nvmlDeviceGetComputeMode(handle))
            if before == self._nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS:
                return
            if who := owner(self._record, gpu) or user(self._nvml, gpu):
                raise InUse(who)
            self._kept(gpu).write_text(f"{before}\n")
            self._nvml.nvmlDeviceSetComputeMode(handle, self._nvml.NVML_COMPUTEMODE_EXCLUSIVE_PROCESS)
        except self._nvml.NVMLError as error:
            if not unsupported(self._nvml, error):
                raise
            self._kept(gpu).unlink(missing_ok=True)
            log.warning("this GPU has no compute modes: processes can get past MPS", extra={"gpu": gpu})

    def _restore(self, gpu: str) -> None:
        try:
            before = int(self._kept(gpu).read_text())
        except (FileNotFoundError, ValueError):
            return
        self._nvml.nvmlDeviceSetComputeMode(self._nvml.nvmlDeviceGetHandleByUUID(gpu), before)
        self._kept(gpu).unlink()

    def _kept(self, gpu: str) -> Path:
        return files.mode(self._root, gpu)
