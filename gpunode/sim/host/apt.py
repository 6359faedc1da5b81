"""apt-get, apt-mark and apt-cache of a simulated host, with apt's own messages, and the packages of its repositories.

Names, versions and dependencies are those of NVIDIA's repositories for Debian 12 and Ubuntu 22.04, and its toolkit's.
"""

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpunode.sim.host import driver, systemd
from gpunode.sim.host.machine import Machine, Now, PackageNow
from gpunode.sim.host.state import State

RELEASES = {
    470: "470.256.02",
    535: "535.274.02",
    550: "550.163.01",
    570: "570.195.03",
    580: "580.178.04",
    590: "590.48.01",
    595: "595.91.07",
    610: "610.43.02",
    615: "615.36.01",
    620: "620.10.01",
}
TOOLKIT = "1.20.1"
TOOLKIT_PACKAGES = (
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
)
WRAPPER, WRAPPERS = "nvidia-docker2", ("2.13.0-1", "2.14.0-1")
DISTRIBUTION = {"dkms": "3.0.10-8", "gcc": "12.2.0-3", "make": "4.3-4.1", "libc6-dev": "2.36-9"}
# Of Debian 12's non-free and contrib.
ARCHIVE = {
    **dict.fromkeys(
        ("nvidia-kernel-dkms", "nvidia-open-kernel-dkms", "nvidia-smi", "libcuda1", "libnvidia-ml1"),
        "535.261.03-1",
    ),
    "nvidia-persistenced": "535.171.04-1~deb12u1",
}
EXACT = re.compile(r"(\d{3})\.\d+(?:\.\d+)?")
LISTS = "Reading package lists...\nBuilding dependency tree...\nReading state information...\n"


def versions(name: str, pattern: str, *, nvidia: bool, kernel: str) -> tuple[str, ...]:
    """A package's versions in the repositories, newest last. `nvidia`: whether apt has read one of NVIDIA's.

    Every full driver or toolkit version that is requested exists.
    """
    if name.startswith("linux-headers-"):
        known = (kernel, driver.next_kernel(kernel))
        return ("6.1.115-1",) if name.removeprefix("linux-headers-") in known else ()
    if name in DISTRIBUTION:
        return (DISTRIBUTION[name],)
    exact = EXACT.match(pattern)
    if nvidia and exact and _is_part(name) and not ARCHIVE.get(name, "").startswith(exact[0]):
        return (f"{exact[0]}-1",)
    if name in ARCHIVE:
        return (ARCHIVE[name],)
    if not nvidia:
        return ()
    if name in TOOLKIT_PACKAGES:
        asked = re.fullmatch(r"(\d+\.\d+\.\d+)-1", pattern)
        return (f"{asked[1] if asked else TOOLKIT}-1",)
    if name == WRAPPER:
        return WRAPPERS
    pin = re.fullmatch(r"nvidia-driver-pinning-(\d+(?:\.[\d.]+)?)", name)
    if pin:
        return (f"{_release(pin[1])}-1",) if _release(pin[1]) else ()
    meta = re.fullmatch(r"(?:cuda-drivers|nvidia-open)(?:-(\d+))?", name)
    meta = meta or re.fullmatch(r"(?:lib)?nvidia-[a-z\d-]+?-(\d{3})(?:-open)?", name)  # Ubuntu's parts
    if meta is None:
        return ()
    release = exact[0] if exact and exact[0].count(".") else None
    if meta[1]:
        return (f"{release or RELEASES.get(int(meta[1]), '')}-1",) if int(meta[1]) in RELEASES else ()
    newest = [version for branch, version in RELEASES.items() if branch >= 590]
    return tuple(f"{version}-1" for version in ([release] if release else newest))


def _release(wanted: str) -> str | None:
    return wanted if "." in wanted else RELEASES.get(int(wanted))


def candidate(name: str, pattern: str, *, nvidia: bool, kernel: str, pins: tuple[str, ...]) -> str | None:
    """The version that apt would install: the newest that fits the pattern and the pins (580, 580.178.04)."""
    matching = [
        version
        for version in versions(name, pattern, nvidia=nvidia, kernel=kernel)
        if not pattern or fnmatchcase(version, pattern)
    ]
    pinned = [version for version in matching if any(version.startswith(f"{pin}.") for pin in pins)]
    fitting = pinned or matching
    return fitting[-1] if fitting else None


def with_dependencies(name: str, version: str, system: str) -> Iterator[tuple[str, str]]:
    """A package and its dependencies, in installation order."""
    if name in TOOLKIT_PACKAGES:
        yield from ((each, version) for each in TOOLKIT_PACKAGES[: TOOLKIT_PACKAGES.index(name) + 1])
        return
    meta = re.fullmatch(r"(cuda-drivers|nvidia-open)(?:-\d+)?", name)
    if meta:
        yield from ((each, DISTRIBUTION[each]) for each in ("dkms", "gcc"))
        parts = _ubuntu if system.startswith("ubuntu") else _debian
        yield from ((each, version) for each in parts(version, meta[1] == "nvidia-open"))
    yield name, version


