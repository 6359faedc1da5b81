"""apt-get, apt-mark and apt-cache of a simulated host, with apt's own messages."""

from __future__ import annotations

import os
import re
import sys
import time
from dataclasses import dataclass

from gpunode.sim.host import repository
from gpunode.sim.host.machine import Machine, Now, PackageNow
from gpunode.sim.host.programs import kernel, systemd
from gpunode.sim.host.state import State

LISTS = "Reading package lists...\nBuilding dependency tree...\nReading state information...\n"


class CommandError(Exception):
    """apt's error lines."""


@dataclass(frozen=True, slots=True)
class Work:
    """A transaction of apt; `install` in order."""

    install: dict[str, str]
    remove: tuple[str, ...]


def get(state: State, arguments: list[str]) -> int:
    """`apt-get [OPTIONS] update | install [--print-uris] NAME[=VERSION] NAME-...`."""
    words: list[str] = []
    channel = None
    options = iter(arguments)
    for word in options:
        if word == "-o":
            name, _, value = next(options).partition("=")
            channel = int(value) if name == "APT::Status-Fd" else channel
        elif not word.startswith("-"):
            words.append(word)
    verb, *names = words
    try:
        if verb == "update":
            _update(state)
        elif verb == "install":
            _install(state, names, channel, dry="--print-uris" in arguments)
    except CommandError as error:
        sys.stderr.write(f"{error}\n")
        return 100
    return 0


def _sources(state: State) -> list[str]:
    found = []
    for path in sorted((state.root / "etc/apt/sources.list.d").glob("*")):
        found += re.findall(r"\w+://[^\s\"']+", path.read_text(encoding="utf-8"))
    return [uri.rstrip("/") for uri in found]


def _update(state: State) -> None:
    sources = _sources(state)
    with state.change() as now:
        if "repository-unreachable" in now.faults:
            bad = next((uri for uri in sources if ".demo.example" not in uri or "cuda" in uri), sources[-1])
            raise CommandError(
                f"Err:1 {bad}  InRelease\n  Could not connect to it, connection timed out\n"
                f"E: Failed to fetch {bad}/InRelease  Could not connect to it, connection timed out\n"
                "E: Some index files failed to download. They have been ignored, or old ones used instead."
            )
        now.listed = sources
    for number, uri in enumerate(sources, 1):
        print(f"Get:{number} {uri}  InRelease [1581 B]")
    print("Reading package lists...")


def _plan(machine: Machine, now: Now, names: list[str]) -> Work:
    nvidia = any("/debian" not in uri and "/ubuntu" not in uri for uri in now.listed)
    wanted = [name for name in names if not name.endswith("-")]
    pins = [*now.packages, *(name.partition("=")[0] for name in wanted)]
    pinned = tuple(pin.removeprefix("nvidia-driver-pinning-") for pin in pins if "-pinning-" in pin)
    install: dict[str, str] = {}
    for entry in wanted:
        name, _, pattern = entry.partition("=")
        version = repository.chosen(name, pattern, nvidia=nvidia, kernel=machine.kernel, pins=pinned)
        there = repository.versions(name, pattern, nvidia=nvidia, kernel=machine.kernel)
        if not there:
            raise CommandError(f"E: Unable to locate package {name}")
        if version is None:
            raise CommandError(f"E: Version '{pattern}' for '{name}' was not found")
        install |= dict(repository.closure(name, version, machine.os))
    remove = tuple(name[:-1] for name in names if name.endswith("-"))
    gone = [name for name in _dependent(now, remove) if name not in install]
    todo = {n: v for n, v in install.items() if n not in now.packages or now.packages[n].version != v}
    return Work(todo, tuple(dict.fromkeys([*(n for n in remove if n in now.packages), *gone])))


def _dependent(now: Now, removed: tuple[str, ...]) -> list[str]:
    """The packages removed with a part of the driver: its parts all have one version."""
    family = re.compile(r"cuda-drivers|nvidia-open|nvidia-driver(?!-pinning)|nvidia-kernel|nvidia-dkms")
    parts = [name for name in removed if name in now.packages and family.match(name)]
    versions = {now.packages[name].version for name in parts}
    return [
        name for name, package in now.packages.items() if package.version in versions and family.match(name)
    ]


def _install(state: State, names: list[str], channel: int | None, *, dry: bool) -> None:
    machine, now = state.machine(), state.now()
    work = _plan(machine, now, names)
    new = [name for name in work.install if name not in now.packages]
    print(LISTS, end="")
    for heading, these in (
        ("NEW packages will be installed", new),
        ("packages will be REMOVED", list(work.remove)),
    ):
        if these:
            print(f"The following {heading}:\n  {' '.join(these)}")
    changed = len(work.install) - len(new)
    print(f"{changed} upgraded, {len(new)} newly installed, {len(work.remove)} to remove and 0 not upgraded.")
    sys.stdout.flush()
    if dry:
        return
    for number, (name, version) in enumerate(work.install.items()):
        _say(channel, name, 100 * number / len(work.install), f"Installing {name} (amd64)")
        print(f"Setting up {name} ({version}) ...")
        time.sleep(machine.pace)
    with state.change() as then:
        for name in work.remove:
            then.packages.pop(name, None)
        then.packages |= {name: PackageNow(version) for name, version in work.install.items()}
        driver = kernel.installed(then)
        then.library = driver[0] if driver else ""
        systemd.follow(state, then)
    _say(channel, "dpkg-exec", 100.0, "Running dpkg")


def _say(channel: int | None, name: str, percent: float, words: str) -> None:
    if channel is not None:
        os.write(channel, f"pmstatus:{name}:{percent:.4f}:{words}\n".encode())


def mark(state: State, arguments: list[str]) -> int:
    """`apt-mark hold NAME...`."""
    with state.change() as now:
        for name in arguments[1:]:
            if name not in now.packages:
                sys.stderr.write(f"E: Unable to locate package {name}\n")
                return 100
            now.packages[name].held = True
            print(f"{name} set on hold.")
    return 0


def cache(state: State, arguments: list[str]) -> int:
    """`apt-cache madison NAME`."""
    name = arguments[-1]
    for version in repository.versions(name, "", nvidia=True, kernel=state.machine().kernel):
        print(f" {name} | {version} | {(state.now().listed or ['?'])[-1]}  Packages")
    return 0
