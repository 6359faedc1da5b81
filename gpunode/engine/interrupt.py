"""Ctrl-C while hosts are worked on: once finishes what has begun and stops, twice leaves."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from gpunode.engine.listener import Listener
from gpunode.wording import Advice, Command, few

NAMED = 5


class Interrupt:
    """Within its block: `set` is True once Ctrl-C was pressed; the second Ctrl-C raises KeyboardInterrupt. `begun`: hosts that
    are left then before they are finished; they are named with the command that continues."""

    def __init__(self, listener: Listener, begun: Callable[[], Sequence[str]]) -> None:
        self.set = False
        self._listener, self._begun = listener, begun
        self._before: Any = None

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._pressed)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if kind is KeyboardInterrupt and (hosts := self._begun()):
            self._listener.note(
                Advice(
                    f"Left as they are: {few(hosts, NAMED)}; nodes that are cordoned stay so. `",
                    Command("resume"),
                    "` continues.",
                )
            )

    def _pressed(self, _number: int, _frame: FrameType | None) -> None:
        if self.set:
            raise KeyboardInterrupt
        self.set = True
        self._listener.note(
            "Interrupted: hosts already started are finished, no other is started. Press Ctrl-C again to leave them as they are."
        )
