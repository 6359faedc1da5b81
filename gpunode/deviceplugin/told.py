"""Working until somebody says otherwise: a signal, or another configuration file."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from .source import Source
from .threads import post

AGAIN, CHANGED = "SIGHUP", "changed"
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Told:
    """What this process is told, from now on: signals that come while nobody works are heard by the next who does.

    One that is to end the process does so at once until the first work begins: there is nothing to put away, and a
    process waits for a lot before it. The kernel passes over signals to a container's first process that has no handler.
    """

    def __init__(self) -> None:
        self._words: list[str] = []  # since the last work
        self._wake: Callable[[], None] | None = None  # who works
        for number in (*ENDS, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._tell(signal.Signals(number).name))

    async def until(self, work: Coroutine[Any, Any, None], source: Source) -> str:
        """Work until a signal comes or `source` has another configuration; says which: a signal's name, or CHANGED.

        One that is to end the process counts before all others, also if it comes while the work is being ended. What the
        work raises is raised; work that ends by itself is waited out.
        """
        loop, stirred = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: post(loop, stirred.set)  # a signal does not come in the loop's turn
        if self._words:
            stirred.set()
        task, heard = asyncio.create_task(work), asyncio.create_task(stirred.wait())
        try:
            with source.watched(lambda: self._tell(CHANGED)):
                await asyncio.wait((task, heard), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    task.result()
                await heard
        finally:
            heard.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        words, self._words = self._words, []
        ends = [word for word in words if word not in (AGAIN, CHANGED)]
        return ends[0] if ends else AGAIN if AGAIN in words else CHANGED

    def _tell(self, what: str) -> None:
        self._words.append(what)
        if self._wake is not None:
            self._wake()
        elif what != AGAIN:
            sys.exit(0)
