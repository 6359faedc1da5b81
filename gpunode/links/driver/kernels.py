"""A host's kernels: those that a driver does not compile for, and the one of the next boot where it has no module."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.errors import Refused
from gpunode.links.driver.branches import fixed_for
from gpunode.links.driver.origin import LEAVE
from gpunode.model import Facts, Host, PackageSpec
from gpunode.planning.versions import is_installed, kernel_order

UNPACKED = "no package of the distribution has it yet"


def check(host: Host, facts: Facts, version: str, *, complete: bool) -> None:
    """Refuse to build modules that are known not to compile for the running kernel. `version`: a full one, or a branch for its
    newest. `complete`: that driver is installed, so that a module of it is right, whoever built it."""
    there = "nvidia" in facts.modules or facts.kernels.get(facts.kernel, False)
    fixed = fixed_for(version, facts.kernel)
    if not fixed or (complete and there):
        return
    same = fixed.partition(".")[0] == version.partition(".")[0]
    if host.driver_run is not None:
        way = f"Take NVIDIA's installer of {fixed} or later"
    elif same:
        way = f"Write `driver: {fixed}` or a later version of the branch"
    else:
        way = f"Write `driver: {fixed.partition('.')[0]}`"
    raise Refused(
        host.name,
        f"the driver {version} does not compile for the kernel {facts.kernel}; {fixed} does",
        hint=f"{way}, boot an older kernel, {LEAVE}",
        layer="module",
    )


def ahead(facts: Facts) -> str:
    """The kernel of the next boot, where it is not the running one and has no nvidia module; else "". Where the boot loader names
    none it is the newest, or not known; not an older one, as the running one may come from elsewhere, such as the network."""
    boots = facts.boot_default
    if boots is None:
        return ""
    if not boots:
        newest = max(facts.kernels, key=kernel_order, default="")
        boots = newest if kernel_order(newest) > kernel_order(facts.kernel) else ""
    return boots if boots != facts.kernel and not facts.kernels.get(boots, True) else ""


def notes(facts: Facts) -> tuple[str, ...]:
    """Which kernels have no module, where any may be the one of the next boot."""
    without = ", ".join(sorted(kernel for kernel, there in facts.kernels.items() if not there))
    if facts.boot_default is not None or not without:
        return ()
    how = "GRUB's default does not name the kernel of the next boot"
    return (f"{how}; without an nvidia module are: {without}.",)


def unbuilt(facts: Facts, headers: Sequence[PackageSpec], *, builds: bool, complete: bool) -> str:
    """Why the kernel ahead gets no module; "" where these headers bring it, or the installation of a driver that is not
    `complete`. `builds`: the host builds its modules."""
    kernel = ahead(facts)
    if not kernel or not complete:
        return ""
    if not builds:
        return UNPACKED
    if not headers:
        return "gpunode knows no package with its headers"
    if all(is_installed(facts.packages, spec) for spec in headers):
        return f"its headers are there, and dkms did not build it: `dkms autoinstall -k {kernel}` shows why"
    return ""
