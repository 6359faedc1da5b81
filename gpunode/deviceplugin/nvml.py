# ruff: noqa: N802 (the names are the library's, as in NVIDIA's nvidia-ml-py)
"""NVML by ctypes: the functions of libnvidia-ml.so.1 that are used here, under the names of NVIDIA's nvidia-ml-py.

nvidia-ml-py has 8,000 lines for all of NVML, and takes 2 MiB. Signatures, sizes and values are of its and NVIDIA's nvml.h;
a test compares them with nvidia-ml-py's.
"""

from __future__ import annotations

import ctypes
from ctypes import byref, c_char, c_char_p, c_int, c_int64, c_uint, c_ulonglong, c_void_p
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
TEXT = 96  # bytes: the longest of the buffers for a name, a UUID, a version
WORDS = {  # of errors that come before the library can say them
    1: "Uninitialized",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
}


class PciInfo(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = [
        ("busIdLegacy", c_char * 16),
        ("domain", c_uint),
        ("bus", c_uint),
        ("device", c_uint),
        ("pciDeviceId", c_uint),
        ("pciSubSystemId", c_uint),
        ("busId", c_char * 32),
    ]


class Memory(ctypes.Structure):
    """nvmlMemory_t, bytes."""

    _fields_ = [("total", c_ulonglong), ("free", c_ulonglong), ("used", c_ulonglong)]


class Utilization(ctypes.Structure):
    """nvmlUtilization_t, percent."""

    _fields_ = [("gpu", c_uint), ("memory", c_uint)]


class ProcessInfo(ctypes.Structure):
    """nvmlProcessInfo_t of the calls _v2 and _v3."""

    _fields_ = [
        ("pid", c_uint),
        ("usedGpuMemory", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]


class Value(ctypes.Union):
    """nvmlValue_t."""

    _fields_ = [("uiVal", c_uint), ("ullVal", c_ulonglong)]


class FieldValue(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = [
        ("fieldId", c_uint),
        ("scopeId", c_uint),
        ("timestamp", c_int64),
        ("latencyUsec", c_int64),
        ("valueType", c_uint),
        ("nvmlReturn", c_uint),
        ("value", Value),
    ]


class EventData(ctypes.Structure):
    """nvmlEventData_t."""

    _fields_ = [
        ("device", c_void_p),
        ("eventType", c_ulonglong),
        ("eventData", c_ulonglong),
        ("gpuInstanceId", c_uint),
        ("computeInstanceId", c_uint),
    ]


class Attributes(ctypes.Structure):
    """nvmlDeviceAttributes_t."""

    _fields_ = [
        ("multiprocessorCount", c_uint),
        ("sharedCopyEngineCount", c_uint),
        ("sharedDecoderCount", c_uint),
        ("sharedEncoderCount", c_uint),
        ("sharedJpegCount", c_uint),
        ("sharedOfaCount", c_uint),
        ("gpuInstanceSliceCount", c_uint),
        ("computeInstanceSliceCount", c_uint),
        ("memorySizeMB", c_ulonglong),
    ]


class MemoryLimits(ctypes.Structure):
    """nvmlGetMemoryLimits_v1_t."""

    _fields_ = [
        ("nameSpace", c_char_p),
        ("softLimit", c_ulonglong),
        ("hardLimit", c_ulonglong),
        ("currentUsed", c_ulonglong),
    ]


class NVMLError(Exception):
    """A call failed. `value` is its nvmlReturn_t."""

    def __init__(self, value: int, words: str = "") -> None:
        super().__init__(words or WORDS.get(value, f"NVML Error with code {value}"))
        self.value = value


class Nvml:
    """The library, opened by `nvmlInit`. Calls raise NVMLError: UNINITIALIZED before, FUNCTION_NOT_FOUND for what an older
    driver does not have."""

    NVMLError = NVMLError
    NVML_SUCCESS = 0
    NVML_ERROR_UNINITIALIZED = 1
    NVML_ERROR_INVALID_ARGUMENT = 2
    NVML_ERROR_NOT_SUPPORTED = 3
    NVML_ERROR_NO_PERMISSION = 4
    NVML_ERROR_NOT_FOUND = 6
    NVML_ERROR_INSUFFICIENT_SIZE = 7
    NVML_ERROR_TIMEOUT = 10
    NVML_ERROR_LIBRARY_NOT_FOUND = 12
    NVML_ERROR_FUNCTION_NOT_FOUND = 13
    NVML_TEMPERATURE_GPU = 0
    NVML_COMPUTEMODE_EXCLUSIVE_PROCESS = 3
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    nvmlEventTypeXidCriticalError = 8  # noqa: N815
    c_nvmlGetMemoryLimits_v1_t = MemoryLimits  # noqa: N815

    def __init__(self) -> None:
        self._library: Any = None

    def _call(self, name: str, *arguments: Any) -> None:
        self._check(self._function(name)(*arguments))

    def _function(self, name: str) -> Any:
        if self._library is None:
            raise NVMLError(self.NVML_ERROR_UNINITIALIZED)
        try:
            return getattr(self._library, name)
        except AttributeError:
            raise NVMLError(self.NVML_ERROR_FUNCTION_NOT_FOUND) from None

    def _check(self, code: int) -> None:
        if code != self.NVML_SUCCESS:
            say = self._library.nvmlErrorString
            say.restype = c_char_p
            raise NVMLError(code, say(code).decode())

    def _number(self, name: str, *arguments: Any, kind: Any = c_uint) -> int:
        """The number that the function writes through its last pointer."""
        number = kind()
        self._call(name, *arguments, byref(number))
        return int(number.value)

    def _numbers(self, name: str, handle: Any, count: int, kind: Any = c_uint) -> tuple[int, ...]:
        numbers = [kind() for _ in range(count)]
        self._call(name, handle, *map(byref, numbers))
        return tuple(number.value for number in numbers)

    def _text(self, name: str, *arguments: Any) -> str:
        text = ctypes.create_string_buffer(TEXT)
        self._call(name, *arguments, text, c_uint(TEXT))
        return text.value.decode()

    def _filled(self, name: str, answer: Any, *arguments: Any) -> Any:
        """`answer`, which the function fills through its last pointer."""
        self._call(name, *arguments, byref(answer))
        return answer

    def nvmlInit(self) -> None:
        if self._library is None:
            try:
                self._library = ctypes.CDLL(LIBRARY)
            except OSError:
                raise NVMLError(self.NVML_ERROR_LIBRARY_NOT_FOUND) from None
        self._call("nvmlInit_v2")

    def nvmlShutdown(self) -> None:
        self._call("nvmlShutdown")

    def nvmlSystemGetDriverVersion(self) -> str:
        return self._text("nvmlSystemGetDriverVersion")

    def nvmlDeviceGetCount(self) -> int:
        return self._number("nvmlDeviceGetCount_v2")

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._filled("nvmlDeviceGetHandleByIndex_v2", c_void_p(), c_uint(index))

    def nvmlDeviceGetUUID(self, handle: Any) -> str:
        return self._text("nvmlDeviceGetUUID", handle)

    def nvmlDeviceGetName(self, handle: Any) -> str:
        return self._text("nvmlDeviceGetName", handle)

    def nvmlDeviceGetPciInfo(self, handle: Any) -> Any:
        return self._filled("nvmlDeviceGetPciInfo_v3", PciInfo(), handle)

    def nvmlDeviceGetMinorNumber(self, handle: Any) -> int:
        return self._number("nvmlDeviceGetMinorNumber", handle)

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        return self._filled("nvmlDeviceGetMemoryInfo", Memory(), handle)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any) -> tuple[int, ...]:
        return self._numbers("nvmlDeviceGetCudaComputeCapability", handle, 2, c_int)

    def nvmlDeviceGetUtilizationRates(self, handle: Any) -> Any:
        return self._filled("nvmlDeviceGetUtilizationRates", Utilization(), handle)

    def nvmlDeviceGetTemperature(self, handle: Any, sensor: int) -> int:
        return self._number("nvmlDeviceGetTemperature", handle, c_uint(sensor))

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: Any) -> int:
        return self._number("nvmlDeviceGetTotalEnergyConsumption", handle, kind=c_ulonglong)

    def nvmlDeviceGetRemappedRows(self, handle: Any) -> tuple[int, ...]:
        """Corrected, uncorrected, 1 while one is pending, 1 where one has failed."""
        return self._numbers("nvmlDeviceGetRemappedRows", handle, 4)

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: list[int]) -> Any:
        values = (FieldValue * len(fields))(*(FieldValue(fieldId=number) for number in fields))
        self._call("nvmlDeviceGetFieldValues", handle, c_int(len(fields)), byref(values))
        return values

    def nvmlDeviceGetComputeMode(self, handle: Any) -> int:
        return self._number("nvmlDeviceGetComputeMode", handle)

    def nvmlDeviceSetComputeMode(self, handle: Any, mode: int) -> None:
        self._call("nvmlDeviceSetComputeMode", handle, c_uint(mode))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v3", handle)

    nvmlDeviceGetComputeRunningProcesses_v3 = nvmlDeviceGetComputeRunningProcesses  # noqa: N815

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v2", handle)

    def _processes(self, name: str, handle: Any) -> list[Any]:
        """The first call tells their number; between the two, some more may start."""
        function, count = self._function(name), c_uint(0)
        code = function(handle, byref(count), None)
        if code != self.NVML_ERROR_INSUFFICIENT_SIZE:
            self._check(code)
            return []
        count.value = count.value * 2 + 5
        found = (ProcessInfo * count.value)()
        self._check(function(handle, byref(count), found))
        return found[: count.value]

    def nvmlDeviceGetMigMode(self, handle: Any) -> tuple[int, ...]:
        """Current and pending."""
        return self._numbers("nvmlDeviceGetMigMode", handle, 2)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any) -> int:
        return self._number("nvmlDeviceGetMaxMigDeviceCount", handle)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int) -> Any:
        return self._filled("nvmlDeviceGetMigDeviceHandleByIndex", c_void_p(), handle, c_uint(index))

    def nvmlDeviceGetGpuInstanceId(self, handle: Any) -> int:
        return self._number("nvmlDeviceGetGpuInstanceId", handle)

    def nvmlDeviceGetComputeInstanceId(self, handle: Any) -> int:
        return self._number("nvmlDeviceGetComputeInstanceId", handle)

    def nvmlDeviceGetAttributes_v2(self, handle: Any) -> Any:
        return self._filled("nvmlDeviceGetAttributes_v2", Attributes(), handle)

    def nvmlDeviceGetMemoryLimits_v1(self, handle: Any, limits: Any) -> None:
        self._call("nvmlDeviceGetMemoryLimits_v1", handle, byref(limits))

    def nvmlDeviceGetTopologyCommonAncestor(self, one: Any, other: Any) -> int:
        return self._number("nvmlDeviceGetTopologyCommonAncestor", one, other)

    def nvmlDeviceGetNvLinkState(self, handle: Any, link: int) -> int:
        return self._number("nvmlDeviceGetNvLinkState", handle, c_uint(link))

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: Any, link: int) -> Any:
        return self._filled("nvmlDeviceGetNvLinkRemotePciInfo_v2", PciInfo(), handle, c_uint(link))

    def nvmlEventSetCreate(self) -> Any:
        return self._filled("nvmlEventSetCreate", c_void_p())

    def nvmlDeviceRegisterEvents(self, handle: Any, types: int, events: Any) -> None:
        self._call("nvmlDeviceRegisterEvents", handle, c_ulonglong(types), events)

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> Any:
        answer = EventData()
        self._call("nvmlEventSetWait_v2", events, byref(answer), c_uint(milliseconds))
        return answer

    def nvmlEventSetFree(self, events: Any) -> None:
        self._call("nvmlEventSetFree", events)
