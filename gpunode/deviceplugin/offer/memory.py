"""Sharing GPUs by memory: what the kubelet counts are pieces of a GPU's memory. Pure.

Resource names and variables are those of AliyunContainerService/gpushare-device-plugin
(pkg/gpu/nvidia/{const,nvidia,allocate}.go), so that pods written for it run unchanged. Unlike there, every GPU counts
with its own size, an id says how much it stands for, and the choice of the GPU is the kubelet's and this plugin's alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from ..gpus.devices import MIB, Device
from ..settings.config import GPU_MEM, MemorySharing
from . import ids as unit_ids
from .listing import MAX_LIST, unit_bytes


def pieces(device: Device, sharing: MemorySharing) -> int:
    """How many units a GPU is worth; what is left over is nobody's."""
    return device.memory // MIB // sharing.chunk


def ids(device: Device, sharing: MemorySharing) -> list[str]:
    """The units' ids."""
    return unit_ids.pieces(device.uuid, sharing, pieces(device, sharing))


def counts(sharing: MemorySharing) -> bool:
    """Whether the node is to say how many GPUs it shares, as aliyun.com/gpu-count.

    gpushare's scheduler extender and its inspect divide the node's memory by that number (pkg/utils/node.go,
    cmd/inspect/nodeinfo.go). gpushare's plugin writes it into the node's status, for which it needs the right to patch
    nodes. A resource of its own, registered with the kubelet like any other, gets it there without any right; its
    units are never handed out.
    """
    return sharing.resource == GPU_MEM


def obstacle(devices: Sequence[Device], sharing: MemorySharing) -> str | None:
    """Why these GPUs cannot be shared by memory, and what to do; None if they can."""
    for gpu in devices:
        instead = f"name the other GPUs in sharing.memory.devices, and GPU {gpu.index} stays out of it"
        if gpu.mig_enabled or gpu.profile is not None:
            return f"MIG is on for GPU {gpu.index}, and memory is shared of whole GPUs only: switch MIG off, or {instead}"
        if not gpu.memory:
            return f"NVML does not say how much memory GPU {gpu.index} has (it shares the CPU's): {instead}"
        if not pieces(gpu, sharing):
            return f"GPU {gpu.index} has {size(gpu.memory // MIB)}, less than one unit of {size(sharing.chunk)}: {instead}"
    chunk = sharing.chunk
    total = sum(pieces(gpu, sharing) for gpu in devices)
    length = list_bytes(devices, chunk)
    if length <= MAX_LIST:
        return None
    enough = next(larger for larger in count(chunk) if list_bytes(devices, larger) <= MAX_LIST)
    return (
        f"{total} units of {size(chunk)} make a list of up to {length} bytes, but the kubelet takes no more than "
        f"{MAX_LIST}: set sharing.memory.chunk to {enough} or more (MiB), or sharing.memory.unit to GiB"
    )


def list_bytes(devices: Sequence[Device], chunk: int) -> int:
    """How long the list of the units can become in the device plugin's protocol; never less than it is."""
    total = 0
    for gpu in devices:
        units = gpu.memory // MIB // chunk
        total += units * unit_bytes(f"{gpu.uuid}:{chunk}:{max(units - 1, 0)}", gpu)
    return total


def environment(device: Device, units: int, sharing: MemorySharing) -> dict[str, str]:
    """What gpushare tells a container about its share, in units; frameworks limit themselves by it.

    A device plugin is asked for one container at a time, and never which pod it is of: …_POD has the container's
    own number, which is the pod's in pods with one sharing container.
    """
    return {
        "ALIYUN_COM_GPU_MEM_IDX": device.index,
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": str(pieces(device, sharing)),
    }


def size(mib: int) -> str:
    """MiB as a person says it: "6 GiB", "300 MiB"."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"
