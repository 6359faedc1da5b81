"""dnf 4: RHEL, Rocky Linux, AlmaLinux, Oracle Linux, Amazon Linux 2023."""

from __future__ import annotations

from gpunode.model import Watch
from gpunode.packages.dnf import branch, repos, sources
from gpunode.packages.dnf.branch import NAMES
from gpunode.packages.dnf.branch import keeps as keeps_branch
from gpunode.packages.dnf.branch import plan as plan_branch
from gpunode.packages.dnf.repos import place
from gpunode.packages.dnf.sources import offers, plan_tools
from gpunode.packages.dnf.sources import plan as plan_sources

NAME = "dnf"
HEADERS_FIRST = True  # rpm runs a package's script before it unpacks the rest
WATCH = Watch(
    files=(repos.FILES, sources.KEYS, branch.STREAM, sources.OSTREE),
    packages=(
        "*nvidia*",
        "cuda-drivers*",
        "libnvsdm*",
        "dkms",
        "kernel*-devel",
        "kernel*-devel-matched",
        NAMES.holds,
        "*epel-release*",
    ),
)
PURGE = "dnf remove"
REINSTALL = "dnf reinstall"

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
