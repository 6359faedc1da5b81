# ruff: noqa: N802 (the names are those of pynvml)
"""A stand-in for the module pynvml: GPUs that a test can make raise Xids, lose, hang and bring back."""

import contextlib
import queue
import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pynvml
from pynvml import NVMLError

from gpunode.deviceplugin.gpus import Handles

GIB = 1024**3


@dataclass(eq=False)
class Mig:
    """One MIG device; its handle is itself."""

    uuid: str
    profile: str = "1g.10gb"
    instance: tuple[int, int] = (1, 0)
    memory_mib: int = 9984
    slices: tuple[int, int] = (1, 1)
    named: bool = True
    error: int | None = None  # of questions about its instances


@dataclass(eq=False)
class Gpu:
    """One GPU; its handle is itself."""

    uuid: str
    name: str = "Tesla P100-PCIE-16GB"
    bus: str = "00000000:3B:00.0"
    minor: int | None = 0  # None: it has no device node
    memory: int | None = 16 * GIB  # None: it shares the host's
    mig: list[Mig] | None = None
    error: int | None = None  # every question about this GPU gets this NVML error
    action: int | None = 0  # the driver's recovery action; None: it reports none
    energy: int | None = None  # mJ since its last reset; None: they are not counted
    remap_failed: bool = False
    ecc: tuple[int, int] | None = (
        None  # errors since the driver's start, corrected and not; None: it counts none
    )
    capability: tuple[int, int] | None = None  # None: it does not say
    mode: int | None = 0  # compute mode; None: it has none
    pids: tuple[int, ...] = ()  # of processes that use it
    lists: int = 3  # the version of the question for them that the driver knows
    events: bool = True
    limits: bool = True  # the driver can limit a cgroup's memory, if its branch can
    nvlinks: tuple[str, ...] = ()  # PCI addresses at the other ends; "" where there is no link of that number
    hang: threading.Event | None = None  # set to let the caller go
    sets: list[queue.Queue[Any]] = field(default_factory=list)
    life: int = 0  # of NVML in which its handle was taken

    def raise_xid(self, number: int, instance: tuple[int, int] = (0xFFFFFFFF, 0xFFFFFFFF)) -> None:
        for events in self.sets:
            events.put(
                SimpleNamespace(
                    device=self,
                    eventType=pynvml.nvmlEventTypeXidCriticalError,
                    eventData=number,
                    gpuInstanceId=instance[0],
                    computeInstanceId=instance[1],
                )
            )


