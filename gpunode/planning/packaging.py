"""Packages as changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from gpunode.model import Facts, Packages, PackageSpec
from gpunode.planning.versions import is_installed


def change(
    facts: Facts,
    why: str,
    *,
    install: tuple[PackageSpec, ...] = (),
    remove: tuple[str, ...] = (),
    hold: tuple[str, ...] = (),
    purge: bool = False,
) -> Packages:
    """A change of packages, with its faults one a line."""
    fault = "\n".join(_faults(facts, why, install, remove, hold))
    return Packages(why, install=install, remove=remove, hold=hold, purge=purge, fault=fault)


def _faults(
    facts: Facts, why: str, install: Sequence[PackageSpec], remove: Sequence[str], hold: Sequence[str]
) -> Iterator[str]:
    there = facts.packages
    absent = [spec.name for spec in install if spec.name not in there]
    if remove:
        yield f"{_are(remove)} installed: {why}"
    if absent:
        yield f"{_are(absent)} not installed"
    for spec in install:
        if spec.name in there and not is_installed(there, spec):
            yield f"{spec.name} is {there[spec.name].version}, not {spec.version}"
    loose = [name for name in hold if name in there and not there[name].held]
    if loose and not install:
        yield f"{_are(loose)} not held: {why}"


def _are(names: Sequence[str]) -> str:
    return f"{', '.join(names)} {'is' if len(names) == 1 else 'are'}"
