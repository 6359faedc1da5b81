"""What goes with what: GPUs, driver branches, packages, repositories, Kubernetes minors.

The facts are the YAML tables beside this file, each with its source; here are only the look-ups.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from importlib.resources import files
from typing import Any, Literal, TypeAlias, cast

import yaml

from gpunode.model import Package, PciDevice

Flavour: TypeAlias = Literal["open", "proprietary"]
LATEST = 10_000  # stands for "no last branch"


@cache
def table(name: str) -> Mapping[str, Any]:
    """The table `name`.yaml."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return cast("Mapping[str, Any]", yaml.load(text, loader))  # noqa: S506 - a safe loader either way


# --- GPUs ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Model:
    """A GPU model. Branches from `first` to `last` drive it; the open modules know it from `open_first` on."""

    device: str
    name: str
    generation: str
    first: int
    last: int
    open_first: int
    flavours: tuple[Flavour, ...]
    accelerator: str

    def flavours_on(self, branch: int) -> tuple[Flavour, ...]:
        """The module flavours of `branch` that drive it, the better one first; () when the branch does not."""
        if not self.first <= branch <= self.last:
            return ()
        usable = tuple(f for f in self.flavours if f == "proprietary" or branch >= self.open_first)
        only = table("drivers")["branches"].get(branch, {}).get("flavours")
        return tuple(f for f in usable if only is None or f in only)


def gpus(pci: Iterable[PciDevice]) -> tuple[PciDevice, ...]:
    """The GPUs among PCI functions: NVIDIA's display controllers (0300, 0302), not their audio or USB functions."""
    return tuple(d for d in pci if d.vendor.lower() == "10de" and d.cls[:4] in ("0300", "0302"))


@cache
def gpu(device: str) -> Model:
    """The model of a PCI device id; one that is not in the table is judged by the range its id lies in."""
    device = device.lower()
    generations = table("gpus")["generations"]
    row: Mapping[str, Any] = table("gpus")["gpus"].get(device) or {}
    key = row.get("generation") or _generation(int(device, 16))
    if key is None:
        return Model(device, f"unknown GPU 10de:{device}", "unknown", LATEST, 0, LATEST, (), "nvidia-gpu")
    generation = generations[key]
    return Model(
        device=device,
        name=row.get("name", f"{generation['name']} GPU 10de:{device}"),
        generation=generation["name"],
        first=row.get("first", generation["first"]),
        last=generation.get("last", LATEST),
        open_first=row.get("open_first", max(515, row.get("first", generation["first"]))),
        flavours=tuple(generation["flavours"]),
        accelerator=row.get("accelerator", f"nvidia-{key}"),
    )


def _generation(device: int) -> str | None:
    for key, row in table("gpus")["generations"].items():
        for limits in row["ranges"]:
            low, high = limits.split("-")
            if int(low, 16) <= device <= int(high, 16):
                return str(key)
    return None


# --- Driver branches -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Branch:
    """A driver branch. `ends` is the month of its last fix, as NVIDIA announced it."""

    number: int
    status: Literal["production", "lts", "new", "ended"]
    kernel: tuple[int, int]
    ends: str = ""

    @property
    def alive(self) -> bool:
        """Whether it still gets fixes."""
        return self.status != "ended"


@cache
def branches() -> Mapping[int, Branch]:
    """All branches by number."""
    return {
        number: Branch(number, row["status"], _kernel(row["kernel"]), str(row.get("ends", "")))
        for number, row in table("drivers")["branches"].items()
    }


def production() -> int:
    """The branch that is installed where nothing speaks for another."""
    return int(table("drivers")["production"])


def _kernel(text: str) -> tuple[int, int]:
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


def kernel_version(release: str) -> tuple[int, int]:
    """`uname -r` as numbers; (0, 0) when it does not begin with any."""
    match = re.match(r"(\d+)\.(\d+)", release)
    return (int(match[1]), int(match[2])) if match else (0, 0)


# --- Packages ----------------------------------------------------------------------------------------------


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


# --- Repositories -----------------------------------------------------------------------------------------

Purpose: TypeAlias = Literal["driver", "toolkit"]


def repository_uri(purpose: Purpose, place: System, arch: str) -> str:
    """Where NVIDIA publishes this distribution's packages."""
    uri = str(table("repositories")[purpose]["uri"])
    return uri.format(directory=place.directory, architecture=place.architecture, arch=arch)


def repository_key(purpose: Purpose) -> str:
    """Where the key that signs them is to be found, in words."""
    return str(table("repositories")[purpose]["key"])


def offers(purpose: Purpose, uri: str) -> bool:
    """Whether a source on a host is NVIDIA's repository, or a mirror that keeps its paths."""
    return any(part in uri for part in table("repositories")[purpose]["known"])


def is_dead(uri: str) -> bool:
    """Whether a source is one of those that NVIDIA gave up."""
    return any(part in f"{uri.rstrip('/')}/" for part in table("repositories")["dead"])


# --- Kubernetes --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gate:
    """A feature gate's life in minors of Kubernetes 1.x; None: not yet, or not known."""

    name: str
    alpha: int
    beta: int | None = None
    ga: int | None = None
    locked: int | None = None
    gone: int | None = None

    def is_gone(self, minor: int) -> bool:
        """Whether a kubelet of this minor does not start with it, whatever its value."""
        return self.gone is not None and minor >= self.gone

    def is_locked(self, minor: int) -> bool:
        """Whether a kubelet of this minor does not start with it set to false."""
        return self.locked is not None and minor >= self.locked

    def is_default(self, minor: int) -> bool:
        """Whether it is on unless somebody turns it off."""
        return self.beta is not None and minor >= self.beta


@cache
def gates() -> Mapping[str, Gate]:
    """The feature gates that matter to GPU nodes, by name."""
    return {name: Gate(name, **row) for name, row in table("kubernetes")["gates"].items()}


def needed_gates() -> Mapping[str, str]:
    """Gates a GPU node cannot do without, with the reason."""
    return cast("Mapping[str, str]", table("kubernetes")["needed"])


def minor(version: str) -> int | None:
    """The minor of a Kubernetes version: 23 of v1.23.17."""
    match = re.match(r"v?1\.(\d+)", version)
    return int(match[1]) if match else None


def has_dockershim(minor: int) -> bool:
    """Whether a kubelet of this minor can run its pods with docker by itself."""
    return minor < int(table("kubernetes")["dockershim_gone"])


def fails_on_cgroup_v1(minor: int) -> bool:
    """Whether a kubelet of this minor refuses cgroup v1 unless its configuration allows it."""
    return minor >= int(table("kubernetes")["cgroup_v1_fails"])


def distributions() -> Mapping[str, str]:
    """Kubernetes distributions with places of their own, by the unit that shows them."""
    return cast("Mapping[str, str]", table("kubernetes")["distributions"])
