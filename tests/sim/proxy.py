"""A door in front of an API server that can be shut: to its client the server is away, to everybody else it is not."""

import contextlib
import json
import socket
import threading
from pathlib import Path

from gpunode.sim.apiserver.tls import ADDRESS


class Proxy:
    """Forwards connections to the server of a kubeconfig until it is shut; `kubeconfig` leads through it."""

    def __init__(self, kubeconfig: Path) -> None:
        config = json.loads(kubeconfig.read_text())
        cluster = config["clusters"][0]["cluster"]
        self._server = int(cluster["server"].rpartition(":")[2])
        self._listener = socket.create_server((ADDRESS, 0), backlog=128)
        self._open: list[socket.socket] = []
        self._shut = False
        self._lock = threading.Lock()
        cluster["server"] = f"https://{ADDRESS}:{self._listener.getsockname()[1]}"
        self.kubeconfig = kubeconfig.with_name("kubeconfig-proxy")
        self.kubeconfig.write_text(json.dumps(config))
        threading.Thread(target=self._accept, daemon=True).start()

    def shut(self) -> None:
        """Break every connection, and refuse new ones."""
        with self._lock:
            self._shut = True
            for connection in self._open:
                _close(connection)

    def open(self) -> None:
        self._shut = False

    def close(self) -> None:
        self.shut()
        _close(self._listener)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    self._forward(client)

    def _forward(self, client: socket.socket) -> None:
        if self._shut:
            _close(client)
            return
        server = socket.create_connection((ADDRESS, self._server))
        self._open = [*(each for each in self._open if each.fileno() >= 0), client, server]
        for connection, other in ((client, server), (server, client)):
            threading.Thread(target=_carry, args=(connection, other), daemon=True).start()


def _carry(connection: socket.socket, other: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := connection.recv(65536):
            other.sendall(data)
    for end in (connection, other):
        _close(end)


def _close(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)  # wakes a thread that reads from it
    connection.close()
