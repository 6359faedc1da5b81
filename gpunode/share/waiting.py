"""Pods that found no room. Once there is room, the scheduler is made to try them again.

The scheduler tries a refused pod again when another ends. Now and then it learns of that end, asks, and is refused again
before the ledger has learned of it too; then it waits for another event, or five minutes. So a pod that has room and is
not asked about is touched: a change of a waiting pod makes every kube-scheduler try it (scheduling_queue.go, Update).
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Any
from urllib.parse import quote

from gpunode.contract.promises import Demand
from gpunode.deviceplugin.cluster.apiserver import ApiError, ApiServer

from .book import Book, Promise
from .fit import beside_nominees, find, fits, place_parts
from .ledger import Ledger, priority

log = logging.getLogger(__name__)

ROOM = "gpunode.dev/gpu-memory-freed"  # annotation: when there was room again
ITSELF = 12.0  # seconds in which the scheduler asks again by itself: it puts a pod off for 10 at most
FORGET = 600.0  # seconds: it tries every pod after 300
MOST = 20  # pods touched in a round
GONE = (404, 409)  # statuses: the pod is not there, or another has its name


@dataclass(frozen=True, slots=True)
class Need:
    """A pod's demand for room. `nominee`: its UID if it is nominated to a node, so that it does not wait for itself."""

    wanted: Demand
    priority: int = 0
    nominee: str = ""


@dataclass(frozen=True, slots=True)
class Waiter:
    """A pod that was refused. `room`: since when a node has room for it; None while no node has."""

    path: str
    need: Need
    asked: float
    room: float | None = None


class Waiting:
    """The refused pods of a ledger. Safe to use from several threads; `tend` is for one."""

    def __init__(
        self, ledger: Ledger, api: ApiServer, *, packed: bool, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ledger = ledger
        self._api = api
        self._packed = packed
        self._clock = clock
        self._lock = threading.Lock()
        self._waiters: dict[str, Waiter] = {}  # by UID
        self._books: dict[str, Book] = {}  # of the last round

    def note(self, pod: Mapping[str, Any], wanted: Demand) -> None:
        """Note that the scheduler asks about this pod. Call it before reading the books, so that room freed meanwhile is seen."""
        meta = pod.get("metadata") or {}
        namespace, name = (quote(str(meta.get(key) or "default"), safe="") for key in ("namespace", "name"))
        with self._lock:
            path, uid = f"/api/v1/namespaces/{namespace}/pods/{name}/status", str(meta.get("uid") or "")
            nominated = (pod.get("status") or {}).get("nominatedNodeName")
            need = Need(wanted, priority(pod), uid if nominated else "")
            self._waiters[uid] = Waiter(path, need, self._clock())

    def forget(self, uid: str) -> None:
        with self._lock:
            self._waiters.pop(uid, None)

    def tend(self) -> None:
        """Note the pods that have room by now, and touch those that the scheduler has not asked about since."""
        now, grown = self._clock(), self._grown_books()
        with self._lock:
            self._waiters = {uid: each for uid, each in self._waiters.items() if now < each.asked + FORGET}
            waiters = dict(self._waiters)
        needs = {waiter.need for waiter in waiters.values() if waiter.room is None}
        roomy = {need for need in needs if any(self._holds(book, need) for book in grown)}
        for uid, each in waiters.items():
            if each.room is None and each.need in roomy:
                self._replace(uid, each, replace(each, room=now))
        late = [item for item in waiters.items() if item[1].room is not None and now >= item[1].room + ITSELF]
        self._touch_late(sorted(late, key=lambda each: each[1].room or 0.0), now)

    def _touch_late(self, late: Sequence[tuple[str, Waiter]], now: float) -> None:
        """Touch as many pods as there is room for. The others wait until it is known who took it."""
        books, touched, answers = dict(self._books), 0, True
        for uid, waiter in late:
            place = next((name for name, book in books.items() if self._holds(book, waiter.need)), None)
            if place is None and not touched:
                self._replace(uid, waiter, replace(waiter, room=None))
            elif place is None or touched == MOST or not answers:
                self._replace(uid, waiter, replace(waiter, room=now))
            else:
                touched += 1
                books[place] = self._with(books[place], waiter)
                answers = self._touch(uid, waiter, now)

    def _with(self, book: Book, waiter: Waiter) -> Book:
        wanted = waiter.need.wanted
        fitting, choice = find(self._beside(book, waiter.need), wanted, packed=self._packed)
        return book.plus((Promise(waiter.path, wanted.units, place_parts(wanted, choice, fitting.gpus)),))

    def _replace(self, uid: str, old: Waiter, new: Waiter | None) -> None:
        """Replace a waiter, unless the scheduler has asked meanwhile."""
        with self._lock:
            if self._waiters.get(uid) is not old:
                return
            if new is None:
                del self._waiters[uid]
            else:
                self._waiters[uid] = new

    def _grown_books(self) -> list[Book]:
        """The books that have more room than in the last round."""
        before, self._books = self._books, self._ledger.books()
        return [
            book
            for name, book in self._books.items()
            if book is not before.get(name) and _has_more(before.get(name), book)
        ]

    def _beside(self, book: Book, need: Need) -> Book:
        return beside_nominees(book, need.nominee, need.priority, packed=self._packed)

    def _holds(self, book: Book, need: Need) -> bool:
        return fits(self._beside(book, need), need.wanted, packed=self._packed)

    def _touch(self, uid: str, waiter: Waiter, now: float) -> bool:
        """True unless the API server refuses touches. A failed pod is tried again, behind the others."""
        stamp = datetime.now(timezone.utc).isoformat()
        try:
            self._api.send("PATCH", waiter.path, {"metadata": {"uid": uid, "annotations": {ROOM: stamp}}})
        except ApiError as error:
            if error.code not in GONE:
                log.warning(
                    "%s has room, but its annotation cannot be changed, so the scheduler may not try it: %s",
                    waiter.path,
                    error,
                )
                self._replace(uid, waiter, replace(waiter, room=now + ITSELF))
                return False
        self._replace(uid, waiter, None)
        return True


def _has_more(before: Book | None, now: Book) -> bool:
    return (
        before is None
        or before.nominees != now.nominees
        or len(before.free) != len(now.free)
        or any(new > old for old, new in zip(before.free, now.free, strict=True))
    )
