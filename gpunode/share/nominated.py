"""What pods hold on a node that others make room for. Pure.

kube-scheduler counts a pod on the node that it is nominated to, for pods of no higher priority, but by the node's sums. Here it
holds memory of single GPUs: those that it would get once the pods that are being deleted have ended.
"""

from __future__ import annotations

from . import notes
from .book import Book, Promise
from .fit import Refused, find


def beside(book: Book, uid: str, priority: int, *, packed: bool) -> Book:
    """The book for the pod `uid` of this priority: with what other nominated pods of at least this priority are to get.

    One that would find no room even then counts against every GPU: its victims are not known to be deleted yet.
    """
    others = [one for one in book.nominees if one.uid != uid and one.priority >= priority]
    if not others:
        return book
    later = book.later
    for one in sorted(others, key=lambda one: (-one.priority, one.uid)):
        try:
            _, choice = find(later, one.wanted, packed=packed)
            promise = Promise("", one.wanted.units, notes.placed(one.wanted, choice, later.gpus))
        except Refused:
            promise = Promise("", one.wanted.units, ())
        book, later = book.plus((promise,)), later.plus((promise,))
    return book
