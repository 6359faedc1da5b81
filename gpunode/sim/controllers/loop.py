"""A controller's loop: reconciles after every change that concerns it, and periodically."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

from gpunode.sim.apiserver.store import Object, Store


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
