"""A simulated machine: what it is (Machine) and how it is now (Now, kept in a file by State).

    HOST/root/        what the agent sees as /
    HOST/bin/         its programs
    HOST/answers/     what programs print that only look; made anew from Now at every change
    HOST/state.json   Machine and Now, changed under a lock by one process at a time

The standard library only: the programs of a host start fast and find no other.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

DOWN = "down"  # a file in a machine's folder while it reboots


@dataclass(frozen=True, slots=True)
class SimGpu:
    """A GPU on the bus. `device` is its PCI id in hex, `name` what nvidia-smi calls it."""

    uuid: str
    name: str
    device: str
    address: str
    memory_mib: int
    numa: int = 0


@dataclass(frozen=True, slots=True)
class Machine:
    """What a machine is and remains. `os` is an id and version: debian-12, ubuntu-22.04, rocky-9."""

    name: str
    os: str
    kernel: str
    runtime: Literal["docker", "containerd"]
    kubelet: str  # 1.36.3
    gpus: tuple[SimGpu, ...] = ()
    nouveau: bool = False  # its kernel has nouveau, which takes the GPUs at boot unless it is blacklisted
    pace: float = 0.0  # seconds that a package takes to install

    @property
    def rpm(self) -> bool:
        """Whether its packages are RPMs."""
        return not self.os.startswith(("debian", "ubuntu"))


@dataclass(slots=True)
class UnitNow:
    """A systemd unit. `active` and `sub` in systemd's words; `since` seconds since the epoch, 0 when not active."""

    active: str = "inactive"
    sub: str = "dead"
    since: float = 0.0
    enabled: bool = True
    restarts: int = 0
    failed: float = 0.0  # when a unit that crashes again and again first did
    pid: int = 0
    journal: list[tuple[float, str]] = field(default_factory=list)


@dataclass(slots=True)
class PackageNow:
    """An installed package."""

    version: str
    held: bool = False


@dataclass(slots=True)
class RuntimeNow:
    """What the running docker or containerd knows: read from its files when it started."""

    handlers: list[str] = field(default_factory=lambda: ["runc"])
    default: str = "runc"
    cgroup_driver: str = "cgroupfs"  # docker's, and its default where systemd's is not asked for


@dataclass(slots=True)
class Now:
    """How a machine is now."""

    boot_id: str = ""
    booted: float = 0.0
    down_until: float = 0.0  # the end of its last reboot: nobody answers before
    units: dict[str, UnitNow] = field(default_factory=dict)
    packages: dict[str, PackageNow] = field(default_factory=dict)
    listed: list[str] = field(default_factory=list)  # package sources that apt has fetched
    modules: dict[str, str] = field(default_factory=dict)  # loaded kernel modules and their versions
    flavour: str = ""  # of the loaded nvidia module: open | proprietary
    images: dict[str, str] = field(
        default_factory=dict
    )  # image reference -> id, in the machine's own runtime
    runtime: RuntimeNow = field(default_factory=RuntimeNow)
    arguments: list[str] = field(default_factory=list)  # of the running kubelet
    library: str = ""  # version of the driver's library on disk, "" where none is
    xids: list[tuple[str, int]] = field(default_factory=list)  # (GPU's uuid, Xid), in the order they came
    lost: list[str] = field(default_factory=list)  # UUIDs of GPUs that have fallen off the bus
    faults: dict[str, str] = field(default_factory=dict)  # what is broken on purpose: name -> detail

    def running(self, unit: str) -> bool:
        """Whether a unit is active."""
        return unit in self.units and self.units[unit].active == "active"


class State:
    """A machine's state file, in its folder of the demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self._path = folder / "state.json"

    def create(self, machine: Machine, now: Now) -> None:
        """Write the first state of a new machine."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write({"machine": asdict(machine), "now": asdict(now)})

    def machine(self) -> Machine:
        """What it is."""
        return _machine(self._read()["machine"])

    def now(self) -> Now:
        """How it is, read without waiting: a change is seen wholly or not at all."""
        return _now(self._read()["now"])

    @contextlib.contextmanager
    def change(self) -> Iterator[Now]:
        """How it is, to be changed: written, with the answers of its programs, when the block ends without error."""
        from gpunode.sim import answers

        with (self.folder / "state.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            data = self._read()
            machine, now = _machine(data["machine"]), _now(data["now"])
            yield now
            answers.write(self.folder, machine, now)
            self._write({"machine": data["machine"], "now": asdict(now)})

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._path.read_text(encoding="utf-8")))

    def _write(self, data: dict[str, Any]) -> None:
        new = self._path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(data), encoding="utf-8")
        new.replace(self._path)


def log(unit: UnitNow, *lines: str) -> None:
    """Add lines to a unit's journal."""
    unit.journal = [*unit.journal, *((time.time(), line) for line in lines)][-200:]


def _machine(data: dict[str, Any]) -> Machine:
    return Machine(**{**data, "gpus": tuple(SimGpu(**gpu) for gpu in data["gpus"])})


def _now(data: dict[str, Any]) -> Now:
    units = {
        name: UnitNow(**{**unit, "journal": [(when, line) for when, line in unit["journal"]]})
        for name, unit in data["units"].items()
    }
    return Now(
        **{
            **data,
            "units": units,
            "packages": {name: PackageNow(**package) for name, package in data["packages"].items()},
            "runtime": RuntimeNow(**data["runtime"]),
            "xids": [(uuid, number) for uuid, number in data["xids"]],
        }
    )
