"""Tells a report on a Unix socket, now and at every change, to all who connect."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from .report import Report, encode


class Bulletin:
    """The last report, and those who listen. A listener's connection ends when this process does: it need not ask."""

    def __init__(self) -> None:
        self._line = encode({})
        self._listeners: set[asyncio.StreamWriter] = set()

    def tell(self, report: Report) -> None:
        """This is the state now."""
        line = encode(report)
        if line != self._line:
            self._line = line
            for listener in self._listeners:
                listener.write(line)

    @contextlib.asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Listen at `path`, in place of whatever socket a process of before left there."""
        server = await asyncio.start_unix_server(self._serve, path)
        try:
            yield
        finally:
            server.close()
            for listener in self._listeners:
                listener.close()
            path.unlink(missing_ok=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(self._line)
        self._listeners.add(writer)
        try:
            with contextlib.suppress(OSError):
                await reader.read()  # nobody says anything: it ends with the connection
        finally:
            self._listeners.discard(writer)
            writer.close()
