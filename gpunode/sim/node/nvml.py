# ruff: noqa: N802 (the names are those of the library)
"""The functions of libnvidia-ml.so.1 that the device plugin calls, through its own binding (gpunode/deviceplugin/nvml.py).

Every function returns an nvmlReturn_t and writes its answers through the caller's pointers.
"""

import ctypes
import time
from collections.abc import Callable, Mapping
from itertools import count
from pathlib import Path
from typing import Any

from gpunode.sim.host.machine import SimGpu
from gpunode.sim.host.mig import parts
from gpunode.sim.host.state import State

SUCCESS, UNINITIALIZED, INVALID_ARGUMENT, NOT_FOUND = 0, 1, 2, 6
DRIVER_NOT_LOADED, TIMEOUT, GPU_IS_LOST, LIB_RM_VERSION_MISMATCH = 9, 10, 15, 18
WORDS = {
    UNINITIALIZED: b"Uninitialized",
    INVALID_ARGUMENT: b"Invalid Argument",
    DRIVER_NOT_LOADED: b"Driver Not Loaded",
    TIMEOUT: b"Timeout",
    GPU_IS_LOST: b"GPU is lost",
    LIB_RM_VERSION_MISMATCH: b"Driver/library version mismatch",
}
XID, NO_INSTANCE = 0x8, 0xFFFFFFFF
IDLE = 34  # °C
LOOK = 0.2  # seconds between two looks for an Xid


class Driver:
    """The kernel module of a host, used through a library of the `version` at the container's start."""

    def __init__(self, host: Path, environment: Mapping[str, str]) -> None:
        self._state = State(host)
        self.version = environment["GPUNODE_SIM_LIBRARY"]
        gpus = self._state.machine().gpus
        visible = environment["NVIDIA_VISIBLE_DEVICES"].split(",")
        seen = [gpu for n, gpu in enumerate(gpus) if {"all", gpu.uuid, str(n)} & set(visible)]
        now = self._state.now()
        cut = [part for gpu in gpus for part in parts(gpu, now) if part.uuid in visible]
        self.gpus: tuple[SimGpu, ...] = (*seen, *cut)
        self.minors = {gpu.uuid: number for number, gpu in enumerate(gpus)}

    def module(self) -> str:
        """Version of the loaded kernel module; "" if none is loaded."""
        return self._state.now().modules.get("nvidia", "")

    def mig(self, gpu: SimGpu) -> tuple[SimGpu, ...] | None:
        """The GPU's MIG devices; None where MIG is off."""
        now = self._state.now()
        return parts(gpu, now) if gpu.uuid in now.mig else None

    def lost(self, gpu: SimGpu) -> bool:
        """True if a GPU has fallen off the bus."""
        return gpu.uuid in self._state.now().lost

    def xids(self) -> list[tuple[str, int]]:
        """(GPU's UUID, Xid) of all Xids since the host was made."""
        return self._state.now().xids


SLOTS = 7  # for MIG devices of a GPU
PART = 100


