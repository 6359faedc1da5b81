"""Kernel modules that a distribution builds for its own kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpunode.model import Flavour, Os
from gpunode.planning.tables import LATEST, table

ARCHES = {"amd64": "x86_64", "arm64": "aarch64"}


@dataclass(frozen=True, slots=True)
class Prebuilt:
    """A driver with such modules. `follows` must be of exactly the module's version and comes from NVIDIA; of each list of
    `repositories` one must be enabled; `brings` is the package with the repository."""

    branch: int
    first: int
    last: int
    flavour: Flavour
    trusted: bool  # by the distribution's kernel, also with Secure Boot
    module: str
    packages: tuple[str, ...]
    follows: tuple[str, ...]
    fabric: str
    repositories: tuple[tuple[str, ...], ...]
    brings: str
    generation: str
    locks: tuple[str, ...]  # packages of other ways, which must not come


def prebuilt(os: Os, kernel: str) -> tuple[Prebuilt, ...]:
    """Those of the host's release, the better ones first."""
    releases = table(__package__, "prebuilt.yaml").get(os.id, {})
    major, _, minor = os.version.partition(".")
    rows = releases.get(os.version) or releases.get(major) or ()
    words = {"arch": ARCHES.get(os.arch, os.arch), "flavour": kernel.rpartition("-")[2]}
    return tuple(_row(row, words) for row in rows if int(minor or 0) >= row.get("minor", 0))


def _row(row: Mapping[str, Any], words: Mapping[str, str]) -> Prebuilt:
    return Prebuilt(
        row["branch"],
        row.get("first", 0),
        row.get("last", LATEST),
        row["flavour"],
        row["trusted"],
        row["module"].format(**words),
        tuple(row.get("packages", ())),
        tuple(row.get("follows", ())),
        row["fabric"],
        tuple(tuple(name.format(**words) for name in group) for group in row.get("repositories", ())),
        row.get("brings", ""),
        row.get("generation", ""),
        tuple(name.format(**words) for name in row.get("locks", ())),
    )
