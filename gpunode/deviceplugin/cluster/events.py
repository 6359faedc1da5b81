"""Events about this node, and the Event objects that they become in the cluster. Pure.

As in client-go (tools/record): a repeated event increments the count of its object, many similar events become one,
and writes are rate-limited. Unlike there, no event is dropped: a delayed one is written later with its final count.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .apiserver import Object

COMPONENT = "gpunode-device-plugin"
NAMESPACE = "default"  # where events about objects without a namespace go
# client-go's figures
SIMILAR, WITHIN = 10, 600.0  # messages of one reason, per seconds, that keep separate objects
BURST, REFILL = 25, 300.0  # writes at once; seconds for one more
KEPT = 100  # events remembered; the least recent are forgotten
LONGEST = 1024  # characters of a message: the limit of the newer events API


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """What happened and the fix. `reason` is for programs, `message` for people."""

    reason: str
    message: str
    type: str = "Warning"  # or "Normal"


@dataclass(frozen=True, slots=True)
class Write:
    """One request to the API server. `key` belongs to the sender."""

    method: str
    path: str
    body: Object
    key: Any = None


@dataclass(slots=True)
class _Recorded:
    event: NodeEvent
    name: str
    first: float
    last: float
    count: int = 0
    written: int = 0  # the count of the object in the cluster; 0: there is none


class PendingEvents:
    """The events about `node` and the writes they need. Times are seconds since the epoch."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._events: dict[NodeEvent, _Recorded] = {}  # the least recent first
        self._tokens = float(BURST)
        self._counted = 0.0  # when tokens were last counted

    def add(self, event: NodeEvent, now: float) -> None:
        """Record an event, new or repeated."""
        event = NodeEvent(event.reason, event.message[:LONGEST], event.type)
        key = event
        if key not in self._events:
            recent = [
                recorded
                for recorded in self._events.values()
                if (recorded.event.reason, recorded.event.type) == (event.reason, event.type)
                and now - recorded.last < WITHIN
            ]
            if len(recent) >= SIMILAR:
                key = NodeEvent(event.reason, "", event.type)
                text = f"(combined from similar events): {event.message}"
                event = NodeEvent(event.reason, text[:LONGEST], event.type)
        recorded = self._events.pop(key, None) or _Recorded(event, self._name(now), now, now)
        recorded.event, recorded.last, recorded.count = event, now, recorded.count + 1
        self._events[key] = recorded
        if len(self._events) > KEPT:
            settled = (one for one, about in self._events.items() if about.written == about.count)
            del self._events[next(settled, next(iter(self._events)))]

    def due(self, now: float) -> Write | None:
        """The next write; None: nothing now."""
        self._tokens = min(BURST, self._tokens + max(0.0, now - self._counted) / REFILL)
        self._counted = now
        waiting = next(
            ((key, recorded) for key, recorded in self._events.items() if recorded.written < recorded.count),
            None,
        )
        if waiting is None or self._tokens < 1:
            return None
        key, recorded = waiting
        collection = f"/api/v1/namespaces/{NAMESPACE}/events"
        if not recorded.written:
            return Write("POST", collection, self._object(recorded), (key, recorded.count))
        change: Object = {
            "count": recorded.count,
            "lastTimestamp": _stamp(recorded.last),
            "message": recorded.event.message,
        }
        return Write("PATCH", f"{collection}/{recorded.name}", change, (key, recorded.count))

    def done(self, write: Write, code: int, now: float) -> bool:
        """Record the HTTP status of `write` (200 for any success); True if it needs no retry."""
        key, count = write.key
        recorded = self._events.get(key)
        if recorded is None:
            return True  # forgotten meanwhile
        if code == 404 and write.method == "PATCH":  # events live an hour by default
            recorded.written, recorded.name, recorded.first, recorded.count = (
                0,
                self._name(now),
                recorded.last,
                1,
            )
            return True
        if code == 200 or (
            code == 409 and write.method == "POST"
        ):  # 409: it was written, only the answer was lost
            recorded.written = count
            self._tokens -= 1
            return True
        return False

    def _name(self, now: float) -> str:
        """As client-go makes it; names have at most 253 characters."""
        return f"{self._node[:236].rstrip('-.')}.{int(now * 1e9) + len(self._events):x}"

    def _object(self, recorded: _Recorded) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": recorded.name, "namespace": NAMESPACE},
            # The uid is the node's name, as kubelets have it: `kubectl describe node` looks for that.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "type": recorded.event.type,
            "reason": recorded.event.reason,
            "message": recorded.event.message,
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
            "count": recorded.count,
            "firstTimestamp": _stamp(recorded.first),
            "lastTimestamp": _stamp(recorded.last),
        }


def _stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
