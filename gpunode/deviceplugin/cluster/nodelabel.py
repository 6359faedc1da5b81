"""The value of one label of this node, followed in a thread of its own."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from urllib.parse import quote

from gpunode.contract.config import LABEL

from .apiserver import ApiError, ApiServer

log = logging.getLogger(__name__)

WATCH = 300  # seconds that one watch lasts
FIRST, LONGEST = 1.0, 30.0  # seconds between two tries: doubled from the one up to the other


class NodeLabel(threading.Thread):
    """Watches `node` for the label `key`. It needs only the right to watch nodes."""

    def __init__(self, api: ApiServer, node: str, key: str = LABEL) -> None:
        super().__init__(name=f"watch of node {node}", daemon=True)
        self.key = key
        self.value = ""  # "": the node has no such label, or it is unknown
        self._api = api
        self._path = f"/api/v1/nodes?fieldSelector=metadata.name%3D{quote(node, safe='')}"
        self._known = threading.Event()
        self._changed: Callable[[], None] = lambda: None

    def wait(self, seconds: float | None = None) -> bool:
        """True once the API server has sent the label or refused to; False after `seconds`."""
        return self._known.wait(seconds)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed`, in this thread, after each change of `value`; replaces an earlier one."""
        self._changed = changed

    def run(self) -> None:
        failed = 0  # tries in a row
        while True:
            began = time.monotonic()
            try:
                for kind, node in self._api.watch(self._path, WATCH):
                    if failed:
                        log.info("the node's labels are known again")
                    failed = 0
                    if kind in ("ADDED", "MODIFIED", "DELETED"):
                        labels = node["metadata"].get("labels") or {} if kind != "DELETED" else {}
                        self._take(str(labels.get(self.key, "")))
                if time.monotonic() - began >= FIRST:
                    continue  # it timed out: the next one begins with the current state
                why = "the watch ends at once"
            except ApiError as error:
                why = str(error)
                if error.code in (401, 403):
                    self._known.set()  # waiting does not help
            if not failed:
                log.warning(
                    "the node's label %s is not known: %s; trying again, at last every %.0f s",
                    self.key,
                    why,
                    LONGEST,
                )
            time.sleep(min(FIRST * 2 ** min(failed, 10), LONGEST))
            failed += 1

    def _take(self, value: str) -> None:
        before, self.value = self.value, value
        self._known.set()
        if value != before:
            self._changed()
