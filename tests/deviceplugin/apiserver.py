"""A stand-in for the API server that a test can take away: keeps what is written to it, and what it refused."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from gpunode.deviceplugin.cluster.apiserver import ApiError, Object
from gpunode.deviceplugin.cluster.writer import Pending, Write


def due(pending: Pending, now: float) -> Write:
    """The next write, which there is."""
    write = pending.due(now)
    assert write is not None
    return write


class FakeApiServer:
    """Objects by path. `refuse` is the error for every request while it is set."""

    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.requests: list[tuple[str, str]] = []
        self.watches = 0
        self.refuse: ApiError | None = None
        self.hang: threading.Event | None = None  # set to let requests go
        self._changed = threading.Condition()

    def send(self, method: str, path: str, body: Object | None = None) -> Object:
        hang = self.hang
        if hang is not None:
            hang.wait(30)
        with self._changed:
            self._changed.notify_all()
            self.requests.append((method, path))
            if self.refuse is not None:
                raise self.refuse
            given: Object = json.loads(json.dumps(body))
            if method == "POST":
                path = f"{path}/{given['metadata']['name']}"
                if path in self.objects:
                    raise ApiError(409, "already exists")
            elif path.removesuffix("/status") not in self.objects:
                raise ApiError(404, "not found")
            if path.endswith("/status"):
                self._patch_status(path, given)
            else:
                self.objects[path] = _merged(self.objects.get(path, {}), given)
            written: Object = json.loads(json.dumps(self.objects[path.removesuffix("/status")]))
            return written

    def _patch_status(self, path: str, given: Object) -> None:
        """As by a strategic patch: conditions by their type."""
        node = self.objects[path.removesuffix("/status")]
        conditions = {each["type"]: each for each in node.setdefault("status", {}).get("conditions", [])}
        for condition in given["status"]["conditions"]:
            if condition.get("$patch") == "delete":
                conditions.pop(condition["type"], None)
            else:
                conditions[condition["type"]] = condition
        node["status"]["conditions"] = [*conditions.values()]

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        """Of the one node that the path selects, until `refuse` is set."""
        node = f"/api/v1/nodes/{path.rpartition('%3D')[2]}"
        with self._changed:
            self.watches += 1
            self._changed.notify_all()
        seen = None
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self.refuse or self.objects.get(node) != seen, seconds)  # noqa: B023
                if self.refuse is not None:
                    raise self.refuse
                now = self.objects.get(node)
            if now == seen:
                return
            yield ("DELETED", seen or {}) if now is None else ("MODIFIED" if seen else "ADDED", now)
            seen = now

    def label(self, node: str, **labels: str) -> None:
        """The node is there with these labels; `config` is NVIDIA's for configurations."""
        keys = {"config": "nvidia.com/device-plugin.config"}
        with self._changed:
            named = {keys.get(key, key): value for key, value in labels.items()}
            self.objects[f"/api/v1/nodes/{node}"] = {"metadata": {"name": node, "labels": named}}
            self._changed.notify_all()

    def remove(self, node: str) -> None:
        """There is no such node any more."""
        with self._changed:
            del self.objects[f"/api/v1/nodes/{node}"]
            self._changed.notify_all()

    def fail(self, error: ApiError | None) -> None:
        """From now on, this is the answer to everything; None: it is there again."""
        with self._changed:
            self.refuse = error
            self._changed.notify_all()

    def wait(self, condition: Callable[[], Any], seconds: float = 60.0) -> Any:
        """Wait until what was asked makes `condition` true; its value."""
        with self._changed:
            assert self._changed.wait_for(condition, seconds), (self.requests, self.objects)
            return condition()

    async def until(self, condition: Callable[[], Any]) -> Any:
        """The same, while an event loop goes on."""
        return await asyncio.to_thread(self.wait, condition)

    @property
    def events(self) -> list[Object]:
        """The Event objects."""
        return [item for item in list(self.objects.values()) if item.get("kind") == "Event"]

    def said(self) -> list[tuple[str, int]]:
        """Reason and count of each."""
        return [(event["reason"], event["count"]) for event in self.events]


def _merged(before: Object, change: Object) -> Object:
    """As by a merge patch."""
    merged = {key: value for key, value in before.items() if key not in change}
    for key, value in change.items():
        if value is not None:
            merged[key] = _merged(before.get(key) or {}, value) if isinstance(value, dict) else value
    return merged
