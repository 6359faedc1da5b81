"""The API server as a pod reaches it: its address in the environment, a service account, TLS. Plain HTTP of the standard library.

By itself: `ssl` and `http.client` are a sixth of a plugin's memory, and most configurations need no API server.
"""

import http.client
import json
import socket
import ssl
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from gpunode.contract.condition import WRITER

from .apiserver import ApiError, Object

DEADLINE = 10.0  # seconds for a connection, and for an answer
LARGEST = 64 << 20  # bytes of an answer, and of one event of a watch; a page of 500 objects has far less
# A dead connection is noticed after 30 + 3 x 10 seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class InCluster:
    """The API server at KUBERNETES_SERVICE_HOST and _PORT in `environ`. There are no retries.

    `account` is the directory with the service account's `token` and the cluster's `ca.crt`. `deadline`: seconds for a
    connection, for TLS, and for a whole answer, however slowly it comes. A request that missed it is not sent later.
    """

    def __init__(self, environ: Mapping[str, str], account: Path, deadline: float = DEADLINE) -> None:
        self._environ = environ
        self._account = account
        self._deadline = deadline

    def get(self, path: str) -> Object:
        with closing(self._connect()) as connection:
            answer = self._ask(connection, "GET", path, None)
            try:
                content = json.loads(answer.read(LARGEST))
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                raise ApiError(0, f"the API server's answer broke: {error!r}") from None
        if not isinstance(content, dict):
            raise ApiError(0, "the API server's answer is no object")
        return content

    def send(self, method: str, path: str, body: Object | None = None) -> Object:
        with closing(self._connect()) as connection:
            answer = self._ask(connection, method, path, body)
            with suppress(OSError, http.client.HTTPException, ValueError, RecursionError):
                content = json.loads(answer.read(LARGEST))
                return content if isinstance(content, dict) else {}
        return {}

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        with closing(self._connect()) as connection:
            answer = self._ask(
                connection, "GET", f"{path}&watch=true&timeoutSeconds={seconds}", None, seconds
            )
            try:
                while line := answer.readline(LARGEST):
                    event = json.loads(line)
                    kind, item = event["type"], {**event["object"]}
                    if kind == "ERROR":
                        raise ApiError(int(item.get("code") or 0), str(item.get("message")))
                    yield kind, item
            except (
                OSError,
                http.client.HTTPException,
                ValueError,
                LookupError,
                TypeError,
                RecursionError,
            ) as error:
                raise ApiError(0, f"the watch broke: {error!r}") from None

    def _connect(self) -> http.client.HTTPSConnection:
        host, port = (self._environ.get(f"KUBERNETES_SERVICE_{part}", "") for part in ("HOST", "PORT"))
        if not host:
            raise ApiError(0, "KUBERNETES_SERVICE_HOST is not set: this is no pod")
        if not (port or "443").isdecimal():
            raise ApiError(0, f"KUBERNETES_SERVICE_PORT: expected a number, found {port!r}")
        try:
            trust = ssl.create_default_context(cafile=str(self._account / "ca.crt"))
        except (OSError, ssl.SSLError) as error:
            raise ApiError(0, f"{self._account}/ca.crt cannot be read: {error}") from None
        # Python 3.13 rejects CAs without a key identifier; some clusters have such CAs.
        trust.verify_flags &= ~ssl.VERIFY_X509_STRICT
        trust.sslsocket_class = _Limited
        return http.client.HTTPSConnection(host, int(port or 443), timeout=self._deadline, context=trust)

    def _ask(
        self,
        connection: http.client.HTTPSConnection,
        method: str,
        path: str,
        body: Object | None,
        longer: float = 0.0,
    ) -> http.client.HTTPResponse:
        """A successful answer, not read yet. Its body may take `longer` than the deadline."""
        try:
            # Read each time: the kubelet replaces the token before it expires.
            token = (self._account / "token").read_text().strip()
        except (OSError, ValueError) as error:
            raise ApiError(0, f"no service account token: {error}") from None
        headers = {
            "Authorization": f"Bearer {token}",
            "Accept": "application/json",
            "User-Agent": WRITER,
            "Content-Type": _content(method, path),
        }
        try:
            connection.connect()
            sock: Any = connection.sock  # the connection forgets it where the server keeps none
            _keep_alive(sock)
            sock.end(self._deadline)
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            if answer.status < 300:
                if longer:
                    sock.end(self._deadline + longer)
                return answer
            body_text = answer.read(LARGEST)
        except (OSError, http.client.HTTPException, ValueError) as error:  # ValueError: no token for a header
            _abandon(connection.sock)
            place = f"{connection.host}:{connection.port}"
            raise ApiError(
                0, f"the API server at {place} cannot be reached: {error or repr(error)}"
            ) from None
        raise ApiError(answer.status, _message(body_text) or f"HTTP status {answer.status}")


class _Limited(ssl.SSLSocket):
    """Reads until an end. The timeout of a socket is none: it counts silence, and begins again with each byte."""

    _end = float("inf")

    def end(self, seconds: float) -> None:
        """Let reads fail after so many seconds from now."""
        self._end = time.monotonic() + seconds

    def recv_into(self, *args: Any) -> int:
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError("the whole answer timed out")
        self.settimeout(left)
        return super().recv_into(*args)


def _content(method: str, path: str) -> str:
    """Of a body. A strategic patch merges a node's conditions by type; a merge patch would replace the list."""
    if method != "PATCH":
        return "application/json"
    return f"application/{'strategic-merge' if path.endswith('/status') else 'merge'}-patch+json"


def _abandon(connection: socket.socket | None) -> None:
    """Let its close drop what the kernel has not delivered, rather than try for minutes more."""
    with suppress(OSError):
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _keep_alive(connection: Any) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, seconds in KEEPALIVE.items():
        if hasattr(socket, name):  # Linux has all three
            connection.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), seconds)


def _message(body_text: bytes) -> str:
    """The message of a Status object; "" for any other answer."""
    try:
        return str(json.loads(body_text)["message"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return ""
