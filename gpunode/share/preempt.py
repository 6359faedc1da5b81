"""Which pods of a node make room for another. Pure.

kube-scheduler chooses victims by the node's sums: they can leave no single GPU with room. So others are added to them, or
none of them ends. An extender without a `preemptVerb` is not asked, whatever `ignorable` says: pods would end for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from gpunode.contract.promises import Demand

from .book import Book, Promise
from .fit import Refused, find


def victims(
    book: Book | None,
    promises: Mapping[str, Promise],
    wanted: Demand,
    priority: int,
    proposed: Sequence[str],
    *,
    packed: bool,
) -> tuple[str, ...] | None:
    """UIDs: the `proposed` ones, all, since they free other resources, too; and where these leave no room pods of a lower
    priority as well, none of those without need. None where not even all of them make room."""
    if book is None:
        return None
    left = _without(book, promises, proposed)
    if _fits(left, wanted, packed=packed):
        return tuple(proposed)
    # Those of a higher priority, and the larger ones, are the first to stay, as at the scheduler.
    others = sorted(
        (uid for uid, one in promises.items() if one.priority < priority and not one.reserved),
        key=lambda uid: (-promises[uid].priority, -promises[uid].units, uid),
    )
    others = [uid for uid in others if uid not in proposed]
    left = _without(left, promises, others)
    if not _fits(left, wanted, packed=packed):
        return None
    more = []
    for uid in others:
        again = left.plus((promises[uid],))
        if _fits(again, wanted, packed=packed):
            left = again
        else:
            more.append(uid)
    return (*proposed, *more)


def _without(book: Book, promises: Mapping[str, Promise], uids: Collection[str]) -> Book:
    return book.plus([promises[uid] for uid in uids if uid in promises], -1)


def _fits(book: Book, wanted: Demand, *, packed: bool) -> bool:
    try:
        find(book, wanted, packed=packed)
    except Refused:
        return False
    return True
