"""yum 3: CentOS and RHEL 7. Repositories and keys are as dnf's; a branch is in the packages' names, so nothing has to keep it."""

from __future__ import annotations

from gpunode.compat import PackageNames
from gpunode.model import Change, DriverWish, Facts, Watch
from gpunode.packages import dnf
from gpunode.packages.dnf import branch, keeps_branch, offers, place, plan_sources, plan_tools

NAME = "yum"
NAMES = PackageNames("yum")
HEADERS_FIRST = True
WATCH = Watch(
    files=(*dnf.WATCH.files, branch.REPOSITORY), packages=(*dnf.WATCH.packages, NAMES.holds, "ocl-icd")
)
PURGE = "yum remove"
REINSTALL = "yum reinstall"

__all__ = [
    "HEADERS_FIRST",
    "NAME",
    "NAMES",
    "PURGE",
    "REINSTALL",
    "WATCH",
    "keeps_branch",
    "offers",
    "place",
    "plan_branch",
    "plan_sources",
    "plan_tools",
]


def plan_branch(_facts: Facts, _wish: DriverWish) -> tuple[Change, ...]:
    """Nothing to do."""
    return ()
