"""Events about this node: what is said, how often, and what that makes of the Event objects in the cluster. Pure.

As Kubernetes' own components do it (client-go, tools/record): what is said again is counted in the object that is
there, many similar ones become one, and the API server is spared. Other than there nothing is lost by that: what has
to wait is written later, with the count it then has.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from .apiserver import Object

COMPONENT = "gpunode-device-plugin"
NAMESPACE = "default"  # where events about objects without a namespace go
# client-go's figures
SIMILAR, WITHIN = 10, 600.0  # so many messages of one reason in so many seconds are told apart
BURST, REFILL = 25, 300.0  # writes at once; seconds for one more
KEPT = 100  # events remembered; the least lately said are forgotten
LONGEST = 1024  # characters of a message: what the newer API for events takes


@dataclass(frozen=True, slots=True)
class Event:
    """What happened and what to do. `reason` is a word for programs, `message` a sentence for people."""

    reason: str
    message: str
    type: str = "Warning"  # or "Normal"


@dataclass(frozen=True, slots=True)
class Write:
    """One request to the API server. `key` is its sender's."""

    method: str
    path: str
    body: Object
    key: Any = None


@dataclass(slots=True)
class _Said:
    event: Event
    name: str
    first: float
    last: float
    count: int = 0
    written: int = 0  # the count that the object in the cluster has; 0: there is none


class Events:
    """What was said about `node`, and what of it is to be written. Times are seconds since the epoch."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._said: dict[Event, _Said] = {}  # the least lately said first
        self._tokens = float(BURST)
        self._counted = 0.0  # when tokens were last counted

    def add(self, event: Event, now: float) -> None:
        """It happened, perhaps once more."""
        event = Event(event.reason, event.message[:LONGEST], event.type)
        key = event
        if key not in self._said:
            recent = [
                said
                for said in self._said.values()
                if (said.event.reason, said.event.type) == (event.reason, event.type)
                and now - said.last < WITHIN
            ]
            if len(recent) >= SIMILAR:
                key = Event(event.reason, "", event.type)
                text = f"(combined from similar events): {event.message}"
                event = Event(event.reason, text[:LONGEST], event.type)
        said = self._said.pop(key, None) or _Said(event, self._name(now), now, now)
        said.event, said.last, said.count = event, now, said.count + 1
        self._said[key] = said
        if len(self._said) > KEPT:
            settled = (one for one, about in self._said.items() if about.written == about.count)
            del self._said[next(settled, next(iter(self._said)))]

    def due(self, now: float) -> Write | None:
        """The next thing to write; None for nothing now."""
        self._tokens = min(BURST, self._tokens + max(0.0, now - self._counted) / REFILL)
        self._counted = now
        waiting = next(((key, said) for key, said in self._said.items() if said.written < said.count), None)
        if waiting is None or self._tokens < 1:
            return None
        key, said = waiting
        collection = f"/api/v1/namespaces/{NAMESPACE}/events"
        if not said.written:
            return Write("POST", collection, self._object(said), (key, said.count))
        change: Object = {
            "count": said.count,
            "lastTimestamp": _stamp(said.last),
            "message": said.event.message,
        }
        return Write("PATCH", f"{collection}/{said.name}", change, (key, said.count))

    def done(self, write: Write, code: int, now: float) -> bool:
        """The API server answered `write` with this HTTP status (200 for any good one); whether that settles it."""
        key, count = write.key
        said = self._said.get(key)
        if said is None:
            return True  # forgotten meanwhile
        if code == 404 and write.method == "PATCH":  # events live an hour by default
            said.written, said.name, said.first, said.count = 0, self._name(now), said.last, 1
            return True
        if code == 200 or (
            code == 409 and write.method == "POST"
        ):  # 409: it was written, only the answer was lost
            said.written = count
            self._tokens -= 1
            return True
        return False

    def _name(self, now: float) -> str:
        """As client-go makes it; names have at most 253 characters."""
        return f"{self._node[:236].rstrip('-.')}.{int(now * 1e9) + len(self._said):x}"

    def _object(self, said: _Said) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": said.name, "namespace": NAMESPACE},
            # The uid is the node's name, as kubelets have it: `kubectl describe node` looks for that.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "type": said.event.type,
            "reason": said.event.reason,
            "message": said.event.message,
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
            "count": said.count,
            "firstTimestamp": _stamp(said.first),
            "lastTimestamp": _stamp(said.last),
        }


def _stamp(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
