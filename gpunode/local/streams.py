"""Limits on what hosts and servers send: none can fill this machine's memory or keep it reading forever."""

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, wait
from typing import TypeVar

from gpunode.errors import Flood

LINE_BYTES = 8 << 20  # one message; a host's facts are some hundred kilobytes
NOISE_BYTES = 1 << 20  # everything else: banners, shell output, standard error
KEPT_BYTES = 64 << 10  # the end of standard error, for error messages

T = TypeVar("T")


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """The lines in these chunks with their newlines; the last may have none. Raises Flood for an endless line."""
    rest = bytearray()
    for chunk in chunks:
        first, *others = chunk.split(b"\n")
        rest += first
        if others:
            yield bytes(rest) + b"\n"
            *whole, last = others
            yield from (line + b"\n" for line in whole)
            rest = bytearray(last)
        if len(rest) > LINE_BYTES:
            raise Flood(f"a line of more than {LINE_BYTES >> 20} MiB")
    if rest:
        yield bytes(rest)


def run_within(seconds: float, work: Callable[[], T]) -> T:
    """What `work` returns. Raises TimeoutError after so many seconds; its thread is left behind, and keeps no process alive.

    The timeout of a socket is no such limit: it counts silence, and begins again with each byte.
    """
    future: Future[T] = Future()
    threading.Thread(target=_settle, args=(future, work), daemon=True).start()
    try:
        if not wait([future], seconds).done:
            raise TimeoutError(f"no whole answer within {seconds:g} s")
        return future.result()
    finally:
        del future  # an error names this frame: what it holds open is to go with it


def _settle(future: Future[T], work: Callable[[], T]) -> None:
    try:
        future.set_result(work())
    except BaseException as error:  # noqa: BLE001 (raised where it is waited for)
        future.set_exception(error)
    finally:
        del future


class Errors:
    """The end of standard error, and its total size."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._size = 0

    def add(self, chunk: bytes) -> bool:
        """Add a chunk; False if the limit is exceeded and reading should stop."""
        self._size += len(chunk)
        self._kept += chunk
        del self._kept[:-KEPT_BYTES]
        return self._size <= NOISE_BYTES

    def check(self) -> None:
        if self._size > NOISE_BYTES:
            raise Flood(f"more than {NOISE_BYTES >> 20} MiB on standard error")

    def text(self) -> str:
        return bytes(self._kept).decode(errors="replace")
