"""The GPUs of this machine, their MIG devices and how well they are connected, read through NVML.

`nvml` is a `nvml.Nvml` wherever it is a parameter.
"""

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import combinations, count
from pathlib import Path
from typing import Any

from gpunode.contract.offer import MIB, Device
from gpunode.contract.status import Reason


class Handles:
    """Handles taken by index and kept until NVML restarts. For any thread.

    Not nvmlDeviceGetHandleByUUID: it fails for every GPU while "any GPU has fallen off the bus" (nvml.h), the question by
    index only for the one that has.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self._indexes: dict[str, int] = {}
        self._handles: dict[str, Any] = {}
        self._closed = False

    def take(self, index: int) -> tuple[str, Any]:
        """UUID and handle of GPU number `index`. Raises NVMLError."""
        handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(self.nvml.nvmlDeviceGetUUID(handle))
        self._indexes[uuid], self._handles[uuid] = index, handle
        return uuid, handle

    def of(self, uuid: str) -> Any:
        """The GPU's handle. Raises NVMLError."""
        if self._closed:
            raise self.nvml.NVMLError(self.nvml.NVML_ERROR_UNINITIALIZED)
        known = self._handles.get(uuid)
        return self._find(uuid) if known is None else known

    def drop(self, uuid: str) -> None:
        """Take the GPU's handle again before its next use: it may be back after an error."""
        self._handles.pop(uuid, None)

    def close(self) -> None:
        """Drop all handles, and refuse them until `open`: NVML restarts."""
        self._closed = True
        self._handles.clear()

    def open(self) -> None:
        self._closed = False

    def _find(self, uuid: str) -> Any:
        """By the index where the GPU was last; a GPU that was never taken is searched."""
        known = self._indexes.get(uuid)
        error = self.nvml.NVMLError(self.nvml.NVML_ERROR_NOT_FOUND)
        for index in range(self.nvml.nvmlDeviceGetCount()) if known is None else (known,):
            try:
                taken, handle = self.take(index)
            except self.nvml.NVMLError as failed:
                error = failed
            else:
                if taken == uuid:
                    return handle
        raise error


def text(value: str | bytes) -> str:
    """The value as str: NVML's versions return either type."""
    return value.decode() if isinstance(value, bytes) else value


GIB = 1024 * MIB


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
    minor = ask(nvml, nvml.nvmlDeviceGetMinorNumber, handle)  # of /dev/nvidiaN; None in WSL2
    mig, _pending = ask(nvml, nvml.nvmlDeviceGetMigMode, handle) or (False, False)
    memory = ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
    capability = ask(nvml, nvml.nvmlDeviceGetCudaComputeCapability, handle)
    gpu = Device(
        uuid=uuid,
        index=str(index),
        name=text(nvml.nvmlDeviceGetName(handle)),
        gpu=uuid,
        bus=bus,
        memory=int(memory.total) or None if memory else None,  # none of their own: GPUs such as GB10
        numa=numa_node(bus, root),
        nodes=() if minor is None else (f"/dev/nvidia{minor}",),
        mig_enabled=bool(mig),
        capability=capability and (int(capability[0]), int(capability[1])),
    )
    if not mig:
        return Described((gpu,))
    return _with_mig_devices(nvml, handle, gpu, minor, root)


def describe_all(handles: Handles, number: int) -> dict[int, Described]:
    """Those of the first `number` GPUs that answer, by index: one after the other, as an idle plugin asks."""
    described = {}
    for index in range(number):
        with suppress(handles.nvml.NVMLError):
            described[index] = describe(handles, index)
    return described


def reason_of(error: Exception) -> Reason:
    """The code of an NVML error, its meaning and the fix."""
    value = getattr(error, "value", None)
    return _REASONS.get(value) or Reason("nvml-error", f"{error}" if value is None else f"NVML: {error}")


def explain(error: Exception) -> str:
    """The meaning of an NVML error and the fix, in one sentence."""
    return reason_of(error).words


