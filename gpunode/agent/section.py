"""A section of the facts, read in a thread of its own. Importing concurrent.futures would cost a probe more than its threads do."""

import threading
import time
from typing import Any, Callable, Optional


class Section:
    """A reading, begun at once. Nothing waits for its thread at exit: it may hang in the kernel, e.g. on a dead file server."""

    def __init__(self, read: Callable[..., Any], *arguments: Any) -> None:
        self._ended = threading.Event()
        self._answer: Any = None
        self._error: Optional[Exception] = None
        threading.Thread(target=self._work, args=(read, arguments), daemon=True).start()

    def _work(self, read: Callable[..., Any], arguments: Any) -> None:
        try:
            self._answer = read(*arguments)
        except Exception as error:
            self._error = error
        self._ended.set()

    def wait(self, seconds: Optional[float] = None) -> bool:
        """Whether it has ended, at once or after these seconds."""
        return self._ended.wait(seconds)

    def result(self, deadline: Optional[float] = None, patience: float = 0.0) -> Any:
        """What was read. Raises what the reading raised, and OSError at the deadline, which is `patience` after the beginning."""
        if not self._ended.wait(None if deadline is None else max(0.0, deadline - time.monotonic())):
            raise OSError("no answer within %g seconds" % patience)
        if self._error is not None:
            raise self._error
        return self._answer
