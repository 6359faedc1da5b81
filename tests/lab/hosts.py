"""The lab's hosts: who they are, and what is on their PCI bus (models: gpu/models.py)."""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Host:
    """`number` ends its address and names its pods' network, 10.244.<number>.0/24.

    `files`: the folders of nodes/ that are put on top of its image, one over the other.
    """

    name: str
    number: int
    image: str
    files: tuple[str, ...]
    gpus: list[dict[str, Any]] = field(default_factory=list)
    pci: list[dict[str, Any]] = field(default_factory=list)


_VGA = {
    "pci": "0000:02:00.0",
    "vendor": "1a03",
    "device": "2000",
    "class": "030000",
    "numa": 0,
    "driver": "ast",
}


def _h100(index: int, pci: str, numa: int) -> dict[str, Any]:
    """One of four that are wired to each other without a switch: six NVLinks to each of the others."""
    links = [other for other in range(4) if other != index for _ in range(6)]
    return {"model": "H100-SXM5-80GB", "pci": pci, "numa": numa, "nvlinks": links}


CONTROL_PLANE = Host(
    name="control-plane",
    number=10,
    image="modern",
    files=("common", "modern", "control-plane"),
    pci=[_VGA],
)

MODERN = Host(
    name="modern",
    number=11,
    image="modern",
    files=("common", "modern"),
    gpus=[
        _h100(0, "0000:1b:00.0", 0),
        _h100(1, "0000:43:00.0", 0),
        _h100(2, "0000:9b:00.0", 1),
        _h100(3, "0000:c3:00.0", 1),
    ],
    pci=[
        _VGA,
        {
            "pci": "0000:2a:00.0",
            "vendor": "15b3",
            "device": "1021",
            "class": "020000",
            "numa": 0,
            "driver": "mlx5_core",
        },
    ],
)

LEGACY = Host(
    name="legacy",
    number=12,
    image="legacy",
    files=("common", "legacy"),
    gpus=[
        {"model": "P100-PCIE-16GB", "pci": "0000:04:00.0", "numa": 0},
        {"model": "P100-PCIE-16GB", "pci": "0000:82:00.0", "numa": 1},
    ],
    pci=[
        {
            "pci": "0000:07:00.0",
            "vendor": "8086",
            "device": "1521",
            "class": "020000",
            "numa": 0,
            "driver": "igb",
        }
    ],
)

GPU_HOSTS = (MODERN, LEGACY)
HOSTS = (CONTROL_PLANE, *GPU_HOSTS)


def host(name: str) -> Host:
    return next(each for each in HOSTS if each.name == name)
