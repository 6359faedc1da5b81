"""What NVML says, as JSON, by nvidia-ml-py. Runs on a host, with pynvml.py beside it. Argument: seconds to wait for an Xid."""

import json
import sys

import pynvml as nvml

nvml.nvmlInit()
handles = []
lost = []
for index in range(nvml.nvmlDeviceGetCount()):
    try:
        handles.append(nvml.nvmlDeviceGetHandleByIndex(index))
    except nvml.NVMLError_GpuIsLost:
        lost.append(index)


def tell(function, *arguments):
    try:
        value = getattr(nvml, function)(*arguments)
    except nvml.NVMLError as error:
        return f"error {error.value}"
    return value.decode() if isinstance(value, bytes) else value


def mig(handle):
    devices = []
    for index in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        device = tell("nvmlDeviceGetMigDeviceHandleByIndex", handle, index)
        if not isinstance(device, str):
            devices.append(
                {
                    "uuid": tell("nvmlDeviceGetUUID", device),
                    "name": tell("nvmlDeviceGetName", device),
                    "gi": tell("nvmlDeviceGetGpuInstanceId", device),
                    "ci": tell("nvmlDeviceGetComputeInstanceId", device),
                    "memory_mib": nvml.nvmlDeviceGetMemoryInfo(device).total >> 20,
                    "slices": nvml.nvmlDeviceGetAttributes_v2(device).gpuInstanceSliceCount,
                    "parent": tell(
                        "nvmlDeviceGetUUID", nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device)
                    ),
                }
            )
    return devices


answer = {
    "driver": tell("nvmlSystemGetDriverVersion"),
    "cuda": nvml.nvmlSystemGetCudaDriverVersion_v2(),
    "lost": lost,
    "gpus": [
        {
            "uuid": tell("nvmlDeviceGetUUID", h),
            "name": tell("nvmlDeviceGetName", h),
            "minor": tell("nvmlDeviceGetMinorNumber", h),
            "pci": nvml.nvmlDeviceGetPciInfo(h).busId,
            "memory_mib": nvml.nvmlDeviceGetMemoryInfo(h).total >> 20,
            "cc": tell("nvmlDeviceGetCudaComputeCapability", h),
            "mig_mode": tell("nvmlDeviceGetMigMode", h),
            "mig": mig(h),
            "link": tell("nvmlDeviceGetNvLinkState", h, 0),
        }
        for h in handles
    ],
}
if len(sys.argv) > 1:
    events = nvml.nvmlEventSetCreate()
    for handle in handles:
        nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
    print("waiting", flush=True)
    try:
        event = nvml.nvmlEventSetWait_v2(events, int(float(sys.argv[1]) * 1000))
        answer["event"] = [tell("nvmlDeviceGetUUID", event.device), event.eventType, event.eventData]
    except nvml.NVMLError as error:
        answer["event"] = f"error {error.value}"
print(json.dumps(answer))
