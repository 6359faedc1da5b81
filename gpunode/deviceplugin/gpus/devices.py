"""The GPUs of this machine and their MIG devices, read through NVML. Independent of Kubernetes and gRPC.

`nvml` is the module `pynvml` (NVIDIA's nvidia-ml-py) wherever it is a parameter.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpunode.contract.offer import MIB, Device
from gpunode.contract.status import Reason

from .handles import Handles, text

GIB = 1024 * MIB


def count(nvml: Any) -> int:
    """Number of GPUs that NVML knows, including those that do not answer."""
    return int(nvml.nvmlDeviceGetCount())


@dataclass(frozen=True, slots=True)
class Described:
    """A GPU and its MIG devices. `refused`: why others cannot be described, by their index."""

    devices: tuple[Device, ...]
    refused: Mapping[str, Reason] = field(default_factory=dict)


def describe(handles: Handles, index: int, root: Path = Path("/")) -> Described:
    """GPU number `index`, then its MIG devices; `root` has /sys and /proc. Raises NVMLError."""
    nvml = handles.nvml
    uuid, handle = handles.take(index)
    bus = pci_address(text(nvml.nvmlDeviceGetPciInfo(handle).busId))
    minor = _minor(nvml, handle)
    mig = _mig_enabled(nvml, handle)
    gpu = Device(
        uuid=uuid,
        index=str(index),
        name=text(nvml.nvmlDeviceGetName(handle)),
        gpu=uuid,
        bus=bus,
        memory=_memory(nvml, handle),
        numa=numa_node(bus, root),
        nodes=() if minor is None else (f"/dev/nvidia{minor}",),
        mig_enabled=mig,
        capability=_capability(nvml, handle),
    )
    if not mig:
        return Described((gpu,))
    return _with_mig_devices(nvml, handle, gpu, minor, root)


def reason(error: Exception) -> Reason:
    """The code of an NVML error, its meaning and the fix."""
    value = getattr(error, "value", None)
    code = _CODES.get(value, "nvml-error") if isinstance(value, int) else "nvml-error"
    return Reason(code, explain(error))


def explain(error: Exception) -> str:
    """The meaning of an NVML error and the fix, in one sentence."""
    value = getattr(error, "value", None)
    return _MEANING.get(value, f"NVML: {error}") if isinstance(value, int) else f"{error}"


NVML_SILENT = "nvml-silent"  # code: NVML does not answer in time
_CODES = {  # by nvmlReturn_t
    4: "nvml-no-permission",
    9: "driver-not-loaded",
    12: "nvml-library-missing",
    15: "gpu-lost",
    16: "gpu-requires-reset",
    18: "driver-library-mismatch",
}
_MEANING = {  # by nvmlReturn_t
    9: "NVML: Driver Not Loaded: the nvidia kernel module is not loaded on this host, or this container does "
    "not see it; run nvidia-smi on the host",
    12: "NVML: Shared Library Not Found: no libnvidia-ml.so.1 in this container; the host has no driver, or the "
    "container was not started by the nvidia runtime (default runtime, or runtimeClassName: nvidia) with "
    "NVIDIA_VISIBLE_DEVICES=all; restart this pod after the fix",
    15: "NVML: GPU is lost: it has fallen off the bus or is otherwise inaccessible; look for Xid 79 in the "
    "kernel log, reset the GPU or reboot the host",
    16: "NVML: GPU requires reset: nvidia-smi --gpu-reset, or reboot the host",
    18: "NVML: Driver/library version mismatch: the driver's libraries were upgraded while the old kernel "
    "module is still loaded; reboot the host or reload the module, then restart this pod",
    4: "NVML: Insufficient Permissions: this container may not open the GPU's device nodes",
}
_UNSEEN = (
    "NVML: Insufficient Permissions: to see MIG devices the plugin needs the capability SYS_ADMIN and "
    "NVIDIA_MIG_MONITOR_DEVICES=all"
)


def pci_address(bus_id: str) -> str:
    """NVML's "00000000:3B:00.0" as the kernel writes it: "0000:3b:00.0"."""
    domain, _, rest = bus_id.partition(":")
    return f"{int(domain, 16):04x}:{rest}".lower()


