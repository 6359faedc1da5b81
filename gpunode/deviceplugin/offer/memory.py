"""Sharing GPUs by memory: the kubelet counts pieces of a GPU's memory. Pure.

Resource names and variables are those of AliyunContainerService/gpushare-device-plugin
(pkg/gpu/nvidia/{const,nvidia,allocate}.go), so that pods written for it run unchanged. Unlike there, every GPU counts
with its own size, an id encodes its size, and only the kubelet and this plugin choose the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

from ..gpus.devices import MIB, Device
from ..settings.config import GPU_MEM, MemorySharing
from . import ids as unit_ids
from .listing import MAX_LIST, unit_bytes


def pieces(device: Device, sharing: MemorySharing) -> int:
    """Number of a GPU's units, rounded down."""
    return (device.memory or 0) // MIB // sharing.chunk


def ids(device: Device, sharing: MemorySharing) -> list[str]:
    """The units' ids."""
    return unit_ids.pieces(device.uuid, sharing, pieces(device, sharing))


def counts(sharing: MemorySharing) -> bool:
    """True if the node also offers aliyun.com/gpu-count, the number of GPUs shared by memory.

    gpushare's scheduler extender and its inspect divide the node's memory by that number (pkg/utils/node.go,
    cmd/inspect/nodeinfo.go). gpushare's plugin writes it into the node's status, for which it needs the right to patch
    nodes. A resource registered with the kubelet needs no such right; its units are never allocated.
    """
    return sharing.resource == GPU_MEM


def obstacle(devices: Sequence[Device], sharing: MemorySharing) -> str | None:
    """Why these GPUs cannot be shared by memory, with the fix; None if they can."""
    for gpu in devices:
        instead = "name only the other GPUs in sharing.memory.devices"
        if gpu.mig_enabled or gpu.profile is not None:
            return f"MIG is on for GPU {gpu.index}, and memory is shared of whole GPUs only: switch MIG off, or {instead}"
        if gpu.memory is None:
            return f"the memory of GPU {gpu.index} is shared with the host, so there is none of its own to divide: {instead}"
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
    """Upper bound of the list's size in the device plugin protocol, in bytes."""
    total = 0
    for gpu in devices:
        units = (gpu.memory or 0) // MIB // chunk
        total += units * unit_bytes(f"{gpu.uuid}:{chunk}:{max(units - 1, 0)}", gpu)
    return total


def environment(devices: Sequence[Device], units: int, sharing: MemorySharing) -> dict[str, str]:
    """gpushare's variables about a container's share, in units; frameworks limit themselves by them.

    The kubelet asks for one container at a time and does not name its pod. So …_POD has the container's own number,
    which is right for pods with one sharing container. …_IDX and …_DEV: of several GPUs all indexes, and the first's size.
    """
    return {
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(device.index for device in devices),
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": str(pieces(devices[0], sharing)),
    }


def size(mib: int) -> str:
    """MiB in words: "6 GiB", "300 MiB"."""
    return f"{mib // 1024} GiB" if mib and mib % 1024 == 0 else f"{mib} MiB"
