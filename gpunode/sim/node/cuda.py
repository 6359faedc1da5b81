# ruff: noqa: N802 (the names are those of the library)
"""The functions of libcuda.so.1 that vectoradd calls. The vectors are really added, in memory of the simulated GPU.

Every function returns a CUresult and writes its answers through the caller's pointers.
"""

import ctypes
import uuid
from array import array
from typing import Any

from gpunode.sim.node.nvml import Driver

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED, NO_DEVICE, INVALID_DEVICE = 0, 1, 2, 3, 100, 101
NOT_FOUND, SYSTEM_DRIVER_MISMATCH, UNKNOWN = 500, 803, 999
NAMES = {
    INVALID_VALUE: b"CUDA_ERROR_INVALID_VALUE",
    OUT_OF_MEMORY: b"CUDA_ERROR_OUT_OF_MEMORY",
    NOT_INITIALIZED: b"CUDA_ERROR_NOT_INITIALIZED",
    NO_DEVICE: b"CUDA_ERROR_NO_DEVICE",
    INVALID_DEVICE: b"CUDA_ERROR_INVALID_DEVICE",
    NOT_FOUND: b"CUDA_ERROR_NOT_FOUND",
    SYSTEM_DRIVER_MISMATCH: b"CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    UNKNOWN: b"CUDA_ERROR_UNKNOWN",
}
CUDA = {535: 12020, 580: 13000, 590: 13010, 595: 13020}  # driver branch -> the newest CUDA that it serves
ALIGNED = 512


class Cuda:
    """The library, with one context at a time."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._started = False
        self._memory: dict[int, ctypes.Array[Any]] = {}  # by device address
        self._next = 0x7F0000000000
        self._code = b""
        self._device = 0  # the context's

    def cuInit(self, _flags: Any) -> int:
        module = self._driver.module()
        if not module or not self._driver.gpus:
            return NO_DEVICE
        if module != self._driver.version:
            return SYSTEM_DRIVER_MISMATCH
        self._started = True
        return SUCCESS

    def cuGetErrorName(self, code: Any, name: Any) -> int:
        name._obj.value = NAMES.get(code.value)
        return SUCCESS

    def cuDriverGetVersion(self, version: Any) -> int:
        branch = int(self._driver.version.split(".")[0])
        version._obj.value = max(cuda for known, cuda in CUDA.items() if known <= branch or known == 535)
        return SUCCESS

    def cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = len(self._driver.gpus)
        return SUCCESS if self._started else NOT_INITIALIZED

    def cuDeviceGet(self, device: Any, ordinal: Any) -> int:
        device._obj.value = ordinal.value
        return SUCCESS if ordinal.value < len(self._driver.gpus) else INVALID_DEVICE

    def cuDeviceGetName(self, name: Any, _size: Any, device: Any) -> int:
        name.value = self._driver.gpus[device.value].name.encode()
        return SUCCESS

    def cuDeviceGetUuid_v2(self, raw: Any, device: Any) -> int:
        identity = uuid.UUID(self._driver.gpus[device.value].uuid.partition("-")[2])
        ctypes.memmove(raw, identity.bytes, 16)
        return SUCCESS

    def cuDeviceGetAttribute(self, value: Any, _attribute: Any, _device: Any) -> int:
        value._obj.value = 0  # the compute mode: any number of processes
        return SUCCESS

    def cuCtxCreate_v2(self, context: Any, _flags: Any, device: Any) -> int:
        if self._driver.lost(self._driver.gpus[device.value]):
            return UNKNOWN
        context._obj.value, self._device = 1, device.value
        return SUCCESS

    def cuCtxDestroy_v2(self, _context: Any) -> int:
        self._memory.clear()
        return SUCCESS

    def cuModuleLoadDataEx(self, module: Any, code: Any, *_options: Any) -> int:
        self._code, module._obj.value = code.value, 1
        return SUCCESS

    def cuModuleGetFunction(self, function: Any, _module: Any, name: Any) -> int:
        function._obj.value = 1
        # The only kernel that this GPU runs, recognised by its name and its one arithmetic instruction.
        known = name.value == b"vectoradd" and b"add.rn.f32" in self._code
        return SUCCESS if known else NOT_FOUND

    def cuMemGetInfo_v2(self, free: Any, total: Any) -> int:
        total._obj.value = self._driver.gpus[self._device].memory_mib * 1024 * 1024
        free._obj.value = self._free()
        return SUCCESS

    def _free(self) -> int:
        total = self._driver.gpus[self._device].memory_mib * 1024 * 1024
        return total - sum(map(len, self._memory.values()))

    def cuMemAlloc_v2(self, pointer: Any, size: Any) -> int:
        if size.value > self._free():
            return OUT_OF_MEMORY
        pointer._obj.value = self._next
        self._memory[self._next] = ctypes.create_string_buffer(size.value)
        self._next += -(-size.value // ALIGNED) * ALIGNED
        return SUCCESS

    def cuMemFree_v2(self, pointer: Any) -> int:
        return SUCCESS if self._memory.pop(pointer.value, None) is not None else INVALID_VALUE

    def cuMemcpyHtoD_v2(self, pointer: Any, source: Any, size: Any) -> int:
        ctypes.memmove(self._memory[pointer.value], source, size.value)
        return SUCCESS

    def cuMemcpyDtoH_v2(self, target: Any, pointer: Any, size: Any) -> int:
        ctypes.memmove(target, self._memory[pointer.value], size.value)
        return SUCCESS

    def cuLaunchKernel(self, _kernel: Any, *arguments: Any) -> int:
        grid, block, parameters = arguments[0], arguments[3], arguments[8]
        a, b, c = (ctypes.c_uint64.from_address(parameters[n]).value for n in range(3))
        count = min(ctypes.c_uint.from_address(parameters[3]).value, grid.value * block.value)
        left, right = self._floats(a, count), self._floats(b, count)
        sums = array("f", (x + y for x, y in zip(left, right, strict=True)))
        ctypes.memmove(self._memory[c], sums.tobytes(), count * sums.itemsize)
        return SUCCESS

    def cuCtxSynchronize(self) -> int:
        return SUCCESS

    def _floats(self, pointer: int, count: int) -> "array[float]":
        return array("f", bytes(memoryview(self._memory[pointer])[: 4 * count]))
