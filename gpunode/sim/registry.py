"""Demos that run on without their show: found by name, broken, given more hosts, and ended."""

import contextlib
import fcntl
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

import yaml

from gpunode.errors import GpunodeError, UsageError
from gpunode.local.files import runs_folder
from gpunode.sim import faults, process
from gpunode.sim.host import hosts, kinds
from gpunode.sim.host.state import State
from gpunode.sim.process import CONNECTED, KEPT, PREFIX, demos_folder

PATIENCE = 15.0  # seconds for a demo to end, or to serve more hosts
CLOSING = 2.0  # seconds for connections to end
YOUNG = 60.0  # seconds in which a folder may still be in creation
GROUP, HOST = "added", "new"  # of hosts that were added


@dataclass(frozen=True, slots=True)
class Kept:
    """A kept demo that runs. `begun`: the folder in which its user began it."""

    name: str
    folder: Path
    begun: Path

    @property
    def is_here(self) -> bool:
        """True if it was begun in the current folder, or has it."""
        try:
            here = Path.cwd()
        except FileNotFoundError:  # in the folder of a demo that has ended
            return False
        return here == self.begun or self.folder in (here, *here.parents)

    @property
    def runs(self) -> tuple[str, ...]:
        """Ids of the runs that are under way in it: each holds a lock on its record."""
        records = runs_folder(self.folder / "inventory.yaml").glob("*.jsonl")
        return tuple(path.stem for path in sorted(records) if _holds(path))

    @property
    def busy(self) -> str:
        """Why it should not be stopped now; "" if it may. A command that has just ended may be connected for a moment."""
        if self.runs:
            return f"run {self.runs[0]} is under way: without the demo it cannot finish and cannot be resumed"
        deadline = time.monotonic() + CLOSING
        while _holds(self.folder / CONNECTED):
            if time.monotonic() > deadline:
                return "a command is connected to its hosts, perhaps a plan or its question"
            time.sleep(0.05)
        return ""

    @property
    def states(self) -> tuple[State, ...]:
        return tuple(State(path) for path in sorted((self.folder / "hosts").iterdir()))


def list_kept() -> tuple[Kept, ...]:
    """This user's demos, by name."""
    kept = []
    for path in demos_folder().glob(f"{PREFIX}*"):
        if _is_mine(path) and (path / KEPT).exists() and _runs(path):
            name, _, begun = (path / KEPT).read_text(encoding="utf-8").partition("\n")
            kept.append(Kept(name, path, Path(begun)))
    return tuple(sorted(kept, key=lambda each: each.name))


def find(name: str | None) -> Kept:
    """The one of this name; without a name the only one, or the only one that is here. Raises UsageError."""
    known = {kept.name: kept for kept in list_kept()}
    here = [kept for kept in known.values() if kept.is_here or len(known) == 1]
    if name is None and len(here) == 1:
        return here[0]
    if name in known:
        return known[name]
    if not known:
        raise UsageError("no demo is running", hint="Start one: `gpunode demo start`.")
    problem = f"no kept demo is called {name}" if name else f"{len(known)} demos are running"
    raise UsageError(problem, hint=f"Name one of {', '.join(known)}.")


def free_name() -> str:
    """`demo`, or `demo-2` and so on beside others."""
    taken = {kept.name for kept in list_kept()}
    number = next(number for number in range(1, len(taken) + 2) if _default_name(number) not in taken)
    return _default_name(number)


def break_host(kept: Kept, fault: str, host: str | None = None) -> str:
    """Break this host, or the first that can have the fault, as `faults` has it; returns its name. Raises UsageError for a
    host that cannot."""
    machines = [state.machine() for state in kept.states]
    able = [machine.name for machine in machines if faults.ACTS[fault].suits(machine)]
    if not able:
        raise UsageError(f"{fault} is not possible on any host of {kept.name}")
    if host is not None and host not in able:
        known = host in [machine.name for machine in machines]
        why = f"{fault} cannot happen to {host}" if known else f"{kept.name} has no host {host}"
        raise UsageError(why, hint=f"Choose one of {', '.join(able)}.")
    try:
        return faults.inflict(fault, kept.states, host)
    except (ValueError, KeyError) as error:  # what it breaks is not there
        raise GpunodeError(
            f"{fault}: {host or able[0]} is not provisioned, or has it already",
            hint=f"Run `gpunode provision inventory.yaml` in {kept.folder}, name another host, or start a new demo.",
        ) from error


