"""How well the GPUs of a machine are connected with each other, by NVML."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

from .devices import Device, pci_address, text

# Points for the closest common ancestor of two GPUs (nvmlGpuTopologyLevel_t), and for every NVLink between them;
# the weights are those of NVIDIA's go-gpuallocator.
LEVELS = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
NVLINK = 100
MAX_NVLINKS = 18


def links(nvml: Any, gpus: Sequence[Device]) -> dict[frozenset[str], int]:
    """Points by the UUIDs of two GPUs. What NVML cannot report counts 0."""
    handles = {gpu.uuid: nvml.nvmlDeviceGetHandleByUUID(gpu.uuid) for gpu in gpus}
    peers = {gpu.uuid: _nvlinks(nvml, handles[gpu.uuid]) for gpu in gpus}
    points = {}
    for one, other in combinations(gpus, 2):
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(handles[one.uuid], handles[other.uuid])
        except nvml.NVMLError:
            level = None
        pair = frozenset((one.uuid, other.uuid))
        points[pair] = LEVELS.get(level, 0) + NVLINK * peers[one.uuid].count(other.bus)
    return points


def _nvlinks(nvml: Any, handle: Any) -> list[str]:
    """PCI addresses at the other ends of a GPU's active NVLinks, one for each link."""
    ends = []
    for number in range(MAX_NVLINKS):
        try:
            if nvml.nvmlDeviceGetNvLinkState(handle, number):
                ends.append(pci_address(text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId)))
        except nvml.NVMLError:
            break  # this GPU has no link of that number
    return ends
