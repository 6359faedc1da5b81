"""Calls that may hang, such as NVML's, beside the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


async def within(seconds: float, call: Callable[..., T], *arguments: Any) -> T:
    """`call` in a thread of its own, which is left behind if it hangs. Raises TimeoutError."""
    loop = asyncio.get_running_loop()
    done: asyncio.Future[T] = loop.create_future()

    def work() -> None:
        try:
            result = call(*arguments)
        except Exception as error:  # noqa: BLE001 (handed to the caller as it is)
            settle(done.set_exception, error)
        else:
            settle(done.set_result, result)

    def settle(how: Callable[[Any], None], what: Any) -> None:
        post(loop, lambda: None if done.done() else how(what))

    threading.Thread(target=work, name=f"nvml {call.__name__}", daemon=True).start()
    await asyncio.wait((done,), timeout=seconds)  # wait_for can swallow a cancellation before Python 3.12
    if not done.done():
        raise asyncio.TimeoutError
    return done.result()


def post(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Do it in the event loop, from any thread; nothing once the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(act)
