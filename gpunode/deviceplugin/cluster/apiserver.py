"""A minimal client of the cluster's API server for a pod: service account, TLS, plain objects; and threads that follow some.

Of the standard library rather than a client library, which keeps the image small. Its calls block: use separate threads.
"""

from __future__ import annotations

import http.client
import json
import logging
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias
from urllib.parse import quote

from gpunode.contract.config import LABEL

Object: TypeAlias = dict[str, Any]

DEADLINE = 10.0  # seconds for a connection, and for an answer
LARGEST = 64 << 20  # bytes of an answer, and of one event of a watch; a page of 500 objects has far less
# A dead connection is noticed after 30 + 3 x 10 seconds.
KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}


class ApiError(Exception):
    """The API server refused or did not answer. `code` is the HTTP status; 0 for no answer."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class ApiServer(Protocol):
    """The calls to the API server. They raise ApiError."""

    def get(self, path: str) -> Object:
        """The object at `path`, or a list of objects."""

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        """Create (POST) an object in the collection at `path`, or change (PATCH, a merge patch) the object at `path`."""

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        """Watch the objects that `path` selects: (ADDED | MODIFIED | DELETED …, object), first the existing ones."""


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
                found = json.loads(answer.read(LARGEST))
            except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
                raise ApiError(0, f"the API server's answer broke: {error!r}") from None
        if not isinstance(found, dict):
            raise ApiError(0, "the API server's answer is no object")
        return found

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        with closing(self._connect()) as connection:
            self._ask(connection, method, path, body)  # the status suffices; the object is not needed

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
            "User-Agent": "gpunode-device-plugin",
            "Content-Type": "application/merge-patch+json" if method == "PATCH" else "application/json",
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


log = logging.getLogger(__name__)

PAGE = 500  # objects of a list
WATCH = 300  # seconds, after which a watch begins again where it was
RETRY = 1.0  # seconds before a list that failed is tried again


@dataclass(frozen=True)
class Kind:
    """Objects at `path`, and who takes them. `name`: the taker's name for one; `known`: those it has."""

    path: str
    name: Callable[[Object], str]
    seen: Callable[[Object], None]
    gone: Callable[[str], None]
    known: Callable[[], set[str]]


class Follower(threading.Thread):
    """Follows one kind until `stop`. `listed` is set once all of it was taken."""

    def __init__(self, api: ApiServer, kind: Kind, stop: threading.Event) -> None:
        super().__init__(name=f"follower of {kind.path}", daemon=True)
        self.listed = threading.Event()
        self._api = api
        self._kind = kind
        self._mark = "&" if "?" in kind.path else "?"
        self._stop_following = stop

    def run(self) -> None:
        version = ""  # of the list, from which a watch goes on; "" before there is one
        while not self._stop_following.is_set():
            try:
                version = self._watch(version) if version else self._list()
            except ApiError as error:
                if self._stop_following.is_set():
                    break  # its caller has stopped it
                log.warning("%s cannot be followed: %s; listing again", self._kind.path, error)
                version = ""
                self._stop_following.wait(RETRY)

    def _list(self) -> str:
        """Take all objects, and those that are gone out; the version of the list."""
        before, names = self._kind.known(), set()
        version = following = ""
        while True:
            page = self._api.get(f"{self._kind.path}{self._mark}limit={PAGE}{following}")
            try:
                for item in page.get("items") or []:
                    self._kind.seen(item)
                    names.add(self._kind.name(item))
                version = str(page["metadata"]["resourceVersion"])
                token = page["metadata"].get("continue")
            except (LookupError, TypeError, AttributeError) as error:
                raise ApiError(0, f"a list that cannot be read: {error!r}") from None
            if not token:
                break
            following = f"&continue={quote(token, safe='')}"
        # Only what was known before: a pod can be bound while the list is read.
        for name in before - names:
            self._kind.gone(name)
        self.listed.set()
        return version

    def _watch(self, version: str) -> str:
        """Follow from this version until the watch ends; the version that it reached."""
        path = (
            f"{self._kind.path}{self._mark}resourceVersion={quote(version, safe='')}&allowWatchBookmarks=true"
        )
        for what, one in self._api.watch(path, WATCH):
            try:
                if what == "DELETED":
                    self._kind.gone(self._kind.name(one))
                elif what != "BOOKMARK":
                    self._kind.seen(one)
                version = str(one["metadata"]["resourceVersion"])
            except (LookupError, TypeError, AttributeError) as error:
                raise ApiError(0, f"an event that cannot be read: {error!r}") from None
            if self._stop_following.is_set():
                break
        return version


WATCH = 300  # seconds that one watch lasts
FIRST, LONGEST = 1.0, 30.0  # seconds between two tries: doubled from the one up to the other


class NodeLabel(threading.Thread):
    """Watches `node` for the label `key`. It needs only the right to watch nodes."""

    def __init__(self, api: ApiServer, node: str, key: str = LABEL) -> None:
        super().__init__(name=f"watch of node {node}", daemon=True)
        self.key = key
        self.value = ""  # "": the node has no such label, or it is unknown
        self._api = api
        self._path = f"/api/v1/nodes?fieldSelector=metadata.name%3D{quote(node, safe='')}"
        self._known = threading.Event()
        self._changed: Callable[[], None] = lambda: None

    def wait(self, seconds: float | None = None) -> bool:
        """True once the API server has sent the label or refused to; False after `seconds`."""
        return self._known.wait(seconds)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed`, in this thread, after each change of `value`; replaces an earlier one."""
        self._changed = changed

    def run(self) -> None:
        failed = 0  # tries in a row
        while True:
            began = time.monotonic()
            try:
                for kind, node in self._api.watch(self._path, WATCH):
                    if failed:
                        log.info("the node's labels are known again")
                    failed = 0
                    if kind in ("ADDED", "MODIFIED", "DELETED"):
                        labels = node["metadata"].get("labels") or {} if kind != "DELETED" else {}
                        self._take(str(labels.get(self.key, "")))
                if time.monotonic() - began >= FIRST:
                    continue  # it timed out: the next one begins with the current state
                why = "the watch ends at once"
            except ApiError as error:
                why = str(error)
                if error.code in (401, 403):
                    self._known.set()  # waiting does not help
            if not failed:
                log.warning(
                    "the node's label %s is not known: %s; trying again, at last every %.0f s",
                    self.key,
                    why,
                    LONGEST,
                )
            time.sleep(min(FIRST * 2 ** min(failed, 10), LONGEST))
            failed += 1

    def _take(self, value: str) -> None:
        before, self.value = self.value, value
        self._known.set()
        if value != before:
            self._changed()
