"""Preferred allocation: which free units a container should get. Pure; never an error, which would fail the pod."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb

from gpunode.contract.offer import Unit
from gpunode.contract.promises import Place

Links = Mapping[frozenset[str], int]  # UUIDs of two GPUs -> how well they are connected

TRIES = 20_000  # sets of GPUs to compare at most; beyond that a greedy choice is made


def preferred(
    available: Sequence[str],
    must: Sequence[str],
    size: int,
    units: Mapping[str, Unit],
    unhealthy: Container[str],
    reserved: Container[str] = (),
    *,
    packed: bool = False,
    links: Links | None = None,
    promised: Sequence[Place] = (),
) -> list[str]:
    """`size` ids, or fewer if there are not enough: those in `must`, then the best of the available.

    Whole GPUs: the ones best connected with each other. Shares and MIG devices: from the GPU with the most free units
    (or, `packed`, the fewest). Memory: all from one GPU with enough free, the one with the most (or, `packed`, the
    least), or of the first of the places that were `promised` with room. Unknown, Unhealthy and reserved ones come last.
    """
    first = list(dict.fromkeys(must))
    given = set(first)  # units can be tens of thousands
    pool = [unit_id for unit_id in dict.fromkeys(available) if unit_id not in given]
    known = [units[unit_id] for unit_id in pool if unit_id in units and unit_id not in reserved]
    good = [unit for unit in known if unit.device.uuid not in unhealthy]
    wanted = min(max(size - len(first), 0), len(good))
    by_promise = None if first else _as_promised(good, promised)
    if by_promise is not None:
        chosen = by_promise
    elif any(unit.mib for unit in good):
        chosen = _of_one(good, [units[unit_id] for unit_id in first if unit_id in units], wanted, packed)
    elif all(unit.device.profile is None and not unit.shared for unit in good):
        chosen = _close(good, [units[unit_id] for unit_id in first if unit_id in units], wanted, links or {})
    else:
        chosen = _spread(good, units, wanted, packed)
    ids = [unit.id for unit in chosen]
    taken = set(ids)
    return [*first, *ids, *(unit_id for unit_id in pool if unit_id not in taken)][: max(size, 0)]


def _as_promised(good: Sequence[Unit], places: Sequence[Place]) -> list[Unit] | None:
    """Units of the first of these places that has so many; None if none has."""
    for place in places:
        left = [[unit for unit in good if unit.device.uuid == gpu][:count] for gpu, count in sorted(place)]
        if all(len(units) == count for units, (_, count) in zip(left, sorted(place), strict=True)):
            return [unit for units in left for unit in units]
    return None


def _of_one(good: Sequence[Unit], given: Sequence[Unit], wanted: int, packed: bool) -> list[Unit]:
    """Units of one GPU, that of `given` if there are any; of several GPUs if none has enough."""
    free: dict[str, list[Unit]] = {}
    for unit in good:
        free.setdefault(unit.device.gpu, []).append(unit)
    reserved = {unit.device.gpu for unit in given}
    enough = [left for gpu, left in free.items() if len(left) >= wanted and reserved <= {gpu}]
    return (min if packed else max)(enough, key=len, default=list(good))[:wanted]


def _spread(good: Sequence[Unit], units: Mapping[str, Unit], wanted: int, packed: bool) -> list[Unit]:
    total = Counter(unit.device.gpu for unit in units.values())
    free: dict[str, list[Unit]] = {}
    for unit in good:
        free.setdefault(unit.device.gpu, []).append(unit)
    chosen = []
    for _ in range(wanted):
        used = {gpu: total[gpu] - len(left) for gpu, left in free.items() if left}
        gpu = (max if packed else min)(used, key=lambda gpu: used[gpu])
        chosen.append(free[gpu].pop(0))
    return chosen


def _close(good: Sequence[Unit], given: Sequence[Unit], wanted: int, links: Links) -> list[Unit]:
    if wanted in (0, len(good)) or not links:
        return list(good[:wanted])
    if comb(len(good), wanted) > TRIES:
        return _grow(good, given, wanted, links)

    between = [[_link(one, other, links) for other in good] for one in good]
    to_given = [sum(_link(unit, other, links) for other in given) for unit in good]
    to_good = [sum(row) for row in between]

    def value(chosen: Iterable[int]) -> tuple[int, int]:
        """How well the set is connected, within itself and with those given; then how well the remaining GPUs are.
        Those lose all links of the set: `to_good`, which counts links within the set twice."""
        some = tuple(chosen)
        within = sum([between[one][other] for one, other in combinations(some, 2)])
        return within + sum([to_given[one] for one in some]), within - sum([to_good[one] for one in some])

    return [good[one] for one in max(combinations(range(len(good)), wanted), key=value)]


def _grow(good: Sequence[Unit], given: Sequence[Unit], wanted: int, links: Links) -> list[Unit]:
    """Greedy choice: one after the other, the GPU best connected with those chosen before."""
    chosen = list(given)
    left = list(good)
    for _ in range(wanted):
        best = max(left, key=lambda unit: sum(_link(unit, other, links) for other in chosen))
        left.remove(best)
        chosen.append(best)
    return chosen[len(given) :]


def _link(one: Unit, other: Unit, links: Links) -> int:
    return links.get(frozenset((one.device.gpu, other.device.gpu)), 0)
