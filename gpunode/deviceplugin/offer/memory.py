"""Sharing GPUs by memory: the kubelet counts pieces of a GPU's memory. Pure.

Resource names and variables are those of AliyunContainerService/gpushare-device-plugin
(pkg/gpu/nvidia/{const,nvidia,allocate}.go), so that pods written for it run unchanged. Unlike there, every GPU counts
with its own size, an id encodes its size, and only the kubelet and this plugin choose the GPU.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.contract.config import MemorySharing
from gpunode.contract.offer import Device, count_pieces


def environment(devices: Sequence[Device], units: int, sharing: MemorySharing) -> dict[str, str]:
    """gpushare's variables about a container's share, in units; frameworks limit themselves by them.

    The kubelet asks for one container at a time and does not name its pod. So …_POD has the container's own number,
    which is right for pods with one sharing container. …_IDX and …_DEV: of several GPUs all indexes, and the first's size.
    """
    return {
        "ALIYUN_COM_GPU_MEM_IDX": ",".join(device.index for device in devices),
        "ALIYUN_COM_GPU_MEM_POD": str(units),
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
        "ALIYUN_COM_GPU_MEM_DEV": str(count_pieces(devices[0], sharing)),
    }
