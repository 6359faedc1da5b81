"""NVIDIA's container toolkit: its four packages at one version, and no package of its predecessors."""

from __future__ import annotations

from gpunode import packages
from gpunode.errors import CannotPlan
from gpunode.model import Change, Desired, Facts, PackageSpec
from gpunode.planning import packaging
from gpunode.planning.versions import is_installed
from gpunode.wording import few


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Remove predecessors; install and hold the four packages."""
    system = packages.system_of_host(facts)
    if system is None or not desired.toolkit:
        return ()
    changes: list[Change] = []
    names = [spec.name for spec in desired.toolkit]
    retired = tuple(name for name in system.NAMES.retired if name in facts.packages and name not in names)
    if retired:
        _no_containers(facts)
        changes.append(
            packaging.change(
                facts,
                "the container toolkit replaces it; daemon.json is kept and merged into",
                remove=retired,
            )
        )
    install = missing(facts, desired)
    # apt may forget a hold when it installs, so all are held again then
    hold = tuple(n for n in names if install or n not in facts.packages or not facts.packages[n].held)
    if install:
        changes.append(
            packaging.change(
                facts,
                "brings the runtime that gives containers their GPUs; its packages work at one version only",
                install=install,
                hold=hold,
            )
        )
    elif hold:
        changes.append(
            packaging.change(
                facts, "its packages work only at one version together: none may be upgraded alone", hold=hold
            )
        )
    return tuple(changes)


def _no_containers(facts: Facts) -> None:
    """Version 1 of nvidia-docker serves volumes with the driver's files: a container that has one does not start without."""
    if facts.docker and facts.docker.v1_containers:
        raise CannotPlan(
            f"nvidia-docker 1 is to be removed, and containers have its volumes: {few(facts.docker.v1_containers, 5)}",
            hint="Remove these containers (`docker rm -f NAME`), start them again with the new runtime afterwards.",
        )


def missing(facts: Facts, desired: Desired) -> tuple[PackageSpec, ...]:
    """All four packages when one is missing or of another version."""
    right = all(is_installed(facts.packages, spec) for spec in desired.toolkit)
    return () if right else desired.toolkit
