"""Which GPUs of a node a pod gets, container by container. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations

from gpunode.contract.promises import Ask

STEPS = 200  # sets of GPUs to try on one node

Choice = tuple[tuple[int, ...], ...]  # for each ask the positions of its GPUs


class TooHard(Exception):
    """Undecided after so many steps."""


def choose(free: Sequence[int], asks: Sequence[Ask], *, packed: bool) -> Choice | None:
    """GPUs for all asks together, or None if no choice has room. Raises TooHard.

    The largest ask goes first: `packed`, to the GPUs with the least free that is enough, else to those with the most.
    It goes back on a choice that leaves no room for a smaller ask, so None means that no choice has room.
    """
    if len(asks) == 1:  # the usual pod, without the bookkeeping
        first = next(_candidates(free, asks[0], packed=packed), None)
        return None if first is None else (first,)
    left, order = list(free), sorted(range(len(asks)), key=lambda one: -asks[one].each)
    chosen: dict[int, tuple[int, ...]] = {}
    tries: list[Iterator[tuple[int, ...]]] = []
    steps = 0
    while len(chosen) < len(asks):
        now = order[len(chosen)]
        if len(tries) == len(chosen):
            tries.append(_candidates(left, asks[now], packed=packed))
        gpus = next(tries[-1], None)
        if gpus is not None:
            steps += 1
            if steps > STEPS + len(asks):
                raise TooHard
            chosen[now] = gpus
            _take(left, gpus, asks[now].each)
        else:
            tries.pop()
            if not tries:
                return None
            before = order[len(chosen) - 1]
            _take(left, chosen.pop(before), -asks[before].each)
    return tuple(chosen[one] for one in range(len(asks)))


def _candidates(left: Sequence[int], ask: Ask, *, packed: bool) -> Iterator[tuple[int, ...]]:
    """Sets of GPUs with room, the best first; of sets with equal room only one."""
    enough = [gpu for gpu, units in enumerate(left) if units >= ask.each]
    if ask.gpus > len(enough):
        return
    enough.sort(key=left.__getitem__ if packed else lambda gpu: -left[gpu])
    seen = set()
    for gpus in combinations(enough, ask.gpus):
        room = tuple(left[gpu] for gpu in gpus)
        if room not in seen:
            seen.add(room)
            yield gpus


def _take(left: list[int], gpus: tuple[int, ...], units: int) -> None:
    for gpu in gpus:
        left[gpu] -= units
