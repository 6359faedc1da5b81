"""The part of the CUDA driver API that gpunode's kernels need, and what its errors mean. Needs only libcuda.so.1."""

import ctypes
import math
import os
import uuid
from array import array
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from ctypes import byref, c_char, c_char_p, c_float, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_void_p
from typing import Any

BLOCK = 256  # threads
# CUdevice_attribute and CUjit_option, of cuda.h
MULTIPROCESSORS = 16
COMPUTE_MODE = 20  # 0 is CU_COMPUTEMODE_DEFAULT
MULTIPROCESSOR_THREADS = 39
CAPABILITY = (75, 76)
JIT_ERRORS, JIT_ERRORS_SIZE = 5, 6
BLOCKING_EVENT = 1  # CU_EVENT_BLOCKING_SYNC
BLOCKING_SYNC = 4  # CU_CTX_SCHED_BLOCKING_SYNC: who waits for a GPU leaves the processor to others

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
    218: "the driver cannot compile the kernel",
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
    """A failed driver call; the message has the call, the error's name and the fix. `code`: its CUresult, 0 if there is none."""

    def __init__(self, message: str, code: int = 0) -> None:
        super().__init__(message)
        self.code = code


class Cuda:
    """The driver API. `library` is libcuda.so.1."""

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
                f"{function}: {meaning} ({result}): {_MEANING.get(result, 'see the host kernel log')}", result
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
            raise CudaError(f"cuDeviceGetCount: 0 devices: {_MEANING[100]}", 100)
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

    def pci(self, device: int) -> str:
        """The GPU's address as Linux writes it."""
        name = ctypes.create_string_buffer(32)
        self.call("cuDeviceGetPCIBusId", name, c_int(32), c_int(device))
        return name.value.decode().lower()

    def attribute(self, device: int, number: int) -> int:
        value = c_int()
        self.call("cuDeviceGetAttribute", byref(value), c_int(number), c_int(device))
        return value.value

    def exclusive(self, device: int) -> bool:
        """True if the GPU's compute mode allows at most one process."""
        return self.attribute(device, COMPUTE_MODE) != 0

    @contextmanager
    def on(self, device: int, flags: int = 0) -> Iterator[None]:
        """While entered, the calls below use this GPU."""
        context = c_void_p()
        self.call("cuCtxCreate_v2", byref(context), c_uint(flags), c_int(device))
        try:
            yield
        finally:
            self._library.cuCtxDestroy_v2(context)

    def free_memory(self) -> tuple[int, int]:
        """Bytes of the GPU's memory that are free, and those that this process may use in all."""
        free, total = c_size_t(), c_size_t()
        self.call("cuMemGetInfo_v2", byref(free), byref(total))
        return free.value, total.value

    def memory(self) -> int:
        """The GPU's memory in MiB, rounded down, that this process may use."""
        return self.free_memory()[1] // (1024 * 1024)

    def gives(self, mib: int) -> bool:
        """True if this process can allocate so much of the GPU's memory at once; it is freed again."""
        try:
            with self.allocated(mib * 1024 * 1024):
                return True
        except CudaError:
            return False

    @contextmanager
    def allocated(self, size: int) -> Iterator[int]:
        """The address of so many bytes of the GPU's memory, freed at the end."""
        pointer = c_uint64()
        self.call("cuMemAlloc_v2", byref(pointer), c_size_t(size))
        try:
            yield pointer.value
        finally:
            self._library.cuMemFree_v2(pointer)

    @contextmanager
    def pinned(self, size: int) -> Iterator[int]:
        """The address of so many bytes of the host's memory, which the GPU can read and write itself."""
        pointer = c_void_p()
        self.call("cuMemAllocHost_v2", byref(pointer), c_size_t(size))
        try:
            yield pointer.value or 0
        finally:
            self._library.cuMemFreeHost(pointer)

    def timed(self, work: Callable[[], None]) -> float:
        """Seconds, by the GPU's clock, of what `work` starts; waits for its end."""
        events = (c_void_p(), c_void_p())
        for event in events:
            self.call("cuEventCreate", byref(event), c_uint(BLOCKING_EVENT))
        try:
            self.call("cuEventRecord", events[0], c_void_p())
            work()
            self.call("cuEventRecord", events[1], c_void_p())
            self.call("cuEventSynchronize", events[1])
            milliseconds = c_float()
            self.call("cuEventElapsedTime", byref(milliseconds), *events)
        finally:
            for event in events:
                self._library.cuEventDestroy_v2(event)
        return milliseconds.value / 1000

    def send(self, to: int, source: int, size: int) -> None:
        """Start a copy from pinned memory; does not wait."""
        self.call("cuMemcpyHtoDAsync_v2", c_uint64(to), c_void_p(source), c_size_t(size), c_void_p())

    def fetch(self, to: int, source: int, size: int) -> None:
        """Start a copy to pinned memory; does not wait."""
        self.call("cuMemcpyDtoHAsync_v2", c_void_p(to), c_uint64(source), c_size_t(size), c_void_p())

    def put(self, to: int, source: int, size: int) -> None:
        """Copy from the host's memory; returns at the end."""
        self.call("cuMemcpyHtoD_v2", c_uint64(to), c_void_p(source), c_size_t(size))

    def get(self, to: int, source: int, size: int) -> None:
        """Copy to the host's memory; returns at the end."""
        self.call("cuMemcpyDtoH_v2", c_void_p(to), c_uint64(source), c_size_t(size))

    def clear(self, at: int, value: int, size: int) -> None:
        """Set so many bytes of the GPU's memory to this value; does not wait."""
        self.call("cuMemsetD8_v2", c_uint64(at), c_ubyte(value), c_size_t(size))

    def kernels(self, ptx: bytes, *names: str) -> list[c_void_p]:
        """Compile for this GPU. Raises CudaError with the compiler's lines."""
        module, log = c_void_p(), ctypes.create_string_buffer(4096)
        options = (c_uint * 2)(JIT_ERRORS, JIT_ERRORS_SIZE)
        values = (c_void_p * 2)(ctypes.addressof(log), len(log))
        try:
            self.call("cuModuleLoadDataEx", byref(module), c_char_p(ptx), c_uint(2), options, values)
        except CudaError as error:
            lines = log.value.decode(errors="replace").strip()
            raise CudaError(f"{error}{': ' if lines else ''}{lines}", error.code) from None
        kernels = [c_void_p() for _ in names]
        for kernel, name in zip(kernels, names, strict=True):
            self.call("cuModuleGetFunction", byref(kernel), module, c_char_p(name.encode()))
        return kernels

    def launch(self, kernel: c_void_p, blocks: int, threads: int, *values: Any) -> None:
        """Start a kernel with these ctypes values; does not wait."""
        parameters = (c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        grid = (c_uint(blocks), c_uint(1), c_uint(1))
        block = (c_uint(threads), c_uint(1), c_uint(1))
        self.call("cuLaunchKernel", kernel, *grid, *block, c_uint(0), c_void_p(), parameters, c_void_p())

    def synchronize(self) -> None:
        """Wait for the GPU. Raises CudaError if a kernel failed."""
        self.call("cuCtxSynchronize")

    def add(self, left: "array[float]", right: "array[float]") -> "array[float]":
        """left + right, computed by the GPU."""
        size = len(left) * left.itemsize
        sums = array("f", [math.nan]) * len(left)  # a kernel that did nothing must show
        with ExitStack() as stack:
            (kernel,) = self.kernels(KERNEL, "vectoradd")
            pointers = []
            for data in (left, right, sums):
                pointers.append(stack.enter_context(self.allocated(size)))
                self.put(pointers[-1], data.buffer_info()[0], size)
            blocks = (len(left) + BLOCK - 1) // BLOCK
            self.launch(kernel, blocks, BLOCK, *map(c_uint64, pointers), c_uint(len(left)))
            self.synchronize()
            self.get(sums.buffer_info()[0], pointers[2], size)
        return sums


def load() -> ctypes.CDLL:
    """The driver's library. Raises CudaError."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        missing = str(error).partition(":")[0]
        reason = (
            f"this image has no {missing}, which the driver needs: take one with the whole of glibc"
            if missing.startswith("lib") and missing != "libcuda.so.1"
            else "no driver is here. On a host, install it. In a container, ask for a GPU, run with the nvidia runtime, "
            "and see that NVIDIA_DRIVER_CAPABILITIES has `compute`"
        )
        raise CudaError(f"libcuda.so.1 cannot be loaded ({error}): {reason}") from None
