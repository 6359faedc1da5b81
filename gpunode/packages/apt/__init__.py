"""apt: Debian and Ubuntu."""

from __future__ import annotations

from gpunode.model import Watch
from gpunode.packages.apt import branch, lists, sources
from gpunode.packages.apt.branch import NAMES
from gpunode.packages.apt.branch import keeps as keeps_branch
from gpunode.packages.apt.branch import plan as plan_branch
from gpunode.packages.apt.lists import place
from gpunode.packages.apt.sources import offers, plan_tools
from gpunode.packages.apt.sources import plan as plan_sources

NAME = "apt"
HEADERS_FIRST = False  # dpkg configures packages when all are unpacked
WATCH = Watch(
    files=(*lists.FILES, sources.KEYRINGS, sources.POLICY, branch.PREFERENCE),
    packages=(
        "cuda-drivers*",
        "*nvidia*",
        "libcuda1*",
        "libcudadebugger1",
        "libnvcuvid*",
        "libnvsdm*",
        "linux-headers-*",
        "dkms",
    ),
)
PURGE = "apt-get purge"
REINSTALL = "apt install --reinstall"

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
