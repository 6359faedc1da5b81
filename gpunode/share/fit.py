"""Places pods: whether a pod fits a node, the GPUs of its containers, its annotations, and its preemption victims. Pure.

The message of a refusal does not name the node: kube-scheduler counts nodes by message ("3 no single GPU has 6 …").
"""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations

from gpunode.contract.promises import (
    ALLOCATION,
    ASSIGNED,
    ASSUMED,
    DEV,
    INDEX,
    MEMORY_ANNOTATION,
    POD,
    VERSION,
    Ask,
    Demand,
    Part,
)
from gpunode.contract.status import Reason

from .book import Book, Gpu, Promise

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
    left, order = list(free), sorted(range(len(asks)), key=lambda number: -asks[number].each)
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
            _take_units(left, gpus, asks[now].each)
        else:
            tries.pop()
            if not tries:
                return None
            before = order[len(chosen) - 1]
            _take_units(left, chosen.pop(before), -asks[before].each)
    return tuple(chosen[number] for number in range(len(asks)))


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


def _take_units(left: list[int], gpus: tuple[int, ...], units: int) -> None:
    for gpu in gpus:
        left[gpu] -= units


TOP = 10  # MaxExtenderPriority of the extender API
# Codes of reasons that no preemption of pods changes.
LASTING = frozenset(
    {"unknown-node", "not-shared", "gpus-unknown", "init-container", "too-large", "too-few-gpus"}
)


class Refused(Exception):
    """The node cannot be promised to the pod, for this reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.words)
        self.reason = reason


def find(book: Book | None, wanted: Demand, *, packed: bool) -> tuple[Book, Choice]:
    """The node's book, and which of its GPUs the pod's containers get. Raises Refused."""
    if book is None:
        raise Refused(Reason("unknown-node", "the extender does not know the node"))
    if book.why is not None:
        raise Refused(book.why)
    if wanted.init:
        text = "its init container asks for GPU memory, which the extender does not place"
        raise Refused(Reason("init-container", text))
    if wanted.most_gpus > len(book.gpus):
        raise Refused(Reason("too-few-gpus", f"it has fewer than {wanted.most_gpus} GPUs"))
    if wanted.most_units > book.largest:
        raise Refused(Reason("too-large", f"no GPU of it has {wanted.most_units} units of memory"))
    if wanted.units > book.room:
        raise Refused(Reason("full", f"fewer than {wanted.units} units of GPU memory are free"))
    try:
        choice = choose(book.free, wanted.asks, packed=packed)
    except TooHard:
        text = "too many containers share GPUs to decide whether its GPUs have room for all"
        raise Refused(Reason("undecided", text)) from None
    if choice is None:
        raise Refused(Reason("fragmented", _explain_fragments(wanted)))
    return book, choice


def score(book: Book | None, wanted: Demand, *, packed: bool) -> int:
    """0 to TOP: how full the node is with the pod, or how empty where pods are distributed; 0 if it does not fit."""
    try:
        fitting, _ = find(book, wanted, packed=packed)
    except Refused:
        return 0
    left = (fitting.room - wanted.units) / sum(gpu.units for gpu in fitting.gpus)
    return round(TOP * (1 - left if packed else left))


def _explain_fragments(wanted: Demand) -> str:
    if len(wanted.asks) > 1:
        return f"no choice of its GPUs has room for {len(wanted.asks)} containers; the largest requests {wanted.most_units} units of a GPU's memory"
    if wanted.most_gpus > 1:
        return f"fewer than {wanted.most_gpus} GPUs have {wanted.most_units} units of memory free"
    return f"no single GPU has {wanted.most_units} units of memory free"


def place_parts(demand: Demand, choice: Choice, gpus: Sequence[Gpu]) -> tuple[Part, ...]:
    """The choice among these GPUs as a placement."""
    return tuple(
        Part(ask.container, gpus[gpu].index, ask.each, gpus[gpu].uuid)
        for ask, positions in zip(demand.asks, choice, strict=True)
        for gpu in positions
    )


def notes_of(
    node: str, demand: Demand, parts: Sequence[Part], gpus: Sequence[Gpu], now: int
) -> dict[str, str]:
    """The annotations of a pod placed like this at `now` (nanoseconds of Unix time)."""
    containers: dict[str, list[dict[str, str]]] = {}
    by_position: dict[str, dict[str, int]] = {}
    position = {ask.container: str(ask.position) for ask in demand.asks}
    for part in parts:
        containers.setdefault(part.container, []).append({"index": part.index, "uuid": part.uuid})
        by_position.setdefault(position[part.container], {})[part.index] = part.units
    indexes = list(dict.fromkeys(part.index for part in parts))
    size = next(gpu.units for gpu in gpus if gpu.index == indexes[0])
    return {
        MEMORY_ANNOTATION: _line({"version": VERSION, "node": node, "containers": containers}),
        ALLOCATION: _line(by_position),
        # More than one is no number: gpushare's plugin refuses it, rather than place the whole pod on the first.
        INDEX: ",".join(indexes),
        DEV: str(size),
        POD: str(demand.units),
        ASSIGNED: "false",
        ASSUMED: str(now),
    }


def _line(document: object) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def beside_nominees(book: Book, uid: str, priority: int, *, packed: bool) -> Book:
    """The book for the pod `uid` of this priority, with promises for other nominated pods of at least this priority.

    A nominee without room even then counts against every GPU: its victims are not known to be deleted yet.
    """
    others = [nominee for nominee in book.nominees if nominee.uid != uid and nominee.priority >= priority]
    if not others:
        return book
    later = book.later
    for other in sorted(others, key=lambda other: (-other.priority, other.uid)):
        try:
            _, choice = find(later, other.wanted, packed=packed)
            promise = Promise("", other.wanted.units, place_parts(other.wanted, choice, later.gpus))
        except Refused:
            promise = Promise("", other.wanted.units, ())
        book, later = book.plus((promise,)), later.plus((promise,))
    return book


def victims(
    book: Book | None,
    promises: Mapping[str, Promise],
    wanted: Demand,
    priority: int,
    proposed: Sequence[str],
    *,
    packed: bool,
) -> tuple[str, ...] | None:
    """UIDs: all `proposed` ones, since they free other resources, too; if they leave no room, also as few pods of a lower
    priority as possible. None if not even all of them make room."""
    if book is None:
        return None
    left = _without(book, promises, proposed)
    if fits(left, wanted, packed=packed):
        return tuple(proposed)
    # Those of a higher priority, and the larger ones, are the first to stay, as at the scheduler.
    others = sorted(
        (uid for uid, promise in promises.items() if promise.priority < priority and not promise.reserved),
        key=lambda uid: (-promises[uid].priority, -promises[uid].units, uid),
    )
    others = [uid for uid in others if uid not in proposed]
    left = _without(left, promises, others)
    if not fits(left, wanted, packed=packed):
        return None
    more = []
    for uid in others:
        again = left.plus((promises[uid],))
        if fits(again, wanted, packed=packed):
            left = again
        else:
            more.append(uid)
    return (*proposed, *more)


def _without(book: Book, promises: Mapping[str, Promise], uids: Collection[str]) -> Book:
    return book.plus([promises[uid] for uid in uids if uid in promises], -1)


def fits(book: Book, wanted: Demand, *, packed: bool) -> bool:
    try:
        find(book, wanted, packed=packed)
    except Refused:
        return False
    return True
