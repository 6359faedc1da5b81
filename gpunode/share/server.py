"""The extender's HTTP servers: POST …/filter, …/prioritize, …/preempt, …/bind, below any prefix; and the kubelet's probes,
GET /healthz and /readyz, by plain HTTP on a port of their own. Both bound the connections of strangers.

The standard library's, a thread for each connection: the scheduler keeps a few open, its binds run side by side, and each
waits for the API server. An answer leaves in one write, so no delayed acknowledgement holds it up. It is quick enough
(bench/share.py: 99 of 100 filters of 1,000 nodes within 7 ms on two cores) where the scheduler sends names, with
`nodeCacheCapable: true`; whole nodes, 8 MiB of JSON, take 0.4 s.
"""

import json
import logging
import socket
import ssl
import threading
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpunode.deviceplugin.bounded import Bounded

from .binding import NotLeading
from .protocol import BadRequest, Extender

log = logging.getLogger(__name__)


class Guarded(ThreadingHTTPServer):
    """At most so many `strangers` at once: one more ends the oldest before a thread is made for it. A client is a stranger
    until `trust`."""

    daemon_threads = True

    def __init__(
        self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler], strangers: int
    ) -> None:
        super().__init__(address, handler)
        self._changed = threading.Condition()
        self._open: set[socket.socket] = set()
        self._strangers = Bounded[socket.socket](strangers, _end)

    def trust(self, request: socket.socket) -> None:
        """No longer count this client as a stranger: it makes no room for others."""
        with self._changed:
            self._strangers.discard(request)

    def leave(self, seconds: float) -> bool:
        """Take no more requests, also on kept connections. True if those under way were answered within `seconds`."""
        self.shutdown()
        with self._changed:
            for connection in self._open:
                _end(connection, socket.SHUT_RD)
            done = self._changed.wait_for(lambda: not self._open, seconds)
            for connection in self._open:
                _end(connection)
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

    def handle_error(self, _request: Any, client_address: Any) -> None:
        """A client that leaves in the middle of its request is no failure."""
        log.debug("the connection of %s broke", client_address, exc_info=True)


def _end(connection: socket.socket, how: int = socket.SHUT_RDWR) -> None:
    """Wake the thread of the connection. Not by TLS' own shutdown: an answer would go on without encryption."""
    with suppress(OSError):  # its client was faster
        socket.socket.shutdown(connection, how)


PROBE_STRANGERS = 64  # connections: nothing is known of any client


class Probes(Guarded):
    """`why_not`: why the extender does not serve, "" if it does. It is alive while it answers."""

    def __init__(self, address: tuple[str, int], why_not: Callable[[], str]) -> None:
        super().__init__(address, ProbeHandler, PROBE_STRANGERS)
        self.why_not = why_not


class ProbeHandler(BaseHTTPRequestHandler):
    timeout = 10.0
    server: Probes

    def do_GET(self) -> None:
        why = {"/healthz": "", "/readyz": self.server.why_not()}.get(self.path)
        code = 404 if why is None else 503 if why else 200
        text = f"{why or 'ok'}\n".encode()
        self.send_response(code)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: Any) -> None:
        """Probes are not logged."""


HERE = "POST filter, prioritize, preempt and bind are here"
FIELD = ("filter", "bind")  # whose answers have a field for an error
MOST_BYTES = 256 << 20  # of a body: 5,000 nodes of 50 KiB, where the scheduler sends them whole
IDLE = 120.0  # seconds; Go's client closes an idle connection after 90
STRANGERS = 512  # connections before their certificate: half of the usual 1,024 descriptors
GREETING = 3.0  # seconds for a TLS handshake
BACKLOG = 1024  # connections that wait to be accepted: binds come in hundreds


class Server(Guarded):
    """Serves an extender on (host, port) from `serve_forever` to `leave`; by TLS where there is a context."""

    request_queue_size = BACKLOG

    def __init__(
        self, address: tuple[str, int], extender: Extender, tls: ssl.SSLContext | None = None
    ) -> None:
        super().__init__(address, Handler, STRANGERS)
        self.extender = extender
        self._tls = tls

    def get_request(self) -> tuple[Any, Any]:
        request, address = super().get_request()
        if self._tls is not None:
            request = self._tls.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

    def finish_request(self, request: Any, client_address: Any) -> None:
        """In the connection's thread: a client that is slow to greet delays no other."""
        if self._tls is not None:
            request.settimeout(GREETING)
            request.do_handshake()
        self.trust(request)
        super().finish_request(request, client_address)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"  # connections are kept
    timeout = IDLE
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body in one write
    server: Server

    def do_GET(self) -> None:
        self._answer(404, HERE)

    def do_POST(self) -> None:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdecimal()) or len(length) > 18 or int(length) > MOST_BYTES:
            self.close_connection = True  # where its body ends is not known
            self._answer(
                413 if length.isdecimal() else 411, "the body needs a Content-Length that is not too large"
            )
            return
        text, verb = self.rfile.read(int(length)), self.path.partition("?")[0].rpartition("/")[2]
        if len(text) < int(length):  # the client left, or the server leaves
            self.close_connection = True
            return
        extender = self.server.extender
        ask = {
            "filter": extender.filter,
            "prioritize": extender.prioritize,
            "preempt": extender.preempt,
            "bind": extender.bind,
        }.get(verb)
        if ask is None:
            self._answer(404, HERE)
            return
        try:
            self._answer(200, ask(_json(text)))
        except NotLeading as error:
            self._answer(503, str(error))
        except BadRequest as error:
            # filter and bind have a field for it, which the scheduler reads only of status 200.
            self._answer(*((200, {"Error": str(error)}) if verb in FIELD else (400, str(error))))
        except Exception as error:
            log.exception("%s failed", verb)
            why = f"the extender failed: {error!r}"
            self._answer(*((200, {"Error": why}) if verb in FIELD else (500, why)))

    def log_message(self, format: str, *args: Any) -> None:
        """Requests are logged at debug."""
        log.debug(format, *args)

    def _answer(self, code: int, body: object) -> None:
        text = json.dumps(body).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)
        self.wfile.flush()


def _json(text: bytes) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadRequest(f"the body is no JSON: {error}") from None
