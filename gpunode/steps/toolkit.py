"""NVIDIA's container toolkit: its four packages at one version, and nothing of its predecessors."""

from __future__ import annotations

from gpunode import compat
from gpunode.model import Change, Desired, Facts, Packages

FILES = ()
UNITS = ()
PACKAGES = ("nvidia-container-*", "libnvidia-container*", "nvidia-docker*")


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Predecessors out, the four in and held."""
    if not desired.toolkit:
        return ()
    changes: list[Change] = []
    retired = tuple(name for name in compat.retired_packages() if name in facts.packages)
    if retired:
        changes.append(
            Packages(
                "the container toolkit replaces it; daemon.json is kept and merged into",
                remove=retired,
            )
        )
    install = missing(facts, desired)
    names = [package.partition("=")[0] for package in desired.toolkit]
    # apt may forget a hold when it installs, so all are held again then
    hold = tuple(n for n in names if install or n not in facts.packages or not facts.packages[n].held)
    if install:
        changes.append(
            Packages(
                "brings the runtime that gives containers their GPUs; its packages work at one version only",
                install=install,
                hold=hold,
            )
        )
    elif hold:
        changes.append(Packages("its packages work at one version only, so nobody upgrades one", hold=hold))
    return tuple(changes)


def missing(facts: Facts, desired: Desired) -> tuple[str, ...]:
    """All four when one is missing or of another version."""
    right = all(compat.is_installed(facts.packages, package) for package in desired.toolkit)
    return () if right else desired.toolkit