NVML_SILENT = "nvml-silent"  # code: NVML does not answer in time
_REASONS: Mapping[Any, Reason] = {  # by nvmlReturn_t
    4: Reason(
        "nvml-no-permission",
        "NVML: Insufficient Permissions: this container may not open the GPU's device nodes",
    ),
    9: Reason(
        "driver-not-loaded",
        "NVML: Driver Not Loaded: the nvidia kernel module is not loaded on this host, or this container does "
        "not see it; run nvidia-smi on the host",
    ),
    12: Reason(
        "nvml-library-missing",
        "NVML: Shared Library Not Found: no libnvidia-ml.so.1 in this container; the host has no driver, or the "
        "container was not started by the nvidia runtime (default runtime, or runtimeClassName: nvidia) with "
        "NVIDIA_VISIBLE_DEVICES=all; restart this pod after the fix",
    ),
    15: Reason("gpu-lost", "NVML: GPU is lost; it no longer answers on the PCI bus (Xid 79)"),
    16: Reason("gpu-requires-reset", "NVML: GPU requires reset: nvidia-smi --gpu-reset, or reboot the host"),
    18: Reason(
        "driver-library-mismatch",
        "NVML: Driver/library version mismatch: the driver's libraries were upgraded while the old kernel "
        "module is still loaded; reboot the host or reload the module, then restart this pod",
    ),
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


def unsupported(nvml: Any, error: Exception) -> bool:
    """True if the error means that this GPU or driver does not support the call."""
    return getattr(error, "value", None) in (
        nvml.NVML_ERROR_NOT_SUPPORTED,
        nvml.NVML_ERROR_FUNCTION_NOT_FOUND,
    )


def ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer; None if this GPU or driver does not support the call. Raises NVMLError."""
    try:
        return question(*arguments)
    except nvml.NVMLError as error:
        if unsupported(nvml, error):
            return None
        raise


def mig_handles(nvml: Any, gpu: Any) -> Iterator[tuple[int, Any]]:
    """Slot and handle of each MIG device of a GPU whose MIG is on. Raises NVMLError."""
    for slot in range(nvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            yield slot, nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
        except nvml.NVMLError as error:
            empty = (nvml.NVML_ERROR_NOT_FOUND, nvml.NVML_ERROR_INVALID_ARGUMENT)
            if getattr(error, "value", None) not in empty:
                raise


def _with_mig_devices(nvml: Any, handle: Any, gpu: Device, minor: int | None, root: Path) -> Described:
    devices, refused = [gpu], {}
    for slot, mig in mig_handles(nvml, handle):
        index = f"{gpu.index}:{slot}"
        try:
            instance = (nvml.nvmlDeviceGetGpuInstanceId(mig), nvml.nvmlDeviceGetComputeInstanceId(mig))
            attributes = nvml.nvmlDeviceGetAttributes_v2(mig)
        except nvml.NVMLError as error:
            if getattr(error, "value", None) != nvml.NVML_ERROR_NO_PERMISSION:
                raise
            refused[index] = Reason(reason_of(error).code, _UNSEEN)
            continue
        devices.append(
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
    return Described(tuple(devices), refused)


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


# Points for the closest common ancestor of two GPUs (nvmlGpuTopologyLevel_t), and for every NVLink between them;
# the weights are those of NVIDIA's go-gpuallocator.
LEVELS = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
NVLINK = 100
# Of which any can be missing, such as a disabled one; later ones are asked until there are no more
NVLINKS = 18


Links = Mapping[frozenset[str], int]  # UUIDs of two GPUs -> how well they are connected


def read_links(handles: Handles, gpus: Sequence[Device]) -> dict[frozenset[str], int]:
    """Points by the UUIDs of two GPUs. What NVML cannot report counts 0."""
    nvml = handles.nvml
    peers = {gpu.uuid: _peers(handles, gpu.uuid) for gpu in gpus}
    points = {}
    for gpu, other in combinations(gpus, 2):
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(handles.of(gpu.uuid), handles.of(other.uuid))
        except nvml.NVMLError:
            level = None
        pair = frozenset((gpu.uuid, other.uuid))
        points[pair] = LEVELS.get(level, 0) + NVLINK * peers[gpu.uuid].count(other.bus)
    return points


def _peers(handles: Handles, uuid: str) -> list[str]:
    """PCI addresses at the other ends of a GPU's active NVLinks, one for each link; none of a GPU that is lost."""
    nvml, ends = handles.nvml, []
    with suppress(nvml.NVMLError):
        handle = handles.of(uuid)
        for number in (number for number, active in nvlinks(nvml, handle).items() if active):
            with suppress(nvml.NVMLError):
                ends.append(pci_address(text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId)))
    return ends


def nvlinks(nvml: Any, gpu: Any) -> Mapping[int, bool]:
    """Whether each of a GPU's NVLinks is active, by number. Raises NVMLError, also where there is none."""
    active: dict[int, bool] = {}
    for number in count():
        try:
            active[number] = bool(nvml.nvmlDeviceGetNvLinkState(gpu, number))
        except nvml.NVMLError as error:
            gap = unsupported(nvml, error) or error.value == nvml.NVML_ERROR_INVALID_ARGUMENT
            if not gap or (number >= NVLINKS and not active):
                raise
            if number >= NVLINKS:
                break
    return active


def compute_pids(nvml: Any, handle: Any) -> list[int]:
    """The processes that use a GPU or MIG device; [] where the driver does not list them. Raises NVMLError."""
    # The call's version of newer drivers, then that of drivers before R510.
    for listed in (
        nvml.nvmlDeviceGetComputeRunningProcesses_v3,
        nvml.nvmlDeviceGetComputeRunningProcesses_v2,
    ):
        if (processes := ask(nvml, listed, handle)) is not None:
            return sorted({int(process.pid) for process in processes})
    return []


def process_name(pid: int, proc: Path = Path("/proc")) -> str:
    """A process's name; "" of one that has ended, or is another container's."""
    try:
        return (proc / str(pid) / "comm").read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
