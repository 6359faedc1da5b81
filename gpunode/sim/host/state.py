"""A simulated machine's folder, and the file in it with its properties and state.

    HOST/root/        the agent's /
    HOST/bin/         its programs
    HOST/answers/     output of read-only programs; written from Now at every change
    HOST/state.json   Machine and Now, changed under a lock by one process at a time

The standard library only, as in `machine.py`.
"""

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpunode.sim.host.machine import ContainerNow, Machine, Now, PackageNow, RuntimeNow, SimGpu, UnitNow

DOWN = "down"  # a file in a machine's folder while it reboots


class State:
    """A machine's state file, in its folder of the demo."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.root = folder / "root"
        self._path = folder / "state.json"

    def create(self, machine: Machine, now: Now) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write({"machine": asdict(machine), "now": asdict(now)})

    def machine(self) -> Machine:
        """Its fixed properties."""
        return _machine(self._read()["machine"])

    def now(self) -> Now:
        """Its current state, read without the lock: changes are atomic."""
        return _now(self._read()["now"])

    @contextlib.contextmanager
    def change(self) -> Iterator[Now]:
        """Its state, to be changed in the block; written at its end, with the answers, unless the block raises."""
        from gpunode.sim.host import answers  # most programs only read, and start faster without it

        with (self.folder / "state.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            data = self._read()
            machine, now = _machine(data["machine"]), _now(data["now"])
            yield now
            answers.write(self.folder, machine, now)
            self._write({"machine": data["machine"], "now": asdict(now)})

    def wait(self) -> Now:
        """Its state once the change that is under way, if any, is written."""
        with (self.folder / "state.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_SH)
            return self.now()

    def _read(self) -> dict[str, Any]:
        return dict(json.loads(self._path.read_text(encoding="utf-8")))

    def _write(self, data: dict[str, Any]) -> None:
        new = self._path.with_suffix(f".{os.getpid()}")
        new.write_text(json.dumps(data), encoding="utf-8")
        new.replace(self._path)


def _machine(data: dict[str, Any]) -> Machine:
    return Machine(
        **{**data, "gpus": tuple(SimGpu(**gpu) for gpu in data["gpus"]), "has": tuple(data["has"])}
    )


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
            "containers": [ContainerNow(**container) for container in data["containers"]],
            "xids": [(uuid, number) for uuid, number in data["xids"]],
        }
    )
