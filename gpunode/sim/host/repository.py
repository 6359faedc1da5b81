"""The packages in a simulated host's repositories, with the names, versions and dependencies of the real ones.

Source: NVIDIA's repositories for Debian 12 and Ubuntu 22.04, and its container toolkit's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from fnmatch import fnmatchcase

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
_EXACT = re.compile(r"(\d{3})\.\d+(?:\.\d+)?")


def versions(name: str, pattern: str, *, nvidia: bool, kernel: str) -> tuple[str, ...]:
    """A package's versions in the repositories, newest last. `nvidia`: whether apt has read one of NVIDIA's.

    Every full driver or toolkit version that is requested exists.
    """
    if name.startswith("linux-headers-"):
        return ("6.1.115-1",) if name.removeprefix("linux-headers-") in (kernel, later(kernel)) else ()
    if name in DISTRIBUTION:
        return (DISTRIBUTION[name],)
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
    if meta is None:
        return ()
    exact = _EXACT.match(pattern)
    release = exact[0] if exact and exact[0].count(".") else None
    if meta[1]:
        return (f"{release or RELEASES.get(int(meta[1]), '')}-1",) if int(meta[1]) in RELEASES else ()
    newest = [version for branch, version in RELEASES.items() if branch >= 590]
    return tuple(f"{version}-1" for version in ([release] if release else newest))


def later(kernel: str) -> str:
    """The kernel that an upgrade brings: 6.1.0-41-amd64 after 6.1.0-40-amd64."""
    return re.sub(r"-(\d+)-", lambda number: f"-{int(number[1]) + 1}-", kernel)


def _release(wanted: str) -> str | None:
    return wanted if "." in wanted else RELEASES.get(int(wanted))


def chosen(name: str, pattern: str, *, nvidia: bool, kernel: str, pins: tuple[str, ...]) -> str | None:
    """The version that apt would install: the newest that fits the pattern and the pins (580, 580.178.04)."""
    found = [
        version
        for version in versions(name, pattern, nvidia=nvidia, kernel=kernel)
        if not pattern or fnmatchcase(version, pattern)
    ]
    pinned = [version for version in found if any(version.startswith(f"{pin}.") for pin in pins)]
    fitting = pinned or found
    return fitting[-1] if fitting else None


def closure(name: str, version: str, system: str) -> Iterator[tuple[str, str]]:
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


def installed(names: Iterable[str], system: str, kernel: str) -> dict[str, str]:
    """These packages and all their dependencies, with their versions."""
    found: dict[str, str] = {}
    for name in names:
        version = versions(name, "", nvidia=True, kernel=kernel)[-1]
        found |= dict(closure(name, version, system))
    return found


def driver(packages: dict[str, str]) -> tuple[str, str] | None:
    """(release, flavour) of the installed driver, from its packages and their versions."""
    for name, version in packages.items():
        if re.fullmatch(r"nvidia(-open)?-kernel(-open)?-dkms|nvidia-dkms-\d+(-open)?", name):
            return version.rsplit("-", 1)[0], "open" if "-open" in name else "proprietary"
    return None
