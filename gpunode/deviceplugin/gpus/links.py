"""How well the GPUs of a machine are connected with each other, by NVML."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations, count

from gpunode.contract.offer import Device

from .devices import pci_address, unsupported
from .handles import Handles, text

# Points for the closest common ancestor of two GPUs (nvmlGpuTopologyLevel_t), and for every NVLink between them;
# the weights are those of NVIDIA's go-gpuallocator.
LEVELS = {0: 60, 10: 50, 20: 40, 30: 30, 40: 20, 50: 10}
NVLINK = 100
NVLINKS = (
    18  # of which any can be missing, such as a disabled one; later ones are asked until there are no more
)


def links(handles: Handles, gpus: Sequence[Device]) -> dict[frozenset[str], int]:
    """Points by the UUIDs of two GPUs. What NVML cannot report counts 0."""
    nvml = handles.nvml
    peers = {gpu.uuid: _nvlinks(handles, gpu.uuid) for gpu in gpus}
    points = {}
    for one, other in combinations(gpus, 2):
        try:
            level = nvml.nvmlDeviceGetTopologyCommonAncestor(handles.of(one.uuid), handles.of(other.uuid))
        except nvml.NVMLError:
            level = None
        pair = frozenset((one.uuid, other.uuid))
        points[pair] = LEVELS.get(level, 0) + NVLINK * peers[one.uuid].count(other.bus)
    return points


def _nvlinks(handles: Handles, uuid: str) -> list[str]:
    """PCI addresses at the other ends of a GPU's active NVLinks, one for each link; none of a GPU that is lost."""
    nvml, ends = handles.nvml, []
    for number in count():
        try:
            handle = handles.of(uuid)
            if nvml.nvmlDeviceGetNvLinkState(handle, number):
                ends.append(pci_address(text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, number).busId)))
        except nvml.NVMLError as error:
            gap = unsupported(nvml, error) or error.value == nvml.NVML_ERROR_INVALID_ARGUMENT
            if number >= NVLINKS or not gap:
                break
    return ends
