"""The node's annotations: what they should be, and what was written. Pure."""

from __future__ import annotations

from .events import Write


class PendingAnnotation:
    """The desired annotations and the written ones, by key; a `Pending` of a `Writer`."""

    def __init__(self, node: str) -> None:
        self._path = f"/api/v1/nodes/{node}"
        self._desired: dict[str, str | None] = {}
        self._written: dict[str, str | None] = {}  # without a key: unknown, from an earlier plugin

    def add(self, item: tuple[str, str | None], _now: float) -> None:
        """Set the desired text of a key; None: remove the annotation."""
        self._desired[item[0]] = item[1]

    def due(self, _now: float) -> Write | None:
        changed = {
            key: text
            for key, text in self._desired.items()
            if key not in self._written or text != self._written[key]
        }
        if not changed:
            return None
        return Write("PATCH", self._path, {"metadata": {"annotations": changed}}, changed)

    def done(self, write: Write, code: int, _now: float) -> bool:
        if code == 200:
            self._written |= write.key
        return code == 200