def _debian(version: str, open_module: bool) -> Iterator[str]:
    yield from ("libnvidia-ml1", "libnvidia-ptxjitcompiler1", "libnvidia-cfg1", "libcuda1")
    yield from ("firmware-nvidia-gsp", "nvidia-modprobe", "nvidia-kernel-support", "nvidia-persistenced")
    yield "nvidia-smi" if int(version[:3]) < 580 else "nvidia-driver-cuda"
    yield "nvidia-kernel-open-dkms" if open_module else "nvidia-kernel-dkms"
    yield "nvidia-driver"


def _is_part(name: str) -> bool:
    """Whether NVIDIA's repository for Debian has it, in any driver's version."""
    return any(
        name in _debian(version, open_module) for version in ("570", "580") for open_module in (False, True)
    )


def _ubuntu(version: str, open_module: bool) -> Iterator[str]:
    branch = version[:3]
    names = [
        "libnvidia-cfg1",
        "libnvidia-compute",
        "nvidia-utils",
        "nvidia-compute-utils",
        "nvidia-firmware",
        "nvidia-kernel-common",
        "nvidia-kernel-source",
    ]
    yield from (f"{name}-{branch}" for name in names)
    yield from (f"nvidia-{part}-{branch}{'-open' if open_module else ''}" for part in ("dkms", "driver"))


def with_all_dependencies(names: Iterable[str], system: str, kernel: str) -> dict[str, str]:
    """These packages and all their dependencies, with their versions."""
    packages: dict[str, str] = {}
    for name in names:
        version = versions(name, "", nvidia=True, kernel=kernel)[-1]
        packages |= dict(with_dependencies(name, version, system))
    return packages


class CommandError(Exception):
    """apt's error lines."""


@dataclass(frozen=True, slots=True)
class Work:
    """A transaction of apt; `install` in order."""

    install: dict[str, str]
    remove: tuple[str, ...]


def apt_get(state: State, arguments: list[str]) -> int:
    """`apt-get [OPTIONS] update | install [--print-uris] NAME[=VERSION] NAME-...`."""
    command: list[str] = []
    channel = None
    options = iter(arguments)
    for word in options:
        if word == "-o":
            name, _, value = next(options).partition("=")
            channel = int(value) if name == "APT::Status-Fd" else channel
        elif not word.startswith("-"):
            command.append(word)
    verb, *names = command
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
    uris = []
    for path in sorted((state.root / "etc/apt/sources.list.d").glob("*")):
        uris += re.findall(r"\w+://[^\s\"']+", path.read_text(encoding="utf-8"))
    return [uri.rstrip("/") for uri in uris]


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
        version = candidate(name, pattern, nvidia=nvidia, kernel=machine.kernel, pins=pinned)
        known = versions(name, pattern, nvidia=nvidia, kernel=machine.kernel)
        if not known:
            raise CommandError(f"E: Unable to locate package {name}")
        if version is None:
            raise CommandError(f"E: Version '{pattern}' for '{name}' was not found")
        install |= dict(with_dependencies(name, version, machine.os))
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
        _report(channel, name, 100 * number / len(work.install), f"Installing {name} (amd64)")
        print(f"Setting up {name} ({version}) ...")
        time.sleep(machine.pace)
    with state.change() as then:
        for name in work.remove:
            then.packages.pop(name, None)
        then.packages |= {name: PackageNow(version) for name, version in work.install.items()}
        release = driver.installed_driver(then)
        then.library = release[0] if release else ""
        systemd.follow(state, then)
    _report(channel, "dpkg-exec", 100.0, "Running dpkg")


def _report(channel: int | None, name: str, percent: float, message: str) -> None:
    if channel is not None:
        os.write(channel, f"pmstatus:{name}:{percent:.4f}:{message}\n".encode())


def apt_mark(state: State, arguments: list[str]) -> int:
    """`apt-mark hold NAME...`, `unhold`."""
    with state.change() as now:
        for name in arguments[1:]:
            if name not in now.packages:
                sys.stderr.write(f"E: Unable to locate package {name}\n")
                return 100
            now.packages[name].held = arguments[0] == "hold"
            print(f"{name} set on hold." if now.packages[name].held else f"Canceled hold on {name}.")
    return 0


def apt_cache(state: State, arguments: list[str]) -> int:
    """`apt-cache madison NAME`."""
    name = arguments[-1]
    for version in versions(name, "", nvidia=True, kernel=state.machine().kernel):
        print(f" {name} | {version} | {(state.now().listed or ['?'])[-1]}  Packages")
    return 0
