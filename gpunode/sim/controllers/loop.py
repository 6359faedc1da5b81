"""A controller's loop, which reconciles after changes and periodically, and the events that it records."""

from __future__ import annotations

import sys
import threading
import time
import traceback
from collections.abc import Callable

from gpunode.sim.apiserver.store import Object, Store, key, now


class Loop:
    """Calls `reconcile` in a thread, from `start` to `close`: after changes, and at least `every` so many seconds."""

    def __init__(
        self,
        store: Store,
        name: str,
        concerns: Callable[[Object], bool],
        reconcile: Callable[[], None],
        every: float,
    ) -> None:
        self._reconcile, self._every = reconcile, every
        self.stirred = store.listen(concerns)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End after the running call."""
        self._closed.set()
        self.stirred.set()
        self._thread.join()

    def _run(self) -> None:
        logged = ""
        while not self._closed.is_set():
            self.stirred.clear()
            try:
                self._reconcile()
            except Exception:  # noqa: BLE001 (as in every controller: errors are logged and retried)
                words = traceback.format_exc()
                if words != logged:
                    sys.stderr.write(words)
                logged = words
            self.stirred.wait(self._every)


def record(
    store: Store, about: Object, component: str, kind: str, reason: str, message: str, host: str = ""
) -> None:
    """Record an event of `kind` Normal or Warning about an object."""
    meta = about["metadata"]
    namespace = meta.get("namespace", "default")
    identity = (namespace, meta.get("uid", meta["name"]), component, reason, message)
    with store.changed:
        # named by time: lists show them in their order
        name = store.events.setdefault(identity, f"{meta['name']}.{time.time_ns():x}")
        there = store.get("Event", namespace, name)
        if there is not None:
            store.put({**there, "count": there["count"] + 1, "lastTimestamp": now()})
            return
        place = store.get("Namespace", "", namespace)
        if place is None or "deletionTimestamp" in place["metadata"]:
            return  # no new object is allowed in it
        about_kind, _, about_name = key(about)
        store.put(
            {
                "kind": "Event",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "kind": about_kind,
                    "name": about_name,
                    # the kubelet knows its node by name only
                    "uid": about_name if about_kind == "Node" else meta.get("uid", ""),
                    **({"namespace": namespace} if meta.get("namespace") else {}),
                },
                "reason": reason,
                "message": message,
                "source": {"component": component, **({"host": host} if host else {})},
                "firstTimestamp": now(),
                "lastTimestamp": now(),
                "count": 1,
                "type": kind,
                "eventTime": None,
                "reportingComponent": component,
                "reportingInstance": host,
            }
        )