class Nvml:
    """The library. A GPU's handle is 1 + its index among the container's GPUs, that of a MIG device PART times this and 1 + its slot.
    A function that it lacks, as those of NVLinks, an old driver lacks, too."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._started = False
        self._sets: dict[int, tuple[list[str], int]] = {}  # event set -> GPUs, and Xids seen
        self._numbers = count(1)  # of event sets; each GPU's thread makes its own

        def text(code: int) -> bytes:
            return WORDS.get(code, b"Unknown Error")

        self.nvmlErrorString: Callable[[int], bytes] = text  # a function, for its caller sets its restype

    def nvmlInit_v2(self) -> int:
        module = self._driver.module()
        if not module:
            return DRIVER_NOT_LOADED
        if module != self._driver.version:
            return LIB_RM_VERSION_MISMATCH
        self._started = True
        return SUCCESS

    def nvmlShutdown(self) -> int:
        self._started = False
        return SUCCESS

    def nvmlSystemGetDriverVersion(self, text: Any, _size: Any) -> int:
        text.value = self._driver.module().encode()
        return SUCCESS

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self._driver.gpus)
        return SUCCESS if self._started else UNINITIALIZED

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        if index.value >= len(self._driver.gpus):
            return INVALID_ARGUMENT
        return self._handle(index.value, handle)

    def nvmlDeviceGetMigMode(self, handle: Any, now: Any, pending: Any) -> int:
        now._obj.value = pending._obj.value = self._driver.mig(self._gpu(handle)) is not None
        return SUCCESS

    def nvmlDeviceGetMaxMigDeviceCount(self, _handle: Any, count: Any) -> int:
        count._obj.value = SLOTS
        return SUCCESS

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, slot: Any, part: Any) -> int:
        if slot.value >= len(self._driver.mig(self._gpu(handle)) or ()):
            return NOT_FOUND
        _point(part, PART * _number(handle) + 1 + slot.value)
        return SUCCESS

    def nvmlDeviceGetGpuInstanceId(self, handle: Any, number: Any) -> int:
        number._obj.value = _number(handle) % PART
        return SUCCESS

    def nvmlDeviceGetComputeInstanceId(self, _handle: Any, number: Any) -> int:
        number._obj.value = 0
        return SUCCESS

    def nvmlDeviceGetAttributes_v2(self, handle: Any, attributes: Any) -> int:
        attributes._obj.memorySizeMB = self._gpu(handle).memory_mib
        return SUCCESS

    def nvmlDeviceGetUUID(self, handle: Any, text: Any, _size: Any) -> int:
        text.value = self._gpu(handle).uuid.encode()
        return SUCCESS

    def nvmlDeviceGetName(self, handle: Any, text: Any, _size: Any) -> int:
        text.value = self._gpu(handle).name.encode()
        return SUCCESS

    def nvmlDeviceGetPciInfo_v3(self, handle: Any, info: Any) -> int:
        # NVML's domain has eight digits
        info._obj.busId = f"0000{self._gpu(handle).address}".upper().encode()
        return SUCCESS

    def nvmlDeviceGetMinorNumber(self, handle: Any, number: Any) -> int:
        number._obj.value = self._driver.minors[self._gpu(handle).uuid]
        return SUCCESS

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        gpu = self._gpu(handle)
        memory._obj.total = memory._obj.free = gpu.memory_mib * 1024 * 1024
        return GPU_IS_LOST if self._driver.lost(gpu) else SUCCESS

    def nvmlDeviceGetUtilizationRates(self, _handle: Any, rates: Any) -> int:
        rates._obj.gpu = rates._obj.memory = 0
        return SUCCESS

    def nvmlDeviceGetTemperature(self, handle: Any, _sensor: Any, degrees: Any) -> int:
        degrees._obj.value = IDLE
        return GPU_IS_LOST if self._driver.lost(self._gpu(handle)) else SUCCESS

    def nvmlDeviceGetComputeRunningProcesses_v3(self, _handle: Any, count: Any, _processes: Any) -> int:
        count._obj.value = 0
        return SUCCESS

    def nvmlDeviceGetFieldValues(self, _handle: Any, _count: Any, _values: Any) -> int:
        return SUCCESS  # zeros, as they come: the driver asks for no recovery action

    def nvmlEventSetCreate(self, handle: Any) -> int:
        number = next(self._numbers)
        self._sets[number] = ([], len(self._driver.xids()))
        _point(handle, number)
        return SUCCESS

    def nvmlDeviceRegisterEvents(self, handle: Any, _types: Any, events: Any) -> int:
        self._sets[_number(events)][0].append(self._gpu(handle).uuid)
        return SUCCESS

    def nvmlEventSetWait_v2(self, events: Any, data: Any, milliseconds: Any) -> int:
        number, end = _number(events), time.monotonic() + milliseconds.value / 1000
        while time.monotonic() < end:
            watched, seen = self._sets[number]
            for uuid, xid in self._driver.xids()[seen:]:
                seen += 1
                self._sets[number] = (watched, seen)
                if uuid in watched:
                    data._obj.device = 1 + [gpu.uuid for gpu in self._driver.gpus].index(uuid)
                    data._obj.eventType, data._obj.eventData = XID, xid
                    data._obj.gpuInstanceId = data._obj.computeInstanceId = NO_INSTANCE
                    return SUCCESS
            time.sleep(LOOK)
        return TIMEOUT

    def nvmlEventSetFree(self, events: Any) -> int:
        self._sets.pop(_number(events), None)
        return SUCCESS

    def _handle(self, number: int, handle: Any) -> int:
        _point(handle, number + 1)
        return GPU_IS_LOST if self._driver.lost(self._driver.gpus[number]) else SUCCESS

    def _gpu(self, handle: Any) -> SimGpu:
        whole, slot = divmod(_number(handle), PART)
        if not whole:
            return self._driver.gpus[slot - 1]
        return (self._driver.mig(self._driver.gpus[whole - 1]) or ())[slot - 1]


def _point(pointer: Any, number: int) -> None:
    """Store a number in the caller's opaque pointer, as a handle."""
    ctypes.cast(pointer, ctypes.POINTER(ctypes.c_void_p))[0] = number


def _number(pointer: Any) -> int:
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0
