# ruff: noqa: N802, N815 (the names are the library's, as in NVIDIA's nvidia-ml-py)
"""NVML by ctypes: the functions of libnvidia-ml.so.1 that are used here, under the names of NVIDIA's nvidia-ml-py.

nvidia-ml-py has 8,000 lines for all of NVML, and takes 2 MiB. Signatures, sizes and values are of its and NVIDIA's nvml.h;
a test compares them with nvidia-ml-py's.
"""

import ctypes
from collections.abc import Callable, Sequence
from ctypes import byref, c_char, c_char_p, c_int, c_int64, c_ubyte, c_uint, c_ulonglong, c_void_p
from typing import Any

LIBRARY = "libnvidia-ml.so.1"
WORDS = {  # of errors that come before the library can say them
    1: "Uninitialized",
    12: "NVML Shared Library Not Found",
    13: "Function Not Found",
}


def _structure(name: str, **fields: Any) -> Any:
    return type(name, (ctypes.Structure,), {"_fields_": list(fields.items())})


class _Value(ctypes.Union):
    _fields_ = (("uiVal", c_uint), ("ullVal", c_ulonglong))


PciInfo = _structure(
    "nvmlPciInfo_t",
    busIdLegacy=c_char * 16,
    domain=c_uint,
    bus=c_uint,
    device=c_uint,
    pciDeviceId=c_uint,
    pciSubSystemId=c_uint,
    busId=c_char * 32,
)
Memory = _structure("nvmlMemory_t", total=c_ulonglong, free=c_ulonglong, used=c_ulonglong)  # bytes
MemoryV = _structure(
    "nvmlMemory_v2_t",
    version=c_uint,
    total=c_ulonglong,
    reserved=c_ulonglong,
    free=c_ulonglong,
    used=c_ulonglong,
)
Utilization = _structure("nvmlUtilization_t", gpu=c_uint, memory=c_uint)  # percent
ProcessInfo = _structure(  # of the calls _v2 and _v3
    "nvmlProcessInfo_t", pid=c_uint, usedGpuMemory=c_ulonglong, gpuInstanceId=c_uint, computeInstanceId=c_uint
)
FieldValue = _structure(
    "nvmlFieldValue_t",
    fieldId=c_uint,
    scopeId=c_uint,
    timestamp=c_int64,
    latencyUsec=c_int64,
    valueType=c_uint,
    nvmlReturn=c_uint,
    value=_Value,
)
EventData = _structure(
    "nvmlEventData_t",
    device=c_void_p,
    eventType=c_ulonglong,
    eventData=c_ulonglong,
    gpuInstanceId=c_uint,
    computeInstanceId=c_uint,
)
Attributes = _structure(
    "nvmlDeviceAttributes_t",
    multiprocessorCount=c_uint,
    sharedCopyEngineCount=c_uint,
    sharedDecoderCount=c_uint,
    sharedEncoderCount=c_uint,
    sharedJpegCount=c_uint,
    sharedOfaCount=c_uint,
    gpuInstanceSliceCount=c_uint,
    computeInstanceSliceCount=c_uint,
    memorySizeMB=c_ulonglong,
)
MemoryLimits = _structure(
    "nvmlGetMemoryLimits_v1_t",
    nameSpace=c_char_p,
    softLimit=c_ulonglong,
    hardLimit=c_ulonglong,
    currentUsed=c_ulonglong,
)
_FABRIC = {"clusterUuid": c_ubyte * 16, "status": c_uint, "cliqueId": c_uint, "state": c_uint}
FabricInfo = _structure("nvmlGpuFabricInfo_t", **_FABRIC)
FabricInfoV = _structure("nvmlGpuFabricInfo_v2_t", version=c_uint, **_FABRIC, healthMask=c_uint)

