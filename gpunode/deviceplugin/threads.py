"""Calls that may hang, such as NVML's, in threads beside the event loop."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

T = TypeVar("T")


class NvmlThread(threading.Thread):
    """A thread that is inside NVML while it lives."""


def inside() -> bool:
    """True while any thread is inside NVML, one of an earlier configuration too."""
    return any(isinstance(thread, NvmlThread) for thread in threading.enumerate())


class Calls:
    """Runs calls that may hang. While one has not returned, the same call again waits for it: a GPU that hangs for days
    costs one thread.
    """

    def __init__(self) -> None:
        self._made: dict[Hashable, asyncio.Future[Any]] = {}

    async def within(self, seconds: float, call: Callable[..., T], *arguments: Hashable) -> T:
        """The result of `call`, run in a separate thread, which is abandoned if it hangs. Raises TimeoutError."""
        key = (call, arguments)
        done: asyncio.Future[T] | None = self._made.get(key)
        if done is None:
            done = self._made[key] = _start(call, *arguments)
            done.add_done_callback(lambda done: self._end(key, done))
        await asyncio.wait((done,), timeout=seconds)  # not wait_for: see `wait_at_most`
        if not done.done():
            raise asyncio.TimeoutError
        return done.result()

    async def figures(
        self, seconds: float, read: Callable[..., dict[str, T]], *gpu: Hashable
    ) -> dict[str, T]:
        """What it reads of a GPU; {} for one that hangs."""
        try:
            return await self.within(seconds, read, *gpu)
        except asyncio.TimeoutError:
            return {}

    def _end(self, key: Hashable, done: asyncio.Future[Any]) -> None:
        del self._made[key]
        done.exception()  # retrieved, else asyncio warns about an exception without a waiter


def _start(call: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """A future for what `call` returns or raises in a new thread."""
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
        post(loop, lambda: how(what))

    NvmlThread(target=work, name=f"nvml {call.__name__}", daemon=True).start()
    return done


async def wait_at_most(seconds: float, what: Coroutine[Any, Any, object]) -> None:
    """Wait until it has ended, and cancel it after so many seconds. Not wait_for: before Python 3.12 that can swallow the
    cancellation of its caller."""
    waiting = asyncio.ensure_future(what)
    try:
        await asyncio.wait((waiting,), timeout=seconds)
    finally:
        waiting.cancel()


def post(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    """Call `act` in the event loop, from any thread; does nothing once the loop is closed."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(act)
