"""A simulated machine: its fixed properties (Machine) and its current state (Now). `state.py` keeps both in a file.

The standard library only: the programs of a host start fast and find no other.
"""

import time
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True)
class SimGpu:
    """A GPU on the bus. `device` is its PCI id in hex, `name` its name in nvidia-smi."""

    uuid: str
    name: str
    device: str
    address: str
    memory_mib: int
    numa: int = 0
    subsystem: str = ""  # the PCI id of its board, in hex


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine's fixed properties. `os` is an id and version: debian-12, ubuntu-22.04."""

    name: str
    os: str
    kernel: str
    runtime: Literal["docker", "containerd"]
    kubelet: str  # 1.36.3
    gpus: tuple[SimGpu, ...] = ()
    # A driver of its kernel that takes the GPUs at boot unless it is blacklisted
    free: Literal["", "nouveau", "nova_core"] = ""
    has: tuple[str, ...] = ()  # NVIDIA's packages that it has at first, with their dependencies
    pace: float = 0.0  # seconds that a package takes to install


@dataclass(slots=True)
class UnitNow:
    """A systemd unit. `active` and `sub` in systemd's words; `since` seconds since the epoch, 0 when not active."""

    active: str = "inactive"
    sub: str = "dead"
    since: float = 0.0
    enabled: bool = True
    restarts: int = 0
    failed: float = 0.0  # time of the first crash of a unit that keeps crashing
    pid: int = 0
    journal: list[tuple[float, str]] = field(default_factory=list)


@dataclass(slots=True)
class PackageNow:
    version: str
    held: bool = False


@dataclass(slots=True)
class RuntimeNow:
    """The configuration of the running docker or containerd, read when it started."""

    handlers: list[str] = field(default_factory=lambda: ["runc"])
    default: str = "runc"
    cgroup_driver: str = "cgroupfs"  # docker's; its default unless systemd is configured


@dataclass(slots=True)
class ContainerNow:
    """A running container, as the host sees it: its process id is one of the host's, not of this computer's."""

    id: str
    pod: str  # its pod's UID
    pid: int
    argv: list[str]
    gpu: bool = False  # it has the driver open


@dataclass(slots=True)
class Now:
    """A machine's current state."""

    boot_id: str = ""
    booted: float = 0.0
    down_until: float = 0.0  # the end of its last reboot: it does not answer before
    units: dict[str, UnitNow] = field(default_factory=dict)
    packages: dict[str, PackageNow] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)  # package sources that apt has fetched
    modules: dict[str, str] = field(default_factory=dict)  # loaded kernel modules and their versions
    flavour: str = ""  # of the loaded nvidia module: open | proprietary
    # Image reference -> id, in the machine's own runtime
    images: dict[str, str] = field(default_factory=dict)
    runtime: RuntimeNow = field(default_factory=RuntimeNow)
    arguments: list[str] = field(default_factory=list)  # of the running kubelet
    library: str = ""  # version of the driver's library on disk; "": none
    run: str = ""  # version and flavour of a driver that NVIDIA's installer brought
    xids: list[tuple[str, int]] = field(default_factory=list)  # (GPU's uuid, Xid), in the order they came
    mig: dict[str, list[str]] = field(default_factory=dict)  # UUIDs of GPUs with MIG on -> profiles
    lost: list[str] = field(default_factory=list)  # UUIDs of GPUs that have fallen off the bus
    faults: dict[str, str] = field(default_factory=dict)  # what is broken on purpose: name -> detail
    containers: list[ContainerNow] = field(default_factory=list)  # of pods, without their sandboxes

    @property
    def gpu_users(self) -> list[ContainerNow]:
        """The containers that use the driver, which prevents unloading it."""
        return [container for container in self.containers if container.gpu and "nvidia" in self.modules]

    def is_active(self, unit: str) -> bool:
        return unit in self.units and self.units[unit].active == "active"


def log(unit: UnitNow, *lines: str) -> None:
    unit.journal = [*unit.journal, *((time.time(), line) for line in lines)][-200:]
