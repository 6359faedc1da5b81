"""The kinds of simulated machines."""

import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gpunode.sim.host.machine import Machine, SimGpu

PACE = 0.04  # seconds for a package, so that the show has something to show
ADDRESSES = ("0000:1b:00.0", "0000:43:00.0", "0000:9b:00.0", "0000:c3:00.0")
DEBIAN, UBUNTU = "6.1.0-40-amd64", "5.15.0-161-generic"


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model: its PCI id, its name in nvidia-smi, its memory in MiB; what a healthy one reaches (GB/s of memory, FP32 TFLOPS), its
    PCIe generation, its power limit in watts, its number of NVLinks."""

    device: str
    name: str
    memory_mib: int
    memory_gbps: float
    compute_tflops: float
    pcie: int
    power: int
    nvlinks: int = 0


MODELS: Mapping[str, Model] = {
    "k80": Model("102d", "Tesla K80", 11441, 170, 2.6, 3, 150),
    "p100": Model("15f8", "Tesla P100-PCIE-16GB", 16384, 550, 8.9, 3, 250),
    "v100": Model("1db5", "Tesla V100-SXM2-32GB", 32768, 810, 14.6, 3, 300, 6),
    "t4": Model("1eb8", "Tesla T4", 15360, 240, 4.6, 3, 70),
    "a100": Model("20b2", "NVIDIA A100-SXM4-80GB", 81920, 1740, 18.9, 4, 400, 12),
    "a10": Model("2236", "NVIDIA A10", 23028, 500, 18, 4, 150),
    "l40s": Model("26b9", "NVIDIA L40S", 46068, 710, 62, 4, 350),
    "l4": Model("27b8", "NVIDIA L4", 23034, 250, 15, 4, 72),
    "h100": Model("2330", "NVIDIA H100 80GB HBM3", 81559, 2980, 58.3, 5, 700, 18),
    "h200": Model("2335", "NVIDIA H200", 143771, 4250, 58.5, 5, 700, 18),
    "b200": Model("2901", "NVIDIA B200", 183359, 6700, 68, 5, 1000, 18),
}


def gpus(host: str, model: str, count: int) -> tuple[SimGpu, ...]:
    """A host's GPUs, with reproducible UUIDs."""
    kind = MODELS[model]
    more = tuple(f"0000:{0x10 + 3 * number:02x}:00.0" for number in range(count))
    addresses = ADDRESSES[:count] if count <= len(ADDRESSES) else more
    return tuple(
        SimGpu(
            uuid=f"GPU-{uuid.uuid5(uuid.NAMESPACE_OID, f'gpunode demo {host} {address}')}",
            name=kind.name,
            device=kind.device,
            address=address,
            memory_mib=kind.memory_mib,
            numa=number // max(2, (count + 1) // 2),
        )
        for number, address in enumerate(addresses)
    )


def old_host(name: str, model: str = "p100", count: int = 2) -> Machine:
    """Ubuntu with docker and a kubelet that still runs its pods with it."""
    return Machine(name, "ubuntu-22.04", UBUNTU, "docker", "1.23.17", gpus(name, model, count))


def new_host(name: str, model: str = "h100", count: int = 4) -> Machine:
    """Debian with containerd and a current kubelet."""
    return Machine(name, "debian-12", DEBIAN, "containerd", "1.36.3", gpus(name, model, count))


def nouveau_host(name: str) -> Machine:
    return replace(new_host(name, "a100", 2), free="nouveau")


def host_without_gpus(name: str) -> Machine:
    return replace(new_host(name), gpus=())


def driver(model: str) -> str:
    """The package of a driver that fits the GPUs, for a host that has one already."""
    if model == "k80":
        return "cuda-drivers-470"
    return "cuda-drivers-580" if model in ("p100", "v100") else "nvidia-open-580"


def fleet(hosts: int) -> tuple[Machine, ...]:
    """`hosts` of the two usual kinds, four new ones for each old one: p100-01, h100-01 …"""
    width, old = max(2, len(str(hosts))), 0
    made: list[Machine] = []
    for number in range(hosts):
        old += number % 5 == 0
        name = f"p100-{old:0{width}}" if number % 5 == 0 else f"h100-{number + 1 - old:0{width}}"
        made.append(old_host(name) if number % 5 == 0 else new_host(name))
    return tuple(made)


def usual() -> tuple[Machine, ...]:
    """The hosts of the show: three that become GPU nodes in different ways, and one that cannot."""
    made = (old_host("p100-01"), new_host("h100-01"), nouveau_host("a100-01"), host_without_gpus("cpu-01"))
    return tuple(replace(machine, pace=PACE) for machine in made)
