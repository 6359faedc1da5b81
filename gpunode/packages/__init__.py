"""Package systems: their protocol, and the one of a host.

A new one is a folder here, a line in SYSTEMS and one in `on_host`, its distributions' names in `releases`, and where its hosts
may lack a Python, how `host/bootstrap` installs one. The folder has a `table.yaml` (releases, names of
packages, repositories), a planner with its `PackageSystem`, and `on_host`, which reads its database and runs its
programs. Planners are pure: they take Facts and the decision, and return changes in order, () when the host is right. They raise
CannotPlan at what they cannot parse, change no source unrelated to NVIDIA, and show no credentials of an address. A
driver without packages is not a package system.
"""

from collections.abc import Mapping

from gpunode.agent.failures import HINTS
from gpunode.errors import CannotPlan
from gpunode.model import DriverSpec, Facts, Host, PackageSpec, Repository, Source
from gpunode.packages import releases, repositories
from gpunode.packages.apt import plan as apt
from gpunode.packages.dnf import plan as dnf
from gpunode.packages.names import PackageSystem
from gpunode.packages.zypper import plan as zypper
from gpunode.planning.versions import is_installed

# By the name of their section.
SYSTEMS: Mapping[str, PackageSystem] = {
    system.name: system for system in (apt.SYSTEM, dnf.SYSTEM, dnf.YUM, zypper.SYSTEM)
}


def hint_of(code: str) -> str:
    """What the user does next about a failure of the agent; "" for a code that this gpunode does not know."""
    hints = (HINTS, *(system.hints for system in SYSTEMS.values()))
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
    if system.rpm and host.system_repository is not None and (driver or toolkit):
        sources.append(_source_of("system", host.system_repository))
    arch = facts.os.arch
    needs: list[tuple[repositories.Purpose, tuple[PackageSpec, ...], Repository | None]] = [
        ("driver", driver.specs if driver and not driver.brings else (), host.driver_repository),
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
    if host.system_repository is None or system is None or system.rpm:
        return ()
    return (f"`repositories.system` is for RPMs, and this host has {system.name}: it is not used.",)


def _source_of(purpose: str, repository: Repository) -> Source:
    return Source(f"gpunode-{purpose}", repository.uri, repository.key, repository.fingerprint)


def _no_repository(facts: Facts, system: PackageSystem, purpose: repositories.Purpose) -> CannotPlan:
    return CannotPlan(
        "\n".join(
            (
                f"{system.name} knows no repository for the {purpose}, and the inventory names none",
                *system.notes(facts, ()),
            )
        ),
        hint="`gpunode provision` adds NVIDIA's, where its key can be fetched and its whole fingerprint is known, or given with "
        "`--fingerprint`. "
        f"Else set `repositories.{purpose}` in the inventory; `gpunode keys` checks a key and prints that: "
        f"uri: {repositories.repository_uri(purpose, facts.os)} (or a mirror of it), key: a file with the public key that signs it "
        f"({repositories.repository_key(system.name, purpose)}).",
        layer="module" if purpose == "driver" else "toolkit",
        repository=purpose,
    )
