"""GPUs by their PCI ids: what they are, and which branches and module flavours drive them."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from gpunode.model import Flavour, PciDevice
from gpunode.planning.tables import LATEST, table

# Kernel drivers that hold a device for a virtual machine. source: drivers/vfio/pci, drivers/xen and drivers/pci/pci-stub.c of Linux
PASSING = ("vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub", "pciback")
# Linux' own drivers for GPUs, as sysfs names them, and their modules. The PCI driver of nova, nouveau's successor, has a name
# of its own. source: drivers/gpu/nova-core/nova_core.rs and drivers/gpu/drm/nova of Linux; Launchpad #2150845 (Ubuntu 26.04's
# first kernels load it at boot)
FREE = ("nouveau", "NovaCore", "nova_core", "nova-core")
FREE_MODULES = ("nouveau", "nova_core", "nova_drm", "nova")


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model. Branches from `first` to `last` drive it; the open modules know it from `open_first` on."""

    device: str
    name: str
    generation: str
    first: int
    last: int
    open_first: int
    flavours: tuple[Flavour, ...]
    accelerator: str


def gpus(pci: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """The GPUs among PCI functions: NVIDIA's display controllers (0300, 0302), not their audio or USB functions."""
    return tuple(d for d in pci if d.vendor.lower() == "10de" and d.cls[:4] in ("0300", "0302"))


def switches(pci: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """NVSwitches among PCI functions, up to NVLink 4; of NVLink 5 the functions that manage them."""
    return tuple(d for d in pci if d.vendor.lower() == "10de" and d.cls[:4] == "0680") + managers(pci)


def managers(pci: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """The InfiniBand functions that manage NVSwitches of NVLink 5; a probe finds no others of that vendor."""
    return tuple(d for d in pci if d.vendor.lower() == "15b3" and d.cls[:4] == "0207")


def is_passed_through(device: PciDevice) -> bool:
    return device.driver in PASSING


def held_by_linux(pci: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """The GPUs that a driver of Linux' own holds, so that NVIDIA's cannot."""
    return tuple(d for d in gpus(pci) if d.driver in FREE)


def driven(pci: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """The GPUs that NVIDIA's driver is for: not those for virtual machines, unless all are."""
    every = gpus(pci)
    return tuple(d for d in every if not is_passed_through(d)) or every


def fraction(device: PciDevice) -> str:
    """The profile of a virtual GPU, as far as known; "" for a whole GPU."""
    ids, part = device.device.lower(), device.subsystem.lower()
    named = table(__package__, "gpus.yaml")["fractions"].get(f"{ids}:{part}")
    ranges = (row.partition("-") for row in table(__package__, "gpus.yaml")["virtual"].get(ids, ()))
    virtual = any(low <= part <= (high or low) for low, _, high in ranges)
    return str(named) if named else f"a vGPU ({gpu(ids).name})" if virtual else ""


@cache
def gpu(device: str) -> Model:
    """The model of a PCI device id; by the id's range where the table has no entry."""
    device = device.lower()
    generations = table(__package__, "gpus.yaml")["generations"]
    row: Mapping[str, Any] = table(__package__, "gpus.yaml")["gpus"].get(device) or {}
    key = row.get("generation") or _generation(device)
    if key is None:
        return Model(device, f"unknown GPU 10de:{device}", "unknown", LATEST, 0, LATEST, (), "nvidia-gpu")
    generation = generations[key]
    return Model(
        device=device,
        name=row.get("name", f"{generation['name']} GPU 10de:{device}"),
        generation=generation["name"],
        first=row.get("first", generation["first"]),
        last=generation.get("last", LATEST),
        open_first=row.get("open_first", max(515, row.get("first", generation["first"]))),
        flavours=tuple(generation["flavours"]),
        accelerator=row.get("accelerator", f"nvidia-{key}"),
    )


def accelerator(name: str) -> str:
    """The value of the label `accelerator` for a GPU of this name in NVML; "" for a model that the table does not have."""
    rows = table(__package__, "gpus.yaml")
    models = {model.name: model.accelerator for model in map(gpu, rows["gpus"])}
    return str((models | rows["names"]).get(name.removeprefix("NVIDIA "), ""))


def accelerator_of(device: PciDevice) -> str:
    """The same for a GPU on the PCI bus; by its generation where the table does not have it."""
    board = f"{device.device}:{device.subsystem}"
    return str(table(__package__, "gpus.yaml")["boards"].get(board) or gpu(device.device).accelerator)


def _generation(device: str) -> str | None:
    if not re.fullmatch(r"[0-9a-f]{1,8}", device):
        return None  # sysfs could not be read
    number = int(device, 16)
    for key, row in table(__package__, "gpus.yaml")["generations"].items():
        for limits in row["ranges"]:
            low, high = limits.split("-")
            if int(low, 16) <= number <= int(high, 16):
                return str(key)
    return None
