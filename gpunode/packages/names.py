"""NVIDIA's packages by package system: their names, their roles in a driver, their versions."""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from gpunode.model import Change, Desired, DriverSpec, Facts, Flavour, Package, PackageSpec, Source, Watch
from gpunode.packages.releases import sections
from gpunode.packages.repositories import Purpose
from gpunode.planning.tables import LATEST


@dataclass(frozen=True, slots=True)
class PackageNames:
    """One package system's names and version patterns of NVIDIA's packages: its section of the table."""

    family: str

    @property
    def _rows(self) -> Mapping[str, Any]:
        return sections()[self.family]

    def driver(self, branch: int, flavour: Flavour, full: str = "") -> tuple[PackageSpec, ...]:
        """The packages that install a branch, or of that branch the `full` version."""
        version = self._rows["versions"]["driver"].format(version=full) if full else self.any_of(branch)
        for row in self._rows["driver"]:
            if row.get("first", 0) <= branch <= row.get("last", LATEST):
                names = [name.format(branch=branch) for name in row[flavour]]
                module = self._rows["versions"].get("module", "").format(version=full) if full else ""
                return tuple(
                    _spec(name.rstrip("@"), module if name.endswith("@") else version) for name in names
                )
        raise LookupError(f"no package row for branch {branch}")

    @property
    def flavours(self) -> tuple[Flavour, ...]:
        return tuple(self._rows.get("flavours", ("open", "proprietary")))

    @property
    def prebuilt(self) -> bool:
        return bool(self._rows.get("prebuilt", False))

    @property
    def has_drivers(self) -> bool:
        """Whether NVIDIA's repository has drivers whose modules the host builds or takes from there."""
        return bool(self._rows["driver"])

    @property
    def has_streams(self) -> bool:
        return "streams" in self._rows

    @property
    def goes_back(self) -> bool:
        """Whether the package system installs an earlier version over a later one, with all its parts."""
        return bool(self._rows.get("goes_back", True))

    def any_of(self, branch: int) -> str:
        return str(self._rows["versions"]["branch"].format(branch=branch))

    def pin(self, branch: int, full: str = "") -> tuple[PackageSpec, ...]:
        """The package that keeps the package system on a branch, or on a `full` version; () where there is none."""
        pin = self._rows.get("pin")
        if pin is None or branch < pin["first"]:
            return ()
        return (PackageSpec(pin["name"].format(version=full or branch), origin="nvidia"),)

    def stream(self, branch: int, flavour: Flavour) -> str:
        return str(self._rows["streams"][flavour].format(branch=branch))

    @property
    def holds(self) -> str:
        """The package without which nothing can be held; "" where none is needed."""
        return str(self._rows.get("holds", ""))

    def headers(self, kernel: str) -> tuple[PackageSpec, ...]:
        """The packages with the headers of a running kernel; () where no pattern fits it."""
        for row in self._rows["headers"]:
            if match := re.fullmatch(row["kernel"], kernel):
                return tuple(PackageSpec(name.format(**match.groupdict())) for name in row["packages"])
        return ()

    @property
    def tools(self) -> tuple[PackageSpec, ...]:
        """What NVIDIA's own installer builds a module with, beside the headers."""
        return tuple(PackageSpec(name) for name in self._rows["tools"])

    def toolkit(self, version: str) -> tuple[PackageSpec, ...]:
        written = self._rows["versions"]["toolkit"].format(version=version)
        return tuple(_spec(name, written) for name in self._rows["toolkit"])

    @property
    def wrapper(self) -> PackageSpec:
        """nvidia-docker2 as it ended: nothing but a dependency on the toolkit."""
        return _spec(**self._rows["wrapper"])

    @property
    def retired(self) -> tuple[str, ...]:
        return tuple(self._rows["retired"])

    @property
    def driver_patterns(self) -> tuple[str, ...]:
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

    def fabric(self, names: Iterable[str]) -> dict[str, str]:
        """Those packages that must be of exactly the driver's version, with the part that each is."""
        names = list(names)
        parts: dict[str, str] = {}
        for part, rows in self._rows["fabric"].items():
            for row in rows:
                pattern = row["name"].replace("{branch}", "[0-9]*")
                parts |= {name: part for name in names if fnmatchcase(name, pattern)}
        return parts

    def fabric_part(self, part: str, branch: int, full: str) -> PackageSpec:
        """The package that is this part beside a driver of this branch, of its `full` version if that is known."""
        row = next(row for row in self._rows["fabric"][part] if branch <= row.get("last", LATEST))
        version = self._rows["versions"]["driver"].format(version=full) if full else self.any_of(branch)
        return _spec(row["name"].format(branch=branch), version.rpartition(":")[2])

    @property
    def subnet(self) -> tuple[PackageSpec, ...]:
        """What the fabric manager needs for NVSwitches of NVLink 5: a subnet manager and its tools; () where none is known."""
        return tuple(PackageSpec(**row) for row in self._rows.get("subnet", ()))

    def foreign(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those packages that exclude NVIDIA's: modules of other builds."""
        return self._matching(names, "foreign") if "foreign" in self._rows else ()

    def from_nvidia(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those driver packages that exist in NVIDIA's own repositories only."""
        return self._matching(names, "nvidia_only")

    def metas(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those packages that stand for a whole driver in NVIDIA's repositories."""
        return tuple(name for name in names if re.fullmatch(self._rows["meta"], name))

    def pins(self, names: Iterable[str]) -> tuple[str, ...]:
        """Those packages that keep the package system on a branch."""
        pin = self._rows.get("pin")
        start = str(pin["name"]).partition("{")[0] if pin else None
        return tuple(name for name in names if start and name.startswith(start))

    def _matching(self, names: Iterable[str], *keys: str) -> tuple[str, ...]:
        patterns: Any = self._rows
        for key in keys:
            patterns = patterns[key]
        return tuple(name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))


def _spec(name: str, version: str) -> PackageSpec:
    """A package of NVIDIA's in this version, even where a newer one is installed."""
    return PackageSpec(name, version, origin="nvidia", downgrade=True)


@dataclass(frozen=True, slots=True)
class PackageSystem:
    """What planners and the decision need of a package system. Its planners raise CannotPlan."""

    names: PackageNames
    watch: Watch  # the files that the planners read or write, and patterns of all names in `names`
    # Whether its packages are RPMs: a repository of the distribution's own may be named, and a kernel's headers are installed
    # before what builds a module with them, as rpm runs a package's script before it unpacks the rest.
    rpm: bool
    purge: str  # commands for hints: remove packages, and (reinstall) restore their files
    reinstall: str
    hints: Mapping[str, str]  # what the user does next, by failure code of its half on the host
    # A repository's address for an architecture, normalised: equal for two spellings.
    place: Callable[[str, str], str]
    # Whether the host has a repository of NVIDIA's for this already.
    offers: Callable[[Facts, Purpose], bool]
    # The files, but gpunode's own, with NVIDIA's repository of drivers.
    driver_sources: Callable[[Facts], tuple[str, ...]]
    # Add `desired.sources` with their keys, and remove sources that conflict. A refresh is planned elsewhere.
    plan_sources: Callable[[Facts, Desired], tuple[Change, ...]]
    # Whether the host is kept on a driver branch, as `plan_branch` does before any package of a driver changes.
    keeps_branch: Callable[[Facts], bool]
    plan_branch: Callable[[Facts, DriverSpec], tuple[Change, ...]] = lambda _facts, _driver: ()
    # After a refresh: what the installation of driver and toolkit rests on.
    plan_tools: Callable[[Facts, Desired], tuple[Change, ...]] = lambda _facts, _desired: ()
    # On keys and sources, these and the host's own.
    notes: Callable[[Facts, Iterable[Source]], tuple[str, ...]] = lambda _facts, _sources: ()

    @property
    def name(self) -> str:
        """For messages, and of its section of the tables."""
        return self.names.family
