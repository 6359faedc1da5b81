"""Package systems: their protocol, and the one of a host.

A new one is a folder here, a line in SYSTEMS, and a line in `on_host`. The folder has a `table.yaml` (releases, names of
packages, repositories), a planner, which implements `PackageSystem`, and `on_host`, which reads its database and runs its
programs. Planners are pure: they take Facts and the decision, and return changes in order, () when the host is right. They raise
CannotPlan at what they cannot parse, change no source unrelated to NVIDIA, and show no credentials of an address. A
driver without packages is not a package system.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Protocol

from gpunode.agent.failures import HINTS
from gpunode.errors import CannotPlan
from gpunode.model import Change, Desired, DriverSpec, Facts, Host, PackageSpec, Repository, Source, Watch
from gpunode.packages import releases, repositories
from gpunode.packages.apt import plan as apt
from gpunode.packages.dnf import plan as dnf
from gpunode.packages.dnf import yum
from gpunode.packages.names import PackageNames
from gpunode.packages.zypper import plan as zypper
from gpunode.planning.versions import is_installed


class PackageSystem(Protocol):
    """What planners and the decision need of a package system."""

    NAME: str  # for messages
    NAMES: PackageNames
    WATCH: Watch  # the files that the planners read or write, and patterns of all names in NAMES
    RPM: bool  # its packages are RPMs, and a repository of the distribution's own may be named
    HEADERS_FIRST: bool  # a kernel's headers are installed before what builds a module with them
    PURGE: str  # commands for hints: remove packages, and (REINSTALL) restore their files
    REINSTALL: str
    HINTS: dict[str, str]  # what the user does next, by failure code of its half on the host

    def place(self, uri: str, arch: str) -> str:
        """A repository's address, normalised: equal for two spellings."""

    def offers(self, facts: Facts, purpose: repositories.Purpose) -> bool:
        """Whether the host has a repository of NVIDIA's for this already."""

    def driver_sources(self, facts: Facts) -> tuple[str, ...]:
        """The files, but gpunode's own, with NVIDIA's repository of drivers."""

    def notes(self, facts: Facts, sources: Iterable[Source]) -> tuple[str, ...]:
        """Notes on keys and sources, these and the host's own."""

    def plan_sources(self, facts: Facts, desired: Desired) -> tuple[Change, ...]:
        """Add `desired.sources` with their keys, and remove sources that conflict. A refresh is planned elsewhere."""

    def keeps_branch(self, facts: Facts) -> bool:
        """Whether the host is kept on a driver branch, as `plan_branch` does before any package of a driver changes."""

    def plan_tools(self, facts: Facts, desired: Desired) -> tuple[Change, ...]:
        """After a refresh: what the installation of driver and toolkit rests on."""

    def plan_branch(self, facts: Facts, wish: DriverSpec) -> tuple[Change, ...]:
        """Keep the package system on the desired driver branch."""


# By the name of their section.
SYSTEMS: Mapping[str, PackageSystem] = MappingProxyType(
    {"apt": apt, "dnf": dnf, "yum": yum, "zypper": zypper}
)


def hint_of(code: str) -> str:
    """What the user does next about a failure of the agent; "" for a code that this gpunode does not know."""
    hints = (HINTS, *(system.HINTS for system in SYSTEMS.values()))
    return next((each[code] for each in hints if code in each), "")


def system_of_host(facts: Facts) -> PackageSystem | None:
    """The host's, or None where gpunode installs no packages."""
    release = releases.release(facts.os)
    return SYSTEMS[release.family] if release else None


def decide_sources(
    host: Host,
    facts: Facts,
    system: PackageSystem,
    driver: DriverSpec | None,
    toolkit: tuple[PackageSpec, ...],
) -> tuple[Source, ...]:
    """The inventory's repositories for the packages to install; two with one address are one source."""
    sources: list[Source] = []
    if system.RPM and host.system_repository is not None and (driver or toolkit):
        sources.append(_source_of("system", host.system_repository))
    arch = facts.os.arch
    needs: list[tuple[repositories.Purpose, tuple[PackageSpec, ...], Repository | None]] = [
        (
            "driver",
            (*driver.pin, *driver.headers, *driver.modules, *driver.packages, *driver.fabric, *driver.subnet)
            if driver and not driver.brings
            else (),
            host.driver_repository,
        ),
        ("toolkit", toolkit, host.toolkit_repository),
    ]
    for purpose, specs, repository in needs:
        theirs = [spec for spec in specs if spec.origin == "nvidia"]
        if not theirs:
            continue
        if repository is not None:
            known = [system.place(source.uri, arch) for source in sources]
            if system.place(repository.uri, arch) not in known:
                sources.append(_source_of(purpose, repository))
        elif not (
            all(is_installed(facts.packages, spec) for spec in theirs) or system.offers(facts, purpose)
        ):
            raise _no_repository(facts, system, purpose)
    return tuple(sources)


def unused_note(host: Host, system: PackageSystem | None) -> tuple[str, ...]:
    """A note on a repository of the inventory that this host does not get."""
    if host.system_repository is None or system is None or system.RPM:
        return ()
    return (f"`repositories.system` is for RPMs, and this host has {system.NAME}: it is not used.",)


def _source_of(purpose: str, repository: Repository) -> Source:
    return Source(f"gpunode-{purpose}", repository.uri, repository.key, repository.fingerprint)


def _no_repository(facts: Facts, system: PackageSystem, purpose: repositories.Purpose) -> CannotPlan:
    return CannotPlan(
        "\n".join(
            (
                f"{system.NAME} knows no repository for the {purpose}, and the inventory names none",
                *system.notes(facts, ()),
            )
        ),
        hint="`gpunode provision` adds NVIDIA's, where its key can be fetched and its whole fingerprint is known, or given with "
        "`--fingerprint`. "
        f"Else set `repositories.{purpose}` in the inventory; `gpunode keys` checks a key and prints that: "
        f"uri: {repositories.repository_uri(purpose, facts.os)} (or a mirror of it), key: a file with the public key that signs it "
        f"({repositories.repository_key(system.NAMES.family, purpose)}).",
        layer="module" if purpose == "driver" else "toolkit",
        repository=purpose,
    )
