"""GET /healthz and /readyz for the kubelet's probes, by plain HTTP on a port of their own."""

from __future__ import annotations

from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

from .connections import Guarded

STRANGERS = 64  # connections: nothing is known of any client


class Probes(Guarded):
    """`why_not`: why the extender does not serve, "" where it does. It is alive while it answers."""

    def __init__(self, address: tuple[str, int], why_not: Callable[[], str]) -> None:
        super().__init__(address, Handler, STRANGERS)
        self.why_not = why_not


class Handler(BaseHTTPRequestHandler):
    """One probe."""

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