Text = c_char * 96  # the longest of the buffers for a name, a UUID, a version
_HANDLE = c_void_p  # an address, which is an int here
# Calls that only take values and write answers: the types that they take, and those that the library writes through pointers, which
# are the answer.
CALLS: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "nvmlShutdown": ((), ()),
    "nvmlSystemGetDriverVersion": ((), (Text,)),
    "nvmlDeviceGetCount": ((), (c_uint,)),
    "nvmlDeviceGetHandleByIndex": ((c_uint,), (c_void_p,)),
    "nvmlDeviceGetMigDeviceHandleByIndex": ((_HANDLE, c_uint), (c_void_p,)),
    "nvmlDeviceGetPciInfo": ((_HANDLE,), (PciInfo,)),
    "nvmlDeviceGetNvLinkState": ((_HANDLE, c_uint), (c_uint,)),
    "nvmlDeviceGetNvLinkRemotePciInfo": ((_HANDLE, c_uint), (PciInfo,)),
    "nvmlDeviceGetNvLinkErrorCounter": ((_HANDLE, c_uint, c_uint), (c_ulonglong,)),
    "nvmlDeviceGetClockInfo": ((_HANDLE, c_uint), (c_uint,)),
    "nvmlDeviceGetMaxClockInfo": ((_HANDLE, c_uint), (c_uint,)),
    "nvmlDeviceGetTotalEccErrors": ((_HANDLE, c_uint, c_uint), (c_ulonglong,)),
    "nvmlDeviceGetTemperature": ((_HANDLE, c_uint), (c_uint,)),
    "nvmlDeviceGetTopologyCommonAncestor": ((_HANDLE, _HANDLE), (c_uint,)),
    "nvmlDeviceSetComputeMode": ((_HANDLE, c_uint), ()),
    "nvmlEventSetCreate": ((), (c_void_p,)),
    "nvmlDeviceRegisterEvents": ((_HANDLE, c_ulonglong, _HANDLE), ()),
    "nvmlEventSetFree": ((_HANDLE,), ()),
} | {  # of a device alone
    name: ((_HANDLE,), answers)
    for name, answers in {
        "nvmlDeviceGetUUID": (Text,),
        "nvmlDeviceGetName": (Text,),
        "nvmlDeviceGetMinorNumber": (c_uint,),
        "nvmlDeviceGetCudaComputeCapability": (c_int, c_int),
        "nvmlDeviceGetUtilizationRates": (Utilization,),
        "nvmlDeviceGetTotalEnergyConsumption": (c_ulonglong,),
        "nvmlDeviceGetRemappedRows": (c_uint, c_uint, c_uint, c_uint),  # corrected, not, pending, failed
        "nvmlDeviceGetCurrPcieLinkGeneration": (c_uint,),
        "nvmlDeviceGetCurrPcieLinkWidth": (c_uint,),
        "nvmlDeviceGetMaxPcieLinkGeneration": (c_uint,),
        "nvmlDeviceGetMaxPcieLinkWidth": (c_uint,),
        "nvmlDeviceGetPowerUsage": (c_uint,),  # milliwatts
        "nvmlDeviceGetEnforcedPowerLimit": (c_uint,),
        "nvmlDeviceGetCurrentClocksThrottleReasons": (c_ulonglong,),
        "nvmlDeviceGetComputeMode": (c_uint,),
        "nvmlDeviceGetMigMode": (c_uint, c_uint),  # current, pending
        "nvmlDeviceGetMaxMigDeviceCount": (c_uint,),
        "nvmlDeviceGetGpuInstanceId": (c_uint,),
        "nvmlDeviceGetComputeInstanceId": (c_uint,),
        "nvmlDeviceGetAttributes_v2": (Attributes,),
    }.items()
}


# The library's functions whose names have a version
VERSIONED = {
    "nvmlDeviceGetCount": "nvmlDeviceGetCount_v2",
    "nvmlDeviceGetHandleByIndex": "nvmlDeviceGetHandleByIndex_v2",
    "nvmlDeviceGetPciInfo": "nvmlDeviceGetPciInfo_v3",
    "nvmlDeviceGetNvLinkRemotePciInfo": "nvmlDeviceGetNvLinkRemotePciInfo_v2",
}