class FakeNvml:
    """The functions of pynvml that the plugin uses, with pynvml's own errors and constants."""

    NVMLError = NVMLError

    def __init__(self, *gpus: Gpu, init_error: int | None = None, driver: str = "580.178.04") -> None:
        self.gpus = list(gpus)
        self.driver = driver
        self.init_error = init_error
        self.inits = 0
        self.life = 0  # how often it was started after an end

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("NVML_", "nvmlEvent", "c_nvml")):
            return getattr(pynvml, name)
        raise AttributeError(name)

    def _ask(self, gpu: Gpu) -> Gpu:
        if gpu.hang is not None:
            gpu.hang.wait(30)
        if gpu.error is not None:
            raise NVMLError(gpu.error)
        assert gpu.life == self.life, "a handle of an earlier life of NVML"
        return gpu

    def nvmlInit(self) -> None:
        if self.init_error is not None:
            raise NVMLError(self.init_error)
        self.life += not self.inits
        self.inits += 1

    def nvmlShutdown(self) -> None:
        self.inits -= 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return self.driver

    def nvmlDeviceGetCount(self) -> int:
        if not self.inits:
            raise NVMLError(pynvml.NVML_ERROR_UNINITIALIZED)
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Gpu:
        if index >= len(self.gpus):  # it has gone since they were counted
            raise NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        gpu = self.gpus[index]
        gpu.life = self.life
        return self._ask(gpu)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Gpu:
        """As nvml.h has it: GPU_IS_LOST "if any GPU has fallen off the bus"."""
        lost = any(gpu.error == pynvml.NVML_ERROR_GPU_IS_LOST for gpu in self.gpus)
        for index, gpu in enumerate(self.gpus):
            if gpu.uuid == uuid and not lost:
                return self.nvmlDeviceGetHandleByIndex(index)
        raise NVMLError(pynvml.NVML_ERROR_GPU_IS_LOST if lost else pynvml.NVML_ERROR_NOT_FOUND)

    def nvmlDeviceGetUUID(self, handle: Gpu | Mig) -> str:
        return handle.uuid

    def nvmlDeviceGetName(self, handle: Gpu | Mig) -> str:
        if isinstance(handle, Mig):
            return f"NVIDIA H100 80GB HBM3 MIG {handle.profile}" if handle.named else "NVIDIA H100 80GB HBM3"
        return handle.name

    def nvmlDeviceGetPciInfo(self, handle: Gpu) -> Any:
        return SimpleNamespace(busId=handle.bus)

    def nvmlDeviceGetMinorNumber(self, handle: Gpu) -> int:
        if handle.minor is None:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle.minor

    def nvmlDeviceGetMemoryInfo(self, handle: Gpu) -> Any:
        if self._ask(handle).memory is None:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return SimpleNamespace(total=handle.memory, used=4 * GIB, free=handle.memory - 5 * GIB, reserved=GIB)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Gpu) -> tuple[int, int]:
        if handle.capability is None:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle.capability

    def nvmlDeviceGetComputeMode(self, handle: Gpu) -> int:
        if handle.mode is None:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle.mode

    def nvmlDeviceSetComputeMode(self, handle: Gpu, mode: int) -> None:
        self._ask(handle).mode = mode

    def nvmlDeviceGetUtilizationRates(self, handle: Gpu) -> Any:
        return SimpleNamespace(gpu=97, memory=40) if self._ask(handle) else None

    def nvmlDeviceGetTemperature(self, handle: Gpu, sensor: int) -> int:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Gpu) -> list[Any]:
        return self._processes(handle, 3)

    def nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Gpu) -> list[Any]:
        return self._processes(handle, 3)

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Gpu) -> list[Any]:
        return self._processes(handle, 2)

    def _processes(self, gpu: Gpu, version: int) -> list[Any]:
        if version > self._ask(gpu).lists:
            raise NVMLError(pynvml.NVML_ERROR_FUNCTION_NOT_FOUND)
        return [SimpleNamespace(pid=pid) for pid in gpu.pids]

    def nvmlDeviceGetMigMode(self, handle: Gpu) -> list[int]:
        if handle.mig is None:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return [1, 1]

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Gpu) -> int:
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Gpu, index: int) -> Mig:
        assert handle.mig is not None
        if index >= len(handle.mig):
            raise NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return handle.mig[index]

    def nvmlDeviceGetGpuInstanceId(self, handle: Mig) -> int:
        if handle.error is not None:
            raise NVMLError(handle.error)
        return handle.instance[0]

    def nvmlDeviceGetComputeInstanceId(self, handle: Mig) -> int:
        return handle.instance[1]

    def nvmlDeviceGetAttributes_v2(self, handle: Mig) -> Any:
        return SimpleNamespace(
            memorySizeMB=handle.memory_mib,
            gpuInstanceSliceCount=handle.slices[0],
            computeInstanceSliceCount=handle.slices[1],
        )

    def nvmlDeviceGetFieldValues(self, handle: Gpu, fields: list[int]) -> list[Any]:
        if fields[0] == (pynvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, 0xFFFFFFFF):
            code = pynvml.NVML_SUCCESS if handle.nvlinks else pynvml.NVML_ERROR_NOT_SUPPORTED
            return [SimpleNamespace(nvmlReturn=code, value=SimpleNamespace(ullVal=kib)) for kib in (3, 5)]
        assert fields == [pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION]
        result = pynvml.NVML_ERROR_NOT_SUPPORTED if handle.action is None else pynvml.NVML_SUCCESS
        return [SimpleNamespace(nvmlReturn=result, value=SimpleNamespace(uiVal=handle.action))]

    def nvmlDeviceGetClockInfo(self, handle: Gpu, clock: int) -> int:
        return {pynvml.NVML_CLOCK_SM: 1480, pynvml.NVML_CLOCK_MEM: 715}[clock]

    def nvmlDeviceGetPowerUsage(self, handle: Gpu) -> int:
        return 35_500 if self._ask(handle) else 0

    def nvmlDeviceGetTotalEccErrors(self, handle: Gpu, kind: int, counter: int) -> int:
        assert counter == pynvml.NVML_VOLATILE_ECC
        if handle.ecc is None:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return handle.ecc[kind]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Gpu) -> int:
        if handle.energy is None:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return self._ask(handle).energy or 0

    def nvmlDeviceGetRemappedRows(self, handle: Gpu) -> tuple[int, int, int, int]:
        return (0, 0, 0, int(handle.remap_failed))

    def nvmlDeviceGetMemoryLimits_v1(self, handle: Gpu, limits: Any) -> None:
        if not handle.limits:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        assert limits.nameSpace == "/sys/fs/cgroup"
        limits.hardLimit = pynvml.NVML_DEVICE_MEMORY_LIMIT_MAX

    def nvmlDeviceGetTopologyCommonAncestor(self, gpu: Gpu, other: Gpu) -> int:
        return pynvml.NVML_TOPOLOGY_SYSTEM

    def nvmlDeviceGetNvLinkState(self, handle: Gpu, link: int) -> int:
        if link >= len(self._ask(handle).nvlinks):
            raise NVMLError(pynvml.NVML_ERROR_INVALID_ARGUMENT)
        if not handle.nvlinks[link]:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 1

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Gpu, link: int) -> Any:
        return SimpleNamespace(busId=handle.nvlinks[link])

    def nvmlEventSetCreate(self) -> queue.Queue[Any]:
        return queue.Queue()

    def nvmlDeviceRegisterEvents(self, handle: Gpu, types: int, events: queue.Queue[Any]) -> None:
        assert types & pynvml.nvmlEventTypeXidCriticalError
        if not self._ask(handle).events:
            raise NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        handle.sets.append(events)

    def nvmlEventSetWait_v2(self, events: queue.Queue[Any], milliseconds: int) -> Any:
        """One that is lost fails it for all."""
        end, lost = time.monotonic() + milliseconds / 1000, pynvml.NVML_ERROR_GPU_IS_LOST
        while time.monotonic() < end:
            with contextlib.suppress(queue.Empty):
                event = events.get(timeout=0.005)
                if isinstance(event, Exception):
                    raise event
                return event
            if any(gpu.error == lost for gpu in self.gpus if events in gpu.sets):
                raise NVMLError(lost)
        raise NVMLError(pynvml.NVML_ERROR_TIMEOUT)

    def nvmlEventSetFree(self, events: queue.Queue[Any]) -> None:
        for gpu in self.gpus:
            if events in gpu.sets:
                gpu.sets.remove(events)


def handles(*gpus: Gpu, **settings: Any) -> Handles:
    """Of these GPUs, by a FakeNvml that runs."""
    nvml = FakeNvml(*gpus, **settings)
    nvml.nvmlInit()
    return Handles(nvml)