def add_hosts(kept: Kept, count: int) -> tuple[str, tuple[str, ...]]:
    """Add bare hosts, which join the cluster, and their group to the inventory; returns its name and theirs."""
    with (kept.folder / "add.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one at a time: names, folders and the inventory are the demo's
        known = {state.folder.name for state in kept.states}
        number = next(number for number in range(1, len(known) + 2) if f"{HOST}{number}-01" not in known)
        names = [f"{HOST}{number}-{at:02}" for at in range(1, count + 1)]
        for name in names:
            hosts.create(kept.folder, replace(kinds.new_host(name), pace=kinds.PACE))
        os.kill(_read_served(kept)["pid"], signal.SIGUSR1)
        deadline = time.monotonic() + PATIENCE
        while not set(names) <= set(_read_served(kept)["ports"]):
            if time.monotonic() > deadline:
                raise GpunodeError(f"{kept.name} does not serve its new hosts; see {kept.folder}/server.log")
            time.sleep(0.05)
        group = f"{GROUP}{number}"
        _append_group(kept.folder / "inventory.yaml", group, names, _read_served(kept)["ports"])
    return group, tuple(names)


def choose(name: str | None) -> list[Kept]:
    """The demo of this name, without a name all that are here. Raises UsageError."""
    return [find(name)] if name else [kept for kept in list_kept() if kept.is_here]


def stop(name: str | None = None) -> tuple[Path, ...]:
    """End these demos; returns their folders. A running show is not ended."""
    return tuple(kept.folder for kept in choose(name) if _remove(kept.folder))


def sweep() -> tuple[Path, ...]:
    """Remove what killed demos of this user left, and return their folders."""
    folders = sorted(demos_folder().glob(f"{PREFIX}*"))
    return tuple(path for path in folders if _is_mine(path) and not _runs(path) and _remove(path, dead=True))


def _default_name(number: int) -> str:
    return "demo" if number == 1 else f"demo-{number}"


def _read_served(kept: Kept) -> dict[str, Any]:
    return dict(json.loads((kept.folder / "demo.json").read_text(encoding="utf-8")))


def _append_group(inventory: Path, group: str, names: Sequence[str], ports: Mapping[str, int]) -> None:
    """Add lines at the inventory's end, where a demo's groups are; what its user wrote stays as it is."""
    entries = [f"    - {{name: {name}, address: 127.0.0.1, ssh: {{port: {ports[name]}}}}}" for name in names]
    lines = "\n".join([f"  {group}:", "    hosts:", *entries, ""])
    text = inventory.read_text(encoding="utf-8").rstrip("\n") + f"\n{lines}"
    with contextlib.suppress(yaml.YAMLError, TypeError, KeyError):
        if yaml.safe_load(text)["groups"][group]["hosts"]:
            inventory.write_text(text, encoding="utf-8")
            return
    raise GpunodeError(
        f"{inventory} no longer ends with its groups, so the new hosts are not in it",
        hint=f"Add this to its `groups`:\n{lines}",
    )


def _is_mine(path: Path) -> bool:
    with contextlib.suppress(OSError):
        return path.is_dir() and not path.is_symlink() and path.stat().st_uid == os.getuid()
    return False


def _runs(path: Path) -> bool:
    return _holds(path / "lock")


def _holds(path: Path) -> bool:
    """True if a process holds a lock on the file."""
    with contextlib.suppress(OSError), path.open("rb") as lock:
        return process.is_locked(lock)
    return False


def _remove(path: Path, *, dead: bool = False) -> bool:
    """Whether its folder is removed now. `dead`: nothing that runs is ended, nor one that may still take its lock."""
    try:
        with (path / "lock").open("rb") as lock:
            if process.is_locked(lock):
                if dead or not (path / KEPT).exists():
                    return False
                _end(path, lock)
            elif dead and not (path / "demo.json").exists() and _young(path):
                return False
            process.remove(path)  # with the lock, so that nothing begins here
    except FileNotFoundError:
        if not path.exists() or _young(path):
            return False
        process.remove(path)
    return True


def _young(path: Path) -> bool:
    return time.time() - path.stat().st_mtime < YOUNG


def _end(path: Path, lock: IO[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError, ValueError, KeyError):
            os.kill(int(json.loads((path / "demo.json").read_text())["pid"]), number)
        deadline = time.monotonic() + PATIENCE
        while process.is_locked(lock):  # until the process is gone
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return
