"""dnf's transactions: the requested packages, their dependencies, and those that are no longer needed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpunode.sim.host.rpms import Rpm

Installed = Mapping[str, Rpm]


class Unsolvable(Exception):
    """No set of packages is consistent; the message is the solver's."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """Packages under dnf's own headings, in the order in which dnf processes them."""

    changes: tuple[tuple[str, Rpm], ...] = ()

    def under(self, heading: str) -> tuple[Rpm, ...]:
        """The packages below a heading, by name."""
        found = (package for head, package in self.changes if head == heading)
        return tuple(sorted(found, key=lambda package: package.name))


def bring(there: Installed, wanted: Sequence[Rpm], available: Sequence[Rpm]) -> Transaction:
    """Install these packages in these versions. Raises Unsolvable."""
    after = _solve(there, wanted, available)
    asked = {package.name for package in wanted}
    changes = []
    for package in _ordered(after):
        before = there.get(package.name)
        if before is None:
            heading = "Installing" if package.name in asked else "Installing dependencies"
        elif before.version == package.version:
            continue
        else:
            heading = "Upgrading" if package.age > before.age else "Downgrading"
        changes.append((heading, package))
    return Transaction(tuple(changes))


def take(there: Installed, unwanted: Iterable[str], chosen: Iterable[str]) -> Transaction:
    """Remove packages by name, their dependents, and dependencies that none of the `chosen` ones then needs."""
    heads = dict.fromkeys(unwanted, "Removing")
    while True:
        rest = {name: package for name, package in there.items() if name not in heads}
        broken = [package.name for package in rest.values() if _lacks(package, rest)]
        if not broken:
            break
        heads |= dict.fromkeys(broken, "Removing dependent packages")
    needed = _needed((rest[name] for name in chosen if name in rest), rest)
    brought = _needed((there[name] for name in heads), there)
    kept = set(chosen) | needed
    heads |= {name: "Removing unused dependencies" for name in brought if name in rest and name not in kept}
    return Transaction(
        tuple(
            (heads[package.name], package) for package in reversed(_ordered(there)) if package.name in heads
        )
    )


def _lacks(package: Rpm, among: Installed) -> list[str]:
    return [need for need in package.requires if not any(one.fits(need) for one in among.values())]


def _needed(packages: Iterable[Rpm], among: Installed) -> set[str]:
    """The names of all direct and indirect dependencies."""
    found: set[str] = set()
    todo = list(packages)
    while todo:
        needs = todo.pop().requires
        for one in among.values():
            if one.name not in found and any(one.fits(need) for need in needs):
                found.add(one.name)
                todo.append(one)
    return found


def _solve(there: Installed, wanted: Sequence[Rpm], available: Sequence[Rpm]) -> dict[str, Rpm]:
    after = dict(there)
    settled = {package.name: package for package in wanted}
    todo: list[tuple[Rpm, tuple[str, ...]]] = [(package, ()) for package in wanted]  # with what led to it
    while todo:
        package, why = todo.pop(0)
        after[package.name] = package
        for need in _lacks(package, {**after, **settled}):
            found = [one for one in available if one.fits(need)]
            if not found:
                raise _nowhere(need, package, why, available)
            free = [one for one in found if one.name not in settled]
            if not free:
                raise Unsolvable(_unmet(package, need))
            best = max(free, key=lambda one: (one.name in after, one.age))  # of equals, the first
            settled[best.name] = best
            todo.append((best, (*why, _unmet(package, need))))
        if not todo:  # installed packages whose dependencies are broken now change their version, too
            broken = [(one, needs[0]) for one in after.values() if (needs := _lacks(one, after))]
            others = [_other(one, need, available, settled) for one, need in broken[:1]]
            settled |= {one.name: one for one in others}
            todo = [(one, ()) for one in others]
    return after


def _nowhere(need: str, package: Rpm, why: Sequence[str], available: Iterable[Rpm]) -> Unsolvable:
    ages = [one.age for one in available if one.name == package.name]
    best = not why and len(ages) > 1 and package.age == max(ages)
    head = "cannot install the best candidate for the job" if best else "conflicting requests"
    return Unsolvable("\n  - ".join((*why, head, f"nothing provides {need} needed by {package.nevra}")))


def _other(package: Rpm, lacking: str, available: Sequence[Rpm], settled: Installed) -> Rpm:
    """The newest version of a package that is compatible with the chosen ones."""

    def goes(one: Rpm) -> bool:
        bound = ((need, settled.get(need.partition(" = ")[0])) for need in one.requires)
        return all(other is None or other.fits(need) for need, other in bound)

    found = [one for one in available if one.name == package.name and goes(one)]
    if package.name in settled or not found:
        raise Unsolvable(_unmet(package, lacking))
    return max(found, key=lambda one: one.age)


def _unmet(package: Rpm, need: str) -> str:
    return f"package {package.nevra} requires {need}, but none of the providers can be installed"


def _ordered(packages: Installed) -> list[Rpm]:
    """The packages in the order of their dependencies."""
    found: dict[str, Rpm] = {}

    def visit(package: Rpm, above: tuple[str, ...]) -> None:
        if package.name in found or package.name in above:
            return
        for need in package.requires:
            for one in packages.values():
                if one.fits(need):
                    visit(one, (*above, package.name))
        found[package.name] = package

    for package in packages.values():
        visit(package, ())
    return list(found.values())
