"""Writes to the API server in a separate thread, so that a slow or absent API server delays nothing else."""

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol

from gpunode.contract.condition import ACCEPTED, NOT_ACCEPTED, TYPE, Condition, with_acceptance
from gpunode.contract.times import utc

from .apiserver import ApiError, ApiServer, Object


@dataclass(frozen=True, slots=True)
class Write:
    """One request to the API server. `key` belongs to the sender."""

    method: str
    path: str
    body: Object
    key: Any = None


log = logging.getLogger(__name__)

FIRST, LONGEST = 1.0, 60.0  # seconds before the first retry, doubled up to the longest
LOOK = 30.0  # seconds between two checks for due writes
REFRESH = 300.0  # seconds after which all is written again: the node may be a new one, or another client's write was later
EXPECTED = 30.0  # the same while an acceptance is missing: the answer to the write tells of a new one
INVALID = (400, 413, 422)  # HTTP: bad request, too large, unprocessable; a retry would not help


class Pending(Protocol):
    """Pending writes. Bounded, however long the API server is away."""

    def add(self, item: Any, now: float) -> None: ...

    def due(self, now: float) -> Write | None: ...

    def done(self, write: Write, code: int, now: float) -> bool: ...


class Writer(threading.Thread):
    """Writes `pending` to the API server. `what` names it in the log. `read` gets the object after each write."""

    def __init__(
        self, api: ApiServer, pending: Pending, what: str, read: Callable[[Object], None] = lambda _: None
    ) -> None:
        super().__init__(name=f"writer of {what}", daemon=True)
        self._api = api
        self._pending = pending
        self._what = what
        self._read = read
        self._stirred = threading.Condition()
        self._closing = False
        self._failed = 0  # tries in a row

    def put(self, item: Any) -> None:
        """Schedule a write; returns at once. From any thread."""
        with self._stirred:
            self._pending.add(item, time.time())
            self._stirred.notify()

    def close(self, seconds: float) -> None:
        """Try each pending write once, and end; waits at most so many seconds."""
        with self._stirred:
            self._closing = True
            self._stirred.notify()
        self.join(seconds)

    def run(self) -> None:
        while True:
            with self._stirred:
                write = self._pending.due(time.time())
                if write is None:
                    if self._closing:
                        return
                    self._stirred.wait(LOOK)
                    continue
            after: Object = {}
            try:
                after = self._api.send(write.method, write.path, write.body)
                code, why = 200, ""
            except ApiError as error:
                code, why = error.code, str(error)
            if code in INVALID:
                log.warning(
                    "%s: the API server rejects one as invalid; it is not written: %s", self._what, why
                )
                code = 200
            with self._stirred:
                settled = self._pending.done(write, code, time.time())
                if settled:
                    self._succeeded()
                    self._read(after)
                elif self._closing:
                    return
                else:
                    self._stirred.wait_for(lambda: self._closing, self._delay(why))

    def _succeeded(self) -> None:
        if self._failed:
            log.info("the API server accepts %s again", self._what)
        self._failed = 0

    def _delay(self, why: str) -> float:
        """Seconds to wait before the retry. Logs the first failure in a row."""
        if not self._failed:
            log.warning(
                "%s cannot be written: %s; trying again, at last every %.0f s", self._what, why, LONGEST
            )
        self._failed += 1
        return float(min(FIRST * 2 ** min(self._failed - 1, 10), LONGEST))


class PendingCondition:
    """The desired condition of the node; a `Pending` of a `Writer`, which lets it `read` the node after each write: its annotation
    has the acceptance, for which the condition needs no right of its own. `since`: when its status last changed in this process."""

    def __init__(self, node: str) -> None:
        self._path = f"/api/v1/nodes/{node}/status"
        self._desired: Condition | None = None
        self._accepted = ""  # the node's annotation
        self._answered = False  # with the annotation: before that, no acceptance is known
        self._status = ""  # that the condition is to have
        self._written: Condition | None = None
        self._since = 0.0
        self._time = 0.0  # of the last write; 0: none

    def add(self, condition: Condition | None, now: float) -> None:
        """Set the condition; None: remove it."""
        self._desired = condition
        self._current(now)

    def read(self, node: Object) -> None:
        """Take the acceptance from the node's annotations."""
        if meta := node.get("metadata"):
            self._accepted = str((meta.get("annotations") or {}).get(ACCEPTED, ""))

    def due(self, now: float) -> Write | None:
        desired = self._current(now)
        again = EXPECTED if desired and desired.reason == NOT_ACCEPTED else REFRESH
        if desired == self._written and (desired is None or abs(now - self._time) < again):
            return None
        if desired and desired.status == "True" and not self._answered:
            return Write("PATCH", self._path, {"status": {"conditions": []}})  # what ran out keeps it False
        fields: Object = {"type": TYPE, "$patch": "delete"}
        if desired is not None:
            times = {"lastTransitionTime": utc(self._since), "lastHeartbeatTime": utc(now)}
            fields = {"type": TYPE, **asdict(desired), **times}
        return Write("PATCH", self._path, {"status": {"conditions": [fields]}}, desired)

    def done(self, write: Write, code: int, now: float) -> bool:
        if code == 200:
            self._written, self._time, self._answered = write.key, now, True
        return code == 200

    def _current(self, now: float) -> Condition | None:
        if self._desired is None:
            return None
        condition = with_acceptance(self._desired, self._accepted, now)
        if condition.status != self._status:
            self._since, self._status = now, condition.status
        return condition


class PendingAnnotation:
    """The desired annotations and the written ones, by key; a `Pending` of a `Writer`."""

    def __init__(self, node: str) -> None:
        self._path = f"/api/v1/nodes/{node}"
        self._desired: dict[str, str | None] = {}
        self._written: dict[str, str | None] = {}
        self._time = 0.0  # of the last write

    def add(self, item: tuple[str, str | None], _now: float) -> None:
        """Set the desired text of a key; None: remove the annotation."""
        self._desired[item[0]] = item[1]

    def due(self, now: float) -> Write | None:
        # A clock that was set back must not end the refresh
        if self._desired == self._written and (not self._written or abs(now - self._time) < REFRESH):
            return None
        desired = dict(self._desired)
        return Write("PATCH", self._path, {"metadata": {"annotations": desired}}, desired)

    def done(self, write: Write, code: int, now: float) -> bool:
        if code == 200:
            self._written, self._time = write.key, now
        return code == 200
