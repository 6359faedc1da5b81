"""A mirror that a host of the lab can reach, for as long as a test wants."""

import contextlib
import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

from .api import Node


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@contextlib.contextmanager
def served(node: Node, folder: Path) -> Iterator[str]:
    """Serve a folder to the host: its address."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer((node.slot.gateway, 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://{node.slot.gateway}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
