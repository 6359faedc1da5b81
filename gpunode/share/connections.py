"""A server with a thread for each connection, and a bound on the connections of strangers."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpunode.deviceplugin.bounded import Bounded


class Guarded(ThreadingHTTPServer):
    """At most so many `strangers` at once: one more ends the oldest before a thread is made for it. A client is a stranger
    until `known`."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], strangers: int
    ) -> None:
        super().__init__(address, handler)
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._strangers = Bounded[socket.socket](strangers, _end)

    def known(self, request: socket.socket) -> None:
        """No longer a stranger's: it makes no room for others."""
        with self._changed:
            self._strangers.discard(request)

    def leave(self, seconds: float) -> bool:
        """Take no more requests, on kept connections neither. Whether those under way were answered in so many seconds."""
        self.shutdown()
        with self._changed:
            for one in self._open:
                _end(one, socket.SHUT_RD)
            done = self._changed.wait_for(lambda: not self._open, seconds)
            for one in self._open:
                _end(one)
        return done

    def process_request(self, request: Any, client_address: Any) -> None:
        with self._changed:
            self._open.add(request)
            self._strangers.add(request)
        super().process_request(request, client_address)

    def close_request(self, request: Any) -> None:
        with self._changed:
            self._open.discard(request)
            self._strangers.discard(request)
            self._changed.notify_all()
        super().close_request(request)


def _end(one: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Wake the thread of the connection. Not by TLS' own shutdown: an answer would go on without encryption."""
    with suppress(OSError):  # its client was faster
        socket.socket.shutdown(one, how)
