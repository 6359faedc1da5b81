"""Writes to the API server in a thread of its own, so that an API server that is slow or away is nobody's trouble."""

from __future__ import annotations

import logging
import threading
import time
from typing import Any, Protocol

from .apiserver import ApiError, ApiServer
from .events import Write

log = logging.getLogger(__name__)

FIRST, LONGEST = 1.0, 60.0  # seconds between two tries: doubled from the one up to the other
LOOK = 30.0  # seconds after which is looked whether something has become due
INVALID = (400, 413, 422)  # HTTP: bad request, too large, unprocessable: no better the next time


class Wish(Protocol):
    """What is to be written. Not a queue: however long the API server is away, it does not grow."""

    def add(self, item: Any, now: float) -> None: ...

    def due(self, now: float) -> Write | None: ...

    def done(self, write: Write, code: int, now: float) -> bool: ...


class Writer(threading.Thread):
    """Brings `wish` to the API server. `what` names it in the log."""

    def __init__(self, api: ApiServer, wish: Wish, what: str) -> None:
        super().__init__(name=f"writer of {what}", daemon=True)
        self._api = api
        self._wish = wish
        self._what = what
        self._stirred = threading.Condition()
        self._closing = False
        self._failed = 0  # tries in a row

    def put(self, item: Any) -> None:
        """Have it written; returns at once. From any thread."""
        with self._stirred:
            self._wish.add(item, time.time())
            self._stirred.notify()

    def close(self, seconds: float) -> None:
        """Write what is still to be written, if that goes at once, and end; waits no longer than so many seconds."""
        with self._stirred:
            self._closing = True
            self._stirred.notify()
        self.join(seconds)

    def run(self) -> None:
        while True:
            with self._stirred:
                write = self._wish.due(time.time())
                if write is None:
                    if self._closing:
                        return
                    self._stirred.wait(LOOK)
                    continue
            try:
                self._api.send(write.method, write.path, write.body)
                code, why = 200, ""
            except ApiError as error:
                code, why = error.code, str(error)
            if code in INVALID:
                log.warning("%s: the API server finds one invalid, and it is left out: %s", self._what, why)
                code = 200
            with self._stirred:
                settled = self._wish.done(write, code, time.time())
                if settled:
                    self._well()
                elif self._closing:
                    return
                else:
                    self._stirred.wait_for(lambda: self._closing, self._trouble(why))

    def _well(self) -> None:
        if self._failed:
            log.info("the API server takes %s again", self._what)
        self._failed = 0

    def _trouble(self, why: str) -> float:
        """How many seconds to wait. One line in the log for all tries in a row."""
        if not self._failed:
            log.warning(
                "%s cannot be written: %s; trying again, at last every %.0f s", self._what, why, LONGEST
            )
        self._failed += 1
        return float(min(FIRST * 2 ** min(self._failed - 1, 10), LONGEST))
