"""Driver branches: end of life, the kernel they need, kernels that they do not compile for; and the kernel of a host's next boot."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Literal

from gpunode.errors import CannotPlan
from gpunode.links.driver.origin import LEAVE
from gpunode.links.machine.pci import Model
from gpunode.model import Facts, Flavour, Host, PackageSpec
from gpunode.planning.tables import table
from gpunode.planning.versions import is_installed, kernel_order


@dataclass(frozen=True, slots=True)
class Branch:
    """A driver branch. `ends` is the month of its last fix, as NVIDIA announced it."""

    number: int
    status: Literal["production", "lts", "new", "ended"]
    kernel: tuple[int, int]
    ends: str = ""

    @property
    def alive(self) -> bool:
        return self.status != "ended"


@cache
def branches() -> Mapping[int, Branch]:
    return {
        number: Branch(number, row["status"], _kernel(row["kernel"]), str(row.get("ends", "")))
        for number, row in table("gpunode.planning", "branches.yaml")["branches"].items()
    }


def flavours_of(model: Model, branch: int) -> tuple[Flavour, ...]:
    """The module flavours of a branch that drive this model, the better one first; () when the branch does not."""
    if not model.first <= branch <= model.last:
        return ()
    usable = tuple(f for f in model.flavours if f == "proprietary" or branch >= model.open_first)
    only = table("gpunode.planning", "branches.yaml")["branches"].get(branch, {}).get("flavours")
    return tuple(f for f in usable if only is None or f in only)


def fixed_for(driver: str, kernel: str) -> str:
    """The first version whose modules compile for this kernel, where those of `driver` are known not to; else "". `driver`: a
    full version, or a branch, which stands for its newest."""
    numbers = tuple(map(int, re.findall(r"\d+", driver)))
    version = numbers if len(numbers) > 1 else (*numbers, 998)
    rows = [
        str(row["fixed"])
        for row in table("gpunode.planning", "branches.yaml")["unbuildable"]
        if kernel_version(kernel) >= _kernel(row["kernel"])
        and (row["first"],) <= version <= tuple(map(int, str(row["last"]).split(".")))
    ]
    return rows[-1] if rows else ""


def _kernel(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def kernel_version(release: str) -> tuple[int, int]:
    """`uname -r` as numbers; (0, 0) when it does not begin with any."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


UNPACKED = "no package of the distribution has it yet"


def check_builds(host: Host, facts: Facts, version: str, *, complete: bool) -> None:
    """Refuse to build modules that are known not to compile for the running kernel. `version`: a full one, or a branch for its
    newest. `complete`: that driver is installed, so that a module of it is right, whoever built it."""
    built = "nvidia" in facts.modules or facts.kernels.get(facts.kernel, False)
    fixed = fixed_for(version, facts.kernel)
    if not fixed or (complete and built):
        return
    same = fixed.partition(".")[0] == version.partition(".")[0]
    if host.driver_run is not None:
        way = f"Take NVIDIA's installer of {fixed} or later"
    elif same:
        way = f"Write `driver: {fixed}` or a later version of the branch"
    else:
        way = f"Write `driver: {fixed.partition('.')[0]}`"
    raise CannotPlan(
        f"the driver {version} does not compile for the kernel {facts.kernel}; {fixed} does",
        hint=f"{way}, boot an older kernel, {LEAVE}",
    )


def next_kernel(facts: Facts) -> str:
    """The kernel of the next boot, where it is not the running one and has no nvidia module; else "". Where the boot loader names
    none it is the newest, or not known; not an older one, as the running one may come from elsewhere, such as the network."""
    boots = facts.boot_default
    if boots is None:
        return ""
    if not boots:
        newest = max(facts.kernels, key=kernel_order, default="")
        boots = newest if kernel_order(newest) > kernel_order(facts.kernel) else ""
    return boots if boots != facts.kernel and not facts.kernels.get(boots, True) else ""


def kernel_notes(facts: Facts) -> tuple[str, ...]:
    """Which kernels have no module, where any may be the one of the next boot."""
    without = ", ".join(sorted(kernel for kernel, built in facts.kernels.items() if not built))
    if facts.boot_default is not None or not without:
        return ()
    how = "GRUB's default does not name the kernel of the next boot"
    return (f"{how}; without an nvidia module are: {without}.",)


def unbuilt_reason(facts: Facts, headers: Sequence[PackageSpec], *, builds: bool, complete: bool) -> str:
    """Why the kernel ahead gets no module; "" where these headers bring it, or the installation of a driver that is not
    `complete`. `builds`: the host builds its modules."""
    kernel = next_kernel(facts)
    if not kernel or not complete:
        return ""
    if not builds:
        return UNPACKED
    if not headers:
        return "gpunode knows no package with its headers"
    if all(is_installed(facts.packages, spec) for spec in headers):
        return (
            f"its headers are installed, but dkms did not build it: `dkms autoinstall -k {kernel}` shows why"
        )
    return ""
