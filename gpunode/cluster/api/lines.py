"""Lines out of chunks of bytes, as a watch sends them."""

from __future__ import annotations

from collections.abc import Iterator


def lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Each whole line that is not empty; the rest waits for its end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)
