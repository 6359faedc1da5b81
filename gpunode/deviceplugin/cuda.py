"""The part of the CUDA driver API that adds vectors, and what its errors mean. Needs only libcuda.so.1."""

from __future__ import annotations

import ctypes
import math
import os
import uuid
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from ctypes import byref, c_char, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from typing import Any

BLOCK = 256  # threads
COMPUTE_MODE = 20  # CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, of cuda.h; 0 is CU_COMPUTEMODE_DEFAULT

# PTX 6.0 for sm_50: the driver compiles it for whatever GPU it finds, Maxwell and newer.
KERNEL = b"""
.version 6.0
.target sm_50
.address_size 64

// c[i] = a[i] + b[i] for i < n, one thread an element
.visible .entry vectoradd(
    .param .u64 a,
    .param .u64 b,
    .param .u64 c,
    .param .u32 n
)
{
    .reg .pred %out;
    .reg .f32  %x, %y, %sum;
    .reg .b32  %i, %n, %block, %size, %thread;
    .reg .b64  %pa, %pb, %pc, %offset;

    mov.u32     %block, %ctaid.x;
    mov.u32     %size, %ntid.x;
    mov.u32     %thread, %tid.x;
    mad.lo.u32  %i, %block, %size, %thread;
    ld.param.u32 %n, [n];
    setp.ge.u32 %out, %i, %n;
    @%out ret;

    ld.param.u64 %pa, [a];
    ld.param.u64 %pb, [b];
    ld.param.u64 %pc, [c];
    cvta.to.global.u64 %pa, %pa;
    cvta.to.global.u64 %pb, %pb;
    cvta.to.global.u64 %pc, %pc;
    mul.wide.u32 %offset, %i, 4;
    add.u64     %pa, %pa, %offset;
    add.u64     %pb, %pb, %offset;
    add.u64     %pc, %pc, %offset;
    ld.global.f32 %x, [%pa];
    ld.global.f32 %y, [%pb];
    add.rn.f32  %sum, %x, %y;
    st.global.f32 [%pc], %sum;
    ret;
}
"""

_MEANING = {  # CUresult -> its meaning here and the fix
    2: "the GPU has no memory left: another process fills it",
    46: "the GPU is busy or in exclusive mode: another process holds it",
    100: "the driver sees no GPU in this container: ask for one (limits: nvidia.com/gpu: 1) and see that the pod "
    "runs with the nvidia runtime",
    101: "no such GPU",
    209: "the driver cannot make code for this GPU",
    214: "an uncorrectable ECC error: reset the GPU, or replace it if that comes back",
    221: "libnvidia-ptxjitcompiler is not in this container: NVIDIA_DRIVER_CAPABILITIES must have `compute`",
    222: "this driver is too old for the kernel (PTX 6.0 needs driver 384 or newer)",
    719: "the kernel crashed on the GPU",
    802: "the GPU's fabric is not ready: is nvidia-fabricmanager running on the host?",
    803: "driver/library version mismatch: the driver's libraries were upgraded while the old kernel module is "
    "loaded; reboot the host or reload the module",
    804: "this container's CUDA compatibility libraries do not go with the host's driver",
    999: "an unknown error of the driver: look for NVRM and Xid in the host's kernel log",
}


class CudaError(Exception):
    """A failed driver call; the message has the call, the error's name and the fix."""


