"""Runs work until a signal arrives or the configuration changes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from .reload import ConfigSource
from .threads import post

HANGUP, CHANGED = "SIGHUP", "changed"
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Signals:
    """Handles this process's signals from now on. Signals between two runs count for the next run.

    Before the first run, a signal to end exits at once: there is nothing to clean up, and the start may wait long.
    Handlers are needed: the kernel ignores signals to a container's first process that have none.
    """

    def __init__(self) -> None:
        self._received: list[str] = []  # since the last run
        self._wake: Callable[[], None] | None = None
        for number in (*ENDS, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._receive(signal.Signals(number).name))

    async def run(self, work: Coroutine[Any, Any, None], source: ConfigSource) -> str:
        """Run `work` until a signal arrives or `source` has another configuration: the signal's name, or CHANGED.

        A signal to end takes precedence, even if it arrives while the work is cancelled. Errors of the work are raised;
        if the work ends on its own, this still waits for a signal.
        """
        loop, stirred = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: post(loop, stirred.set)  # a signal does not wake the loop
        if self._received:
            stirred.set()
        task, heard = asyncio.create_task(work), asyncio.create_task(stirred.wait())
        try:
            with source.watched(lambda: self._receive(CHANGED)):
                await asyncio.wait((task, heard), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    task.result()
                await heard
        finally:
            heard.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        received, self._received = self._received, []
        ends = [name for name in received if name not in (HANGUP, CHANGED)]
        return ends[0] if ends else HANGUP if HANGUP in received else CHANGED

    def _receive(self, what: str) -> None:
        self._received.append(what)
        if self._wake is not None:
            self._wake()
        elif what != HANGUP:
            sys.exit(0)
