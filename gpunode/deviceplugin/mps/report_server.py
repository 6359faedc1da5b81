"""Serves the daemons' report on a Unix socket: at once, and again at every change."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from .report import Report, encode


class ReportServer:
    """The last report and the connected listeners. A listener notices the end of this process by its connection."""

    def __init__(self) -> None:
        self._line = encode({})
        self._listeners: set[asyncio.StreamWriter] = set()

    def publish(self, report: Report) -> None:
        """Send the report to all listeners if it has changed."""
        line = encode(report)
        if line != self._line:
            self._line = line
            for listener in self._listeners:
                listener.write(line)

    @contextlib.asynccontextmanager
    async def open(self, path: Path) -> AsyncIterator[None]:
        """Listen at `path`; replaces the socket of an earlier process."""
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
                await reader.read()  # listeners send nothing: this ends with the connection
        finally:
            self._listeners.discard(writer)
            writer.close()