class Cuda:
    """The part of the driver API that adds vectors. `library` is libcuda.so.1."""

    def __init__(self, library: Any) -> None:
        self._library = library
        self.call("cuInit", c_uint(0))

    def call(self, function: str, *arguments: Any) -> None:
        """Call the driver. Raises CudaError unless it succeeds."""
        result = getattr(self._library, function)(*arguments)
        if result:
            name = c_char_p()
            self._library.cuGetErrorName(c_int(result), byref(name))
            meaning = name.value.decode() if name.value else "unknown error"
            raise CudaError(
                f"{function}: {meaning} ({result}): {_MEANING.get(result, 'see the host kernel log')}"
            )

    def version(self) -> str:
        """The newest CUDA version that the driver supports, e.g. "13.0"."""
        number = c_int()
        self.call("cuDriverGetVersion", byref(number))
        return f"{number.value // 1000}.{number.value % 1000 // 10}"

    def devices(self) -> list[int]:
        count = c_int()
        self.call("cuDeviceGetCount", byref(count))
        if not count.value:
            raise CudaError(f"cuDeviceGetCount: 0 devices: {_MEANING[100]}")
        devices = []
        for ordinal in range(count.value):
            device = c_int()
            self.call("cuDeviceGet", byref(device), c_int(ordinal))
            devices.append(device.value)
        return devices

    def name(self, device: int) -> str:
        name = ctypes.create_string_buffer(256)
        self.call("cuDeviceGetName", name, c_int(256), c_int(device))
        return name.value.decode(errors="replace")

    def uuid(self, device: int) -> str:
        """The UUID as NVML writes it; "" for a MIG device if neither the driver (R470 and newer do) nor the runtime's
        variable has it."""
        raw = (c_char * 16)()
        newer = hasattr(self._library, "cuDeviceGetUuid_v2")
        self.call("cuDeviceGetUuid_v2" if newer else "cuDeviceGetUuid", byref(raw), c_int(device))
        number, part = uuid.UUID(bytes=bytes(raw)), " MIG " in self.name(device)
        if newer or not part:
            return f"{'MIG' if part else 'GPU'}-{number}"
        seen = os.environ.get("NVIDIA_VISIBLE_DEVICES", "").split(",")
        named = [name for name in seen if name.startswith(f"MIG-GPU-{number}/")]
        return named[0] if len(named) == 1 else ""

    def exclusive(self, device: int) -> bool:
        """True if the GPU's compute mode allows at most one process."""
        mode = c_int()
        self.call("cuDeviceGetAttribute", byref(mode), c_int(COMPUTE_MODE), c_int(device))
        return mode.value != 0

    @contextmanager
    def on(self, device: int) -> Iterator[None]:
        """While entered, `memory` and `add` use this GPU."""
        context = c_void_p()
        self.call("cuCtxCreate_v2", byref(context), c_uint(0), c_int(device))
        try:
            yield
        finally:
            self._library.cuCtxDestroy_v2(context)

    def memory(self) -> int:
        """The GPU's memory in MiB, rounded down, that this process may use."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return total.value // (1024 * 1024)

    def gives(self, mib: int) -> bool:
        """True if this process can allocate so much of the GPU's memory at once; it is freed again."""
        pointer = c_uint64()
        if self._library.cuMemAlloc_v2(byref(pointer), c_size_t(mib * 1024 * 1024)):
            return False
        self._library.cuMemFree_v2(pointer)
        return True

    def add(self, left: array[float], right: array[float]) -> array[float]:
        """left + right, computed by the GPU."""
        size = c_size_t(len(left) * left.itemsize)
        sums = array("f", [math.nan]) * len(left)  # a kernel that did nothing must show
        module, kernel = c_void_p(), c_void_p()
        pointers: list[c_uint64] = []
        try:
            self.call("cuModuleLoadData", byref(module), c_char_p(KERNEL))
            self.call("cuModuleGetFunction", byref(kernel), module, c_char_p(b"vectoradd"))
            for data in (left, right, sums):
                pointer = c_uint64()
                self.call("cuMemAlloc_v2", byref(pointer), size)
                pointers.append(pointer)
                self.call("cuMemcpyHtoD_v2", pointer, _address(data), size)
            values = (*pointers, c_uint(len(left)))
            parameters = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
            grid = (c_uint((len(left) + BLOCK - 1) // BLOCK), c_uint(1), c_uint(1))
            block = (c_uint(BLOCK), c_uint(1), c_uint(1))
            self.call("cuLaunchKernel", kernel, *grid, *block, c_uint(0), c_void_p(), parameters, c_void_p())
            self.call("cuCtxSynchronize")
            self.call("cuMemcpyDtoH_v2", _address(sums), pointers[2], size)
        finally:
            for pointer in pointers:
                self._library.cuMemFree_v2(pointer)
        return sums


def _address(data: array[float]) -> c_void_p:
    return c_void_p(data.buffer_info()[0])


def load() -> ctypes.CDLL:
    """The driver's library. Raises CudaError."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise CudaError(
            f"libcuda.so.1 cannot be loaded ({error}): the driver is not in this container; ask for a GPU, run with "
            "the nvidia runtime, and see that NVIDIA_DRIVER_CAPABILITIES has `compute`"
        ) from None
