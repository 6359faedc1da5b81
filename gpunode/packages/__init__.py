"""Package systems: their protocol, and the one of a host.

A new one is a section of compat's packages.yaml and repositories.yaml (its name in `compat.Family`), a folder here that
implements `PackageSystem`, a line in SYSTEMS, and a module of the agent that reads its database and runs its programs.
Planners are pure: they take Facts and the decision, and return changes in order, () when the host is right. They raise
CannotPlan at what they cannot parse, change no source unrelated to NVIDIA, and show no credentials of an address. A
driver without packages is not a package system.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from gpunode import compat
from gpunode.model import Change, Desired, DriverWish, Facts, Watch
from gpunode.packages import apt, dnf, yum, zypper


class PackageSystem(Protocol):
    """What planners and the decision need of a package system."""

    NAME: str  # for messages
    NAMES: compat.PackageNames
    WATCH: Watch  # the files that the planners read or write, and patterns of all names in NAMES
    HEADERS_FIRST: bool  # a kernel's headers are installed before what builds a module with them
    PURGE: str  # commands for hints: remove packages, and (REINSTALL) restore their files
    REINSTALL: str

    def place(self, uri: str, arch: str) -> str:
        """A repository's address, normalised: equal for two spellings."""

    def offers(self, facts: Facts, purpose: compat.Purpose) -> bool:
        """Whether the host has a repository of NVIDIA's for this already."""

    def plan_sources(self, facts: Facts, desired: Desired) -> tuple[Change, ...]:
        """Add `desired.sources` with their keys, and remove sources that conflict. A refresh is planned elsewhere."""

    def keeps_branch(self, facts: Facts) -> bool:
        """Whether the host is kept on a driver branch, as `plan_branch` does before any package of a driver changes."""

    def plan_tools(self, facts: Facts, desired: Desired) -> tuple[Change, ...]:
        """After a refresh: what the installation of driver and toolkit rests on."""

    def plan_branch(self, facts: Facts, wish: DriverWish) -> tuple[Change, ...]:
        """Keep the package system on the desired driver branch."""


# By the name of their section.
SYSTEMS: Mapping[compat.Family, PackageSystem] = MappingProxyType(
    {"apt": apt, "dnf": dnf, "yum": yum, "zypper": zypper}
)


def of(facts: Facts) -> PackageSystem | None:
    """The host's, or None where gpunode installs no packages."""
    release = compat.release(facts.os)
    return SYSTEMS[release.family] if release else None
