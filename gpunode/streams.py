"""What hosts send, within bounds: no host can fill this machine's memory, or keep it reading for ever."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

LINE_BYTES = 8 << 20  # one message; a host's facts are some hundred kilobytes
NOISE_BYTES = 1 << 20  # all that is no message: banners, a shell's remarks, standard error
KEPT_BYTES = 64 << 10  # of standard error, to explain a failure


class Flood(Exception):
    """A host sent more than any answer needs; the text says of what."""


def lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Chunks cut into lines, each with its newline; the last may lack one. Raises Flood for a line without end."""
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


class Errors:
    """Standard error: its last part, and how much there was."""

    def __init__(self) -> None:
        self._kept = bytearray()
        self._size = 0

    def add(self, chunk: bytes) -> bool:
        """Keep a chunk; False when there was too much, and reading should end."""
        self._size += len(chunk)
        self._kept += chunk
        del self._kept[:-KEPT_BYTES]
        return self._size <= NOISE_BYTES

    def check(self) -> None:
        """Raise Flood when there was too much."""
        if self._size > NOISE_BYTES:
            raise Flood(f"more than {NOISE_BYTES >> 20} MiB on standard error")

    def text(self) -> str:
        return bytes(self._kept).decode(errors="replace")
