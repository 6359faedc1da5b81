"""RPM packages: those in the repositories of a simulated RPM host, and those that it has at first.

Source: names, epochs, architectures and dependencies of NVIDIA's nvidia-driver.spec and its container toolkit's
packages; of Rocky Linux 9, EPEL, Kubernetes and docker what those need. Sizes are of the right order only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from gpunode.sim.host.machine import Machine, PackageNow
from gpunode.sim.host.repository import RELEASES, TOOLKIT, WRAPPER, WRAPPERS

CONTAINERD = "2.2.0-1.el9"


@dataclass(frozen=True, slots=True)
class Rpm:
    """A package of one version. `version` is [EPOCH:]VERSION-RELEASE, `kib` its size, `repo` its repository.

    `requires` and `provides` have the form `NAME` or `NAME = [EPOCH:]VERSION[-RELEASE]`; a package provides its name.
    """

    name: str
    version: str
    arch: str = "x86_64"
    summary: str = ""
    kib: int = 40
    requires: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()
    repo: str = ""

    @property
    def parts(self) -> tuple[str, str, str]:
        """(epoch, version, release); a missing epoch is ""."""
        epoch, _, rest = self.version.rpartition(":")
        version, _, release = rest.rpartition("-")
        return epoch, version, release

    @property
    def nevra(self) -> str:
        """Its name in dnf's output."""
        return f"{self.name}-{self.version}.{self.arch}"

    @property
    def age(self) -> tuple[int, ...]:
        """A sort key that grows with the version: versions here differ only in their numbers."""
        epoch, version, release = self.parts
        return (int(epoch or 0), *(int(number) for number in re.findall(r"\d+", f"{version}-{release}")))

    def is_called(self, pattern: str) -> bool:
        """True if it matches NAME, NAME.ARCH or NAME-[EPOCH:]VERSION[-RELEASE[.ARCH]], each with wildcards."""
        epoch, version, release = self.parts
        names = [self.name, f"{self.name}.{self.arch}"]
        for start in {f"{self.name}-", f"{self.name}-{epoch or 0}:"}:
            full = f"{start}{version}-{release}"
            names += [f"{start}{version}", full, f"{full}.{self.arch}"]
        return any(fnmatchcase(name, pattern) for name in names)

    def fits(self, need: str) -> bool:
        """True if it satisfies a requirement."""
        name, _, version = need.partition(" = ")
        return name in (self.name, *self.provides) and (
            not version or self.version == version or self.version.startswith(f"{version}-")
        )


def held(url: str, machine: Machine) -> tuple[Rpm, ...] | None:
    """The packages of the repository at an address; None if none answers."""
    for part, packages in (
        ("/cuda", _drivers),
        ("/libnvidia-container", _toolkit),
        ("/BaseOS/", _base),
        ("/AppStream/", _streams),
        ("/epel/", _extra),
        ("/kubernetes", _kubernetes),
        ("/docker-ce", _docker),
    ):
        if part in url:
            return tuple(packages(machine))
    return None


def first(machine: Machine) -> dict[str, PackageNow]:
    """The packages of a new host."""
    sources = {"anaconda": _base, "docker-ce-stable": _docker, "kubernetes": _kubernetes}
    return {
        package.name: PackageNow(package.version, origin=origin)
        for origin, packages in sources.items()
        for package in packages(machine)
    }


def installed(machine: Machine, packages: Mapping[str, PackageNow]) -> dict[str, Rpm]:
    """The installed packages; `repo` is the repository that each came from."""
    everything = (_base, _streams, _extra, _docker, _kubernetes, _drivers, _toolkit)
    known = {(rpm.name, rpm.version): rpm for packages_of in everything for rpm in packages_of(machine)}
    return {
        name: replace(
            known.get((name, now.version), Rpm(name, now.version)), repo=f"@{now.origin or 'System'}"
        )
        for name, now in packages.items()
    }


def _base(machine: Machine) -> Iterator[Rpm]:
    kernel = machine.kernel.removesuffix(".x86_64")
    yield Rpm("bash", "5.1.8-9.el9", summary="The GNU Bourne Again shell", kib=1740)
    yield Rpm("coreutils", "8.32-39.el9", summary="A set of basic GNU tools", kib=1230)
    yield Rpm("dnf", "4.14.0-25.el9", "noarch", "Package manager", kib=478)
    yield Rpm("dnf-plugins-core", "4.3.0-20.el9", "noarch", "Core Plugins for DNF", kib=37)
    yield Rpm("glibc", "2.34-168.el9", summary="The GNU libc libraries", kib=2000)
    yield Rpm("kernel", kernel, summary="The Linux kernel", requires=(f"kernel-core = {kernel}",))
    yield Rpm("kernel-core", kernel, summary="The Linux kernel", kib=18_000)
    yield Rpm(
        "make", "1:4.3-8.el9", summary="A GNU tool which simplifies the build process for users", kib=536
    )
    yield Rpm("openssh-server", "8.7p1-45.el9", summary="An open source SSH server daemon", kib=456)
    yield Rpm("python3", "3.9.21-2.el9", summary="Python 3.9 interpreter", kib=26)
    yield Rpm("python3-dnf-plugin-versionlock", "4.3.0-20.el9", "noarch", "Version Lock Plugin for DNF", 15)
    yield Rpm("rocky-release", "9.6-1.3.el9", "noarch", "Rocky Linux release files", kib=22)
    yield Rpm("rpm", "4.16.1.3-37.el9", summary="The RPM package management system", kib=489)
    yield Rpm("sudo", "1.9.5p2-10.el9", summary="Allows restricted root access for specified users", kib=1050)
    yield Rpm("systemd", "252-51.el9", summary="System and Service Manager", kib=4100)


