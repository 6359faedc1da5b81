"""The node's annotation with the plugin's status: what it should be, and what was written. Pure."""

from __future__ import annotations

from ..status import ANNOTATION
from .events import Write


class PendingAnnotation:
    """The desired annotation and the written one; a `Pending` of a `Writer`."""

    def __init__(self, node: str) -> None:
        self._path = f"/api/v1/nodes/{node}"
        self._desired: str | None = ""
        self._written: str | None = ""  # "": unknown, from an earlier plugin

    def add(self, item: str | None, _now: float) -> None:
        """Set the desired text; None: remove the annotation."""
        self._desired = item

    def due(self, _now: float) -> Write | None:
        if self._desired == self._written:
            return None
        body = {"metadata": {"annotations": {ANNOTATION: self._desired}}}
        return Write("PATCH", self._path, body, self._desired)

    def done(self, write: Write, code: int, _now: float) -> bool:
        if code == 200:
            self._written = write.key
        return code == 200
