"""Working until somebody says otherwise: a signal, or another configuration file."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from .source import Source

CHANGED = "changed"


async def until_told(work: Coroutine[Any, Any, None], source: Source) -> str:
    """Work until a signal comes or `source` has another configuration; says which: a signal's name, or CHANGED.

    What the work raises is raised; work that ends by itself is waited out.
    """
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[str] = loop.create_future()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        loop.add_signal_handler(number, _settle, heard, number.name)
    task = asyncio.create_task(work)
    try:
        with source.watched(lambda: _settle(heard, CHANGED)):
            await asyncio.wait((task, heard), return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                task.result()
            return await heard
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def _settle(heard: asyncio.Future[str], what: str) -> None:
    if not heard.done():
        heard.set_result(what)