def numa_node(bus: str, root: Path = Path("/")) -> int | None:
    """The NUMA node of a PCI device; None if the kernel has none (it writes -1)."""
    try:
        node = int((root / "sys/bus/pci/devices" / bus / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _mig_enabled(nvml: Any, handle: Any) -> bool:
    try:
        current, _pending = nvml.nvmlDeviceGetMigMode(handle)
    except nvml.NVMLError as error:
        if unsupported(nvml, error):
            return False
        raise
    return bool(current)


def _capability(nvml: Any, handle: Any) -> tuple[int, int] | None:
    try:
        major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
    except nvml.NVMLError as error:
        if unsupported(nvml, error):
            return None
        raise
    return int(major), int(minor)


def _minor(nvml: Any, handle: Any) -> int | None:
    """N of /dev/nvidiaN; None where there is no such node, as in WSL2."""
    try:
        return int(nvml.nvmlDeviceGetMinorNumber(handle))
    except nvml.NVMLError as error:
        if unsupported(nvml, error):
            return None
        raise


def _memory(nvml: Any, handle: Any) -> int | None:
    """None of GPUs without memory of their own, such as GB10."""
    try:
        return int(nvml.nvmlDeviceGetMemoryInfo(handle).total) or None
    except nvml.NVMLError as error:
        if unsupported(nvml, error):
            return None
        raise


def unsupported(nvml: Any, error: Exception) -> bool:
    """True if the error means that this GPU or driver does not support the call."""
    return getattr(error, "value", None) in (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    )


def _with_mig_devices(nvml: Any, handle: Any, gpu: Device, minor: int | None, root: Path) -> Described:
    found, refused = [gpu], {}
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
        try:
            mig = nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) in (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT):
                continue  # an empty slot
            raise
        index = f"{gpu.index}:{slot}"
        try:
            instance = (nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig))
            attributes = nvml.nvmlDeviceGetAttributes_v2(mig)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) != nvml.NVML_ERROR_NO_PERMISSION:
                raise
            refused[index] = Reason(reason(error).code, _UNSEEN)
            continue
        found.append(
            Device(
                uuid=text(nvml.nvmlDeviceGetUUID(mig)),
                index=index,
                name=gpu.name,
                gpu=gpu.uuid,
                bus=gpu.bus,
                memory=attributes.memorySizeMB * MIB,
                numa=gpu.numa,
                nodes=(*gpu.nodes, *_capability_nodes(minor, instance, root)),
                profile=_profile(nvml, mig, attributes, gpu.memory),
                instance=instance,
            )
        )
    return Described(tuple(found), refused)


def _profile(nvml: Any, mig: Any, attributes: Any, gpu_memory: int | None) -> str:
    """The MIG profile's name: from the driver's device name if that ends in it, else computed as NVIDIA does."""
    named = re.search(r" MIG (\S+)$", text(nvml.nvmlDeviceGetName(mig)))
    if named:
        return named[1]
    gpu_slices, compute_slices = attributes.gpuInstanceSliceCount, attributes.computeInstanceSliceCount
    memory = attributes.memorySizeMB * MIB
    eighths = math.ceil(memory / (gpu_memory or memory) * 8)
    gigabytes = round(eighths / 8 * math.ceil((gpu_memory or memory) / GIB))
    part = "" if compute_slices == gpu_slices else f"{compute_slices}c."
    return f"{part}{gpu_slices}g.{gigabytes}gb"


def _capability_nodes(minor: int | None, instance: tuple[int, int], root: Path) -> list[str]:
    """The /dev/nvidia-caps nodes that guard a MIG device's GPU instance and compute instance."""
    gpu_instance = root / f"proc/driver/nvidia/capabilities/gpu{minor}/mig/gi{instance[0]}"
    nodes = []
    for access in (gpu_instance / "access", gpu_instance / f"ci{instance[1]}" / "access"):
        try:
            number = re.search(r"DeviceFileMinor:\s*(\d+)", access.read_text())
        except OSError:
            continue  # not visible in this container: the runtime finds them by the UUID
        if number:
            nodes.append(f"/dev/nvidia-caps/nvidia-cap{number[1]}")
    return nodes
