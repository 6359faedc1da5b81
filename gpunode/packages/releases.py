"""The releases of distributions on which gpunode installs packages: the tables of the package systems, a folder each."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from gpunode.model import Flavour, Os
from gpunode.planning.tables import LATEST, table


@cache
def sections() -> Mapping[str, Mapping[str, Any]]:
    """Each package system's section, by its name, of the tables in the folders beside this file."""
    folders = sorted(
        each.name for each in files(__package__).iterdir() if each.joinpath("table.yaml").is_file()
    )
    return {
        name: row for folder in folders for name, row in table(__package__, f"{folder}/table.yaml").items()
    }


@dataclass(frozen=True, slots=True)
class Release:
    """A supported release of a distribution, and the driver branches in its repository."""

    family: str  # a package system's section of the tables
    directory: str
    architecture: str
    first: int
    last: int
    streams: bool = False  # the branches are streams of a module
    armoured: bool = True  # its package system reads keys as text
    locks: bool = False  # its package system locks versions without a plugin


def release(os: Os) -> Release | None:
    """The host's release, or None when it is not supported."""
    for family, section in sections().items():
        versions = section["systems"].get(os.id, {})
        row = versions.get(os.version) or versions.get(os.version.partition(".")[0])
        architecture = section["architectures"].get(os.arch)
        if row is not None and architecture is not None and os.arch in row.get("architectures", (os.arch,)):
            bounds = row.get("first", 0), row.get("last", LATEST)
            return Release(
                family,
                row["directory"],
                architecture,
                *bounds,
                streams=row.get("streams", False),
                armoured=row.get("armoured", True),
                locks=row.get("locks", False),
            )
    return None


def family(os: Os) -> str:
    """The host's package system; dnf where none is supported."""
    place = release(os)
    return place.family if place else "dnf"


def releases() -> str:
    """The supported releases, for a message."""
    rows = [row for section in sections().values() for row in section["systems"].items()]
    return "; ".join(f"{distribution(key)} {', '.join(versions)}" for key, versions in rows)


def distribution(id: str) -> str:
    """A distribution's name in messages, by its id in /etc/os-release."""
    return next(str(section["names"][id]) for section in sections().values() if id in section["names"])


def refusal(os: Os) -> str:
    """Why a system that is not supported is none; "" where there is nothing special about it."""
    rows = table(__package__, "refused.yaml")
    return str(rows.get(f"{os.id} {os.version}") or rows.get(os.id) or "")


@dataclass(frozen=True, slots=True)
class Epel:
    """Why a system needs EPEL. `release_package` brings it; "" where that is no package of the distribution."""

    release_package: str
    package: str  # that is needed of it
    note: str


def epel(os: Os) -> Epel | None:
    """What the host needs EPEL for; None without need."""
    place = release(os)
    rows = sections()[place.family] if place else {}
    row = rows.get("epel", {}).get(os.id)
    if row is None:
        return None
    return Epel(str(row).format(release=os.version.partition(".")[0]), **rows["from_epel"])


# --- Modules that a distribution builds for its own kernels ------------------------------------------------

ARCHES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Prebuilt:
    """A driver with such modules. `follows` must be of exactly the module's version and comes from NVIDIA; of each list of
    `repositories` one must be enabled; `brings` is the package with the repository."""

    branch: int
    flavour: Flavour
    trusted: bool  # by the distribution's kernel, also with Secure Boot
    module: str
    fabric: str
    first: int = 0
    last: int = LATEST
    minor: int = 0  # of the distribution's release, from which on it has them
    packages: tuple[str, ...] = ()
    follows: tuple[str, ...] = ()
    repositories: tuple[tuple[str, ...], ...] = ()
    brings: str = ""
    generation: str = ""
    locks: tuple[str, ...] = ()  # packages of other ways, which must not come


def prebuilt(os: Os, kernel: str) -> tuple[Prebuilt, ...]:
    """Those of the host's release, the better ones first."""
    releases = table(__package__, "prebuilt.yaml").get(os.id, {})
    major, _, minor = os.version.partition(".")
    values = {"arch": ARCHES.get(os.arch, os.arch), "flavour": kernel.rpartition("-")[2]}
    rows = [Prebuilt(**_fill(row, values)) for row in releases.get(os.version) or releases.get(major) or ()]
    return tuple(row for row in rows if int(minor or 0) >= row.minor)


def _fill(value: Any, values: Mapping[str, str]) -> Any:
    """A value of the table with these words in its texts; lists as tuples."""
    if isinstance(value, Mapping):
        return {key: _fill(inner, values) for key, inner in value.items()}
    if isinstance(value, list):
        return tuple(_fill(inner, values) for inner in value)
    return value.format(**values) if isinstance(value, str) else value
