"""Packages by distribution: their names, which of them make up a driver, their versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from gpunode.compat.models import Flavour
from gpunode.compat.tables import LATEST, table
from gpunode.model import Package


@dataclass(frozen=True, slots=True)
class System:
    """A distribution that drivers can be installed on, and the branches its repository directory holds."""

    directory: str
    architecture: str
    first: int
    last: int


def system(os_id: str, version: str, arch: str) -> System | None:
    """The distribution's entry, or None when it is not supported."""
    apt = table("packages")["apt"]
    row = apt["systems"].get(os_id, {}).get(version)
    architecture = apt["architectures"].get(arch)
    if row is None or architecture is None:
        return None
    return System(row["directory"], architecture, row.get("first", 0), row.get("last", LATEST))


def systems() -> str:
    """The supported distributions, for a sentence."""
    names = {"debian": "Debian", "ubuntu": "Ubuntu"}
    rows = table("packages")["apt"]["systems"]
    return "; ".join(f"{names[key]} {', '.join(versions)}" for key, versions in rows.items())


def driver_packages(branch: int, flavour: Flavour) -> tuple[str, ...]:
    """The packages that install a branch."""
    for row in table("packages")["apt"]["driver"]:
        if row.get("first", 0) <= branch <= row.get("last", LATEST):
            return tuple(name.format(branch=branch) for name in row[flavour])
    raise LookupError(f"no package row for branch {branch}")


def driver_pin(branch: int, version: str) -> tuple[str, ...]:
    """The package that keeps apt on a branch, or on a full version; () where there is none."""
    pin = table("packages")["apt"]["pin"]
    return (pin["name"].format(version=version),) if branch >= pin["first"] else ()


def driver_patterns() -> tuple[str, ...]:
    """Patterns of the names of all driver packages, as apt's preferences take them."""
    apt = table("packages")["apt"]
    return (*apt["driver_family"], *apt["accessories"])


def headers(kernel: str) -> str:
    """The package with the headers of a running kernel."""
    return str(table("packages")["apt"]["headers"]).format(kernel=kernel)


def toolkit_packages() -> tuple[str, ...]:
    """The container toolkit's packages; they work only when all are of one version."""
    return tuple(table("packages")["apt"]["toolkit"])


def toolkit_version() -> str:
    """The toolkit's version that is installed where nothing speaks for another."""
    return str(table("packages")["toolkit_version"])


def retired_packages() -> tuple[str, ...]:
    """What the toolkit replaces."""
    return tuple(table("packages")["apt"]["retired"])


def driver_family(packages: Mapping[str, Package]) -> dict[str, Package]:
    """The installed packages that make up a driver, whoever built them."""
    apt = table("packages")["apt"]
    return {
        name: package
        for name, package in packages.items()
        if _matches(name, apt["driver_family"]) and not _matches(name, apt["not_driver"])
    }


def accessories(names: Iterable[str]) -> tuple[str, ...]:
    """Those packages that may be there without a driver."""
    return tuple(name for name in names if _matches(name, table("packages")["apt"]["accessories"]))


def of_flavour(names: Iterable[str], flavour: Flavour) -> tuple[str, ...]:
    """Those packages that exist for kernel modules of this flavour only."""
    return tuple(name for name in names if _matches(name, table("packages")["apt"]["modules"][flavour]))


def fabric_packages(names: Iterable[str]) -> tuple[str, ...]:
    """Those packages that must be of exactly the driver's version."""
    return tuple(name for name in names if _matches(name, table("packages")["apt"]["fabric"]))


def from_nvidia(names: Iterable[str]) -> bool:
    """Whether one of these driver packages exists in NVIDIA's own repositories only."""
    return any(_matches(name, table("packages")["apt"]["nvidia_only"]) for name in names)


def _matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


def is_meta(name: str) -> bool:
    """Whether a package is one that stands for a whole driver in NVIDIA's repositories."""
    return re.fullmatch(r"(cuda-drivers|nvidia-open)(-\d+)?", name) is not None


def is_pin(name: str) -> bool:
    """Whether a package is one that keeps apt on a branch."""
    return name.startswith(str(table("packages")["apt"]["pin"]["name"]).partition("{")[0])


def is_installed(packages: Mapping[str, Package], wish: str) -> bool:
    """Whether `name`, `name=version` or `name=580.*` is there."""
    name, _, version = wish.partition("=")
    return name in packages and (
        not version or fnmatchcase(packages[name].version.split(":", 1)[-1], version)
    )


def upstream(version: str) -> str:
    """A Debian version without epoch and revision: 580.178.04 of 1:580.178.04-1."""
    return version.split(":", 1)[-1].rsplit("-", 1)[0]


def branch_of(version: str) -> int | None:
    """The branch of a driver version: 580 of 580.178.04-1; None when it is none."""
    match = re.match(r"(\d{3,4})\.\d", upstream(version))
    return int(match[1]) if match else None


def numbers(version: str) -> tuple[int, ...]:
    """A version's leading numbers, for comparing."""
    return tuple(int(part) for part in re.findall(r"\d+", upstream(version)))
