"""The repositories of the inventory that a host gets, or the refusal where it needs one that nobody names."""

from __future__ import annotations

from gpunode.errors import CannotPlan
from gpunode.model import DriverSpec, Facts, Host, PackageSpec, Repository, Source
from gpunode.packages import PackageSystem, repositories
from gpunode.planning.versions import is_installed


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
        sources.append(_source("system", host.system_repository))
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
                sources.append(_source(purpose, repository))
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


def _source(purpose: str, repository: Repository) -> Source:
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
