"""A controller: looks at the store after every change that concerns it, and now and then without one."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable

from gpunode.sim.apiserver.store import Object, Store


class Loop:
    """Calls `look` in a thread of its own, from `start` until it is closed. Changes made meanwhile are seen in one more look."""

    def __init__(
        self,
        store: Store,
        name: str,
        concerns: Callable[[Object], bool],
        look: Callable[[], None],
        every: float,
    ) -> None:
        self._look, self._every = look, every
        self.stirred = store.listen(concerns)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def close(self) -> None:
        """Let the look that is under way be the last."""
        self._closed.set()
        self.stirred.set()
        self._thread.join()

    def _run(self) -> None:
        said = ""
        while not self._closed.is_set():
            self.stirred.clear()
            try:
                self._look()
            except Exception:  # noqa: BLE001 (as every controller: what failed is said, and tried again)
                words = traceback.format_exc()
                if words != said:
                    sys.stderr.write(words)
                said = words
            self.stirred.wait(self._every)