class NVMLError(Exception):
    """A call failed. `value` is its nvmlReturn_t."""

    def __init__(self, value: int, message: str = "") -> None:
        super().__init__(message or WORDS.get(value, f"NVML Error with code {value}"))
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
    NVML_ERROR_GPU_IS_LOST = 15
    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_MEMORY_ERROR_TYPE_CORRECTED = 0
    NVML_MEMORY_ERROR_TYPE_UNCORRECTED = 1
    NVML_VOLATILE_ECC = 0
    NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS = 206
    NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS = 207
    NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS = 208
    NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS = 211
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS = 214
    NVML_FI_DEV_GET_GPU_RECOVERY_ACTION = 230
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX = 138  # KiB
    NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX = 139
    nvmlEventTypeXidCriticalError = 8
    c_nvmlGetMemoryLimits_v1_t = MemoryLimits

    def __init__(self) -> None:
        self._library: Any = None

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in CALLS:
            raise AttributeError(name)
        takes, writes = CALLS[name]

        def call(*given: Any) -> Any:
            answers = [kind() for kind in writes]
            values = [kind(value) for kind, value in zip(takes, given, strict=True)]
            for answer in answers:
                values += [answer, c_uint(96)] if isinstance(answer, Text) else [byref(answer)]
            self._call(VERSIONED.get(name, name), *values)
            read = [_read(answer) for answer in answers]
            return read[0] if len(read) == 1 else tuple(read)

        self.__dict__[name] = call  # asked once
        return call

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

    def nvmlInit(self) -> None:
        if self._library is None:
            try:
                self._library = ctypes.CDLL(LIBRARY)
            except OSError:
                raise NVMLError(self.NVML_ERROR_LIBRARY_NOT_FOUND) from None
        self._call("nvmlInit_v2")

    def nvmlDeviceGetFieldValues(self, handle: Any, fields: Sequence[int | tuple[int, int]]) -> Any:
        """A field is its number, or number and scope."""
        asked = [field if isinstance(field, tuple) else (field, 0) for field in fields]
        values = (FieldValue * len(fields))(*(FieldValue(fieldId=n, scopeId=scope) for n, scope in asked))
        self._call("nvmlDeviceGetFieldValues", c_void_p(handle), c_int(len(fields)), byref(values))
        return values

    def nvmlDeviceGetComputeRunningProcesses(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v3", handle)

    nvmlDeviceGetComputeRunningProcesses_v3 = nvmlDeviceGetComputeRunningProcesses

    def nvmlDeviceGetComputeRunningProcesses_v2(self, handle: Any) -> list[Any]:
        return self._processes("nvmlDeviceGetComputeRunningProcesses_v2", handle)

    def _processes(self, name: str, handle: Any) -> list[Any]:
        """The first call tells their number; between the two, some more may start."""
        function, count = self._function(name), c_uint(0)
        code = function(c_void_p(handle), byref(count), None)
        if code != self.NVML_ERROR_INSUFFICIENT_SIZE:
            self._check(code)
            return []
        count.value = count.value * 2 + 5
        processes = (ProcessInfo * count.value)()
        self._check(function(c_void_p(handle), byref(count), processes))
        return list(processes[: count.value])

    def nvmlDeviceGetMemoryInfo(self, handle: Any) -> Any:
        """As nvidia-smi shows it: since driver 510 `used` is without what the driver reserves. An older one counts that as used, and
        has no `reserved`."""
        memory = MemoryV(version=ctypes.sizeof(MemoryV) | 2 << 24)
        try:
            self._call("nvmlDeviceGetMemoryInfo_v2", c_void_p(handle), byref(memory))
        except NVMLError as error:
            if error.value != self.NVML_ERROR_FUNCTION_NOT_FOUND:
                raise
            memory = Memory()
            self._call("nvmlDeviceGetMemoryInfo", c_void_p(handle), byref(memory))
        return memory

    def nvmlDeviceGetMemoryLimits_v1(self, handle: Any, limits: Any) -> None:
        self._call("nvmlDeviceGetMemoryLimits_v1", c_void_p(handle), byref(limits))

    def nvmlDeviceGetGpuFabricInfo(self, handle: Any, info: Any) -> Any:
        self._call("nvmlDeviceGetGpuFabricInfo", c_void_p(handle), byref(info))
        return info

    def nvmlDeviceGetGpuFabricInfoV(self, handle: Any, info: Any) -> Any:
        info.version = ctypes.sizeof(info) | 2 << 24
        self._call("nvmlDeviceGetGpuFabricInfoV", c_void_p(handle), byref(info))
        return info

    def nvmlEventSetWait_v2(self, events: Any, milliseconds: int) -> Any:
        answer = EventData()
        self._call("nvmlEventSetWait_v2", c_void_p(events), byref(answer), c_uint(milliseconds))
        return answer


def _read(answer: Any) -> Any:
    """Texts, numbers and handles by their value; structures as they are."""
    if isinstance(answer, Text):
        return answer.value.decode()
    return answer.value if isinstance(answer, (c_uint, c_int, c_ulonglong, c_void_p)) else answer