def _streams(machine: Machine) -> Iterator[Rpm]:
    kernel = machine.kernel.removesuffix(".x86_64")
    yield Rpm("gcc", "11.5.0-5.el9", summary="Various compilers (C, C++, Objective-C, ...)", kib=32_000)
    needs = (f"kernel-devel = {kernel}", f"kernel-core = {kernel}")
    words = "Meta package to install matching core and devel packages for a given kernel"
    yield Rpm("kernel-devel-matched", kernel, summary=words, requires=needs)
    words = "Development package for building kernel modules to match the kernel"
    yield Rpm("kernel-devel", kernel, summary=words, kib=22_000)


def _extra(_: Machine) -> Iterator[Rpm]:
    needs = ("gcc", "make", "kernel-devel-matched")
    yield Rpm("dkms", "3.3.0-1.el9", "noarch", "Dynamic Kernel Module Support Framework", 90, needs)


def _docker(_: Machine) -> Iterator[Rpm]:
    yield Rpm("containerd.io", CONTAINERD, summary="An industry-standard container runtime", kib=35_000)


def _kubernetes(machine: Machine) -> Iterator[Rpm]:
    words = "Node agent for Kubernetes clusters"
    yield Rpm("kubelet", f"{machine.kubelet}-150500.1.1", summary=words, kib=13_000)


def _drivers(_: Machine) -> Iterator[Rpm]:
    for release in RELEASES.values():
        if int(release[:3]) >= 570:
            yield from _driver(f"3:{release}")


def _driver(version: str) -> Iterator[Rpm]:
    """All of one release, each part bound to the others of it."""
    full = f"{version}-1.el9"
    for name, arch, kib, summary, parts in (
        (
            "nvidia-driver",
            "x86_64",
            5300,
            "NVIDIA's proprietary display driver",
            "nvidia-driver-libs nvidia-kmod-common",
        ),
        ("nvidia-driver-libs", "x86_64", 160_000, "Libraries for nvidia-driver", "libnvidia-ml"),
        (
            "nvidia-driver-cuda",
            "x86_64",
            590,
            "CUDA integration for nvidia-driver",
            "nvidia-driver-cuda-libs nvidia-kmod-common nvidia-persistenced",
        ),
        (
            "nvidia-driver-cuda-libs",
            "x86_64",
            69_000,
            "Libraries for nvidia-driver-cuda",
            "libnvidia-ml libnvidia-cfg",
        ),
        ("libnvidia-ml", "x86_64", 650, "NVIDIA Management Library (NVML)", ""),
        ("libnvidia-cfg", "x86_64", 150, "NVIDIA Config public interface (nvcfg)", ""),
        (
            "nvidia-persistenced",
            "x86_64",
            40,
            "A daemon to maintain persistent software state in the NVIDIA driver",
            "",
        ),
        ("nvidia-modprobe", "x86_64", 38, "NVIDIA kernel module loader", ""),
        (
            "nvidia-kmod-common",
            "noarch",
            74_000,
            "Common file for NVIDIA's proprietary driver kernel modules",
            "nvidia-kmod nvidia-modprobe",
        ),
        (
            "nvidia-open",
            "noarch",
            8,
            "NVIDIA open GPU kernel modules meta-package",
            "nvidia-driver nvidia-driver-cuda kmod-nvidia-open-dkms",
        ),
        (
            "cuda-drivers",
            "noarch",
            8,
            "CUDA Driver meta-package",
            "nvidia-driver nvidia-driver-cuda kmod-nvidia-latest-dkms",
        ),
    ):
        yield Rpm(name, full, arch, summary, kib, tuple(f"{part} = {version}" for part in parts.split()))
    # Unless a module stream excludes it, dnf takes the open one: it comes first.
    for flavour, words, kib in (("open", "open source", 15_000), ("latest", "display driver", 60_000)):
        needs = ("dkms", f"nvidia-kmod-common = {version}")
        name, summary = f"kmod-nvidia-{flavour}-dkms", f"NVIDIA {words} kernel module"
        yield Rpm(name, full, "noarch", summary, kib, needs, ("nvidia-kmod",))


def _toolkit(_: Machine) -> Iterator[Rpm]:
    full = f"{TOOLKIT}-1"
    for name, kib, summary, parts in (
        ("libnvidia-container1", 1000, "NVIDIA container runtime library", ""),
        (
            "libnvidia-container-tools",
            40,
            "NVIDIA container runtime library (command-line tools)",
            "libnvidia-container1",
        ),
        ("nvidia-container-toolkit-base", 5800, "NVIDIA Container Toolkit Base", ""),
        (
            "nvidia-container-toolkit",
            1200,
            "NVIDIA Container Toolkit",
            "libnvidia-container-tools nvidia-container-toolkit-base",
        ),
    ):
        yield Rpm(name, full, "x86_64", summary, kib, tuple(f"{part} = {full}" for part in parts.split()))
    for version in WRAPPERS:
        yield Rpm(WRAPPER, version, "noarch", "NVIDIA Docker wrapper", 8, ("nvidia-container-toolkit",))
