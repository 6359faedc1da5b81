"""NVIDIA's packages by package system: releases, package names, their roles in a driver, versions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal, TypeAlias, get_args

from gpunode.compat.models import Flavour
from gpunode.compat.tables import LATEST, table
from gpunode.model import Os, Package, PackageSpec

Family: TypeAlias = Literal["apt"]  # a section of the table each


@dataclass(frozen=True, slots=True)
class Release:
    """A supported release of a distribution, and the driver branches in its repository."""

    family: Family
    directory: str
    architecture: str
    first: int
    last: int


def release(os: Os) -> Release | None:
    """The host's release, or None when it is not supported."""
    for family in get_args(Family):
        section = table("packages")[family]
        row = section["systems"].get(os.id, {}).get(os.version)
        architecture = section["architectures"].get(os.arch)
        if row is not None and architecture is not None:
            return Release(
                family, row["directory"], architecture, row.get("first", 0), row.get("last", LATEST)
            )
    return None


def releases() -> str:
    """The supported releases, for a message."""
    names = {"debian": "Debian", "ubuntu": "Ubuntu"}
    rows = [row for family in get_args(Family) for row in table("packages")[family]["systems"].items()]
    return "; ".join(f"{names[key]} {', '.join(versions)}" for key, versions in rows)


def toolkit_version() -> str:
    """The default version of the toolkit."""
    return str(table("packages")["toolkit_version"])


@dataclass(frozen=True, slots=True)
class PackageNames:
    """One package system's names and version patterns of NVIDIA's packages: its section of the table."""

    family: Family

    @property
    def _rows(self) -> Mapping[str, Any]:
        rows: Mapping[str, Any] = table("packages")[self.family]
        return rows

    def driver(self, branch: int, flavour: Flavour, full: str = "") -> tuple[PackageSpec, ...]:
        """The packages that install a branch, or of that branch the `full` version."""
        version = self._rows["versions"]["driver"].format(version=full) if full else self.any_of(branch)
        for row in self._rows["driver"]:
            if row.get("first", 0) <= branch <= row.get("last", LATEST):
                return tuple(_wished(name.format(branch=branch), version) for name in row[flavour])
        raise LookupError(f"no package row for branch {branch}")

    def any_of(self, branch: int) -> str:
        """The pattern of a branch's versions."""
        return str(self._rows["versions"]["branch"].format(branch=branch))

    def pin(self, branch: int, full: str = "") -> tuple[PackageSpec, ...]:
        """The package that keeps the package system on a branch, or on a `full` version; () where there is none."""
        pin = self._rows["pin"]
        name = pin["name"].format(version=full or branch)
        return (PackageSpec(name, origin="nvidia"),) if branch >= pin["first"] else ()

    def headers(self, kernel: str) -> tuple[PackageSpec, ...]:
        """The packages with the headers of a running kernel."""
        return tuple(PackageSpec(name.format(kernel=kernel)) for name in self._rows["headers"])

    def toolkit(self, version: str) -> tuple[PackageSpec, ...]:
        """The container toolkit's packages; they work only when all are of one version."""
        written = self._rows["versions"]["toolkit"].format(version=version)
        return tuple(_wished(name, written) for name in self._rows["toolkit"])

    @property
    def retired(self) -> tuple[str, ...]:
        """What the toolkit replaces."""
        return tuple(self._rows["retired"])

    @property
    def driver_patterns(self) -> tuple[str, ...]:
        """Patterns of the names of all driver packages."""
        return (*self._rows["driver_family"], *self._rows["accessories"])

    def driver_family(self, packages: Mapping[str, Package]) -> dict[str, Package]:
        """The installed packages that make up a driver, whoever built them."""
        family, others = self._matching(packages, "driver_family"), self._matching(packages, "not_driver")
        return {name: packages[name] for name in family if name not in others}

    def accessories(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those packages that may be there without a driver."""
        return self._matching(names, "accessories")

    def of_flavour(self, names: Iterable[str], flavour: Flavour) -> tuple[str, ...]:
        """Those packages that exist for kernel modules of this flavour only."""
        return self._matching(names, "modules", flavour)

    def fabric(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those packages that must be of exactly the driver's version."""
        return self._matching(names, "fabric")

    def from_nvidia(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those driver packages that exist in NVIDIA's own repositories only."""
        return self._matching(names, "nvidia_only")

    def metas(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those packages that stand for a whole driver in NVIDIA's repositories."""
        return tuple(name for name in names if re.fullmatch(self._rows["meta"], name))

    def pins(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those packages that keep the package system on a branch."""
        start = str(self._rows["pin"]["name"]).partition("{")[0]
        return tuple(name for name in names if name.startswith(start))

    def _matching(self, names: Iterable[str], *keys: str) -> tuple[str, ...]:
        patterns: Any = self._rows
        for key in keys:
            patterns = patterns[key]
        return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def _wished(name: str, version: str) -> PackageSpec:
    """A package of NVIDIA's in this version, even where a newer one is installed."""
    return PackageSpec(name, version, origin="nvidia", downgrade=True)
