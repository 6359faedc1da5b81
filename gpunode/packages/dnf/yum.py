"""yum 3: CentOS and RHEL 7. All is as dnf's, but a branch is in the packages' names, so nothing has to keep it."""

from __future__ import annotations

from gpunode.model import Change, DriverSpec, Facts, Watch
from gpunode.packages.dnf import plan as dnf
from gpunode.packages.dnf.plan import (
    HEADERS_FIRST,
    HINTS,
    RPM,
    driver_sources,
    keeps_branch,
    notes,
    offers,
    place,
    plan_sources,
    plan_tools,
)
from gpunode.packages.names import PackageNames

NAME = "yum"
NAMES = PackageNames("yum")
WATCH = Watch(
    files=(*dnf.WATCH.files, dnf.REPOSITORY), packages=(*dnf.WATCH.packages, NAMES.holds, "ocl-icd")
)
PURGE = "yum remove"
REINSTALL = "yum reinstall"

__all__ = [
    "HEADERS_FIRST",
    "HINTS",
    "NAME",
    "NAMES",
    "PURGE",
    "REINSTALL",
    "RPM",
    "WATCH",
    "driver_sources",
    "keeps_branch",
    "notes",
    "offers",
    "place",
    "plan_branch",
    "plan_sources",
    "plan_tools",
]


def plan_branch(_facts: Facts, _wish: DriverSpec) -> tuple[Change, ...]:
    """Nothing to do."""
    return ()
