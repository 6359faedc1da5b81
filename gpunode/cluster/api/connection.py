"""The HTTP connections to one API server: whose they are, and what of a request is tried again."""

import json
import ssl
import threading
import time
import warnings
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlencode

from gpunode.cluster.api.exec_plugin import Credential
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.kubeconfig import Access
from gpunode.errors import ClusterError
from gpunode.local.streams import run_within

CONNECT = 5.0
WHOLE = 60.0  # seconds for a whole answer, headers and body, however slowly they come
LARGEST = 256 << 20  # bytes of its body; 500 objects, a page, have far less
MANAGER = "gpunode"  # who the API server says owns the fields that gpunode applied
AT_ONCE = 16  # requests that are made side by side; so many connections are kept
Item = TypeVar("Item")
Result = TypeVar("Result")


def side_by_side(ask: Callable[[Item], Result], items: Iterable[Item]) -> list[Result]:
    """The results in the order of the items, AT_ONCE at a time. Raises the first error, once all that was begun has ended."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(ask, items))


class Connection:
    """All that one program keeps to a cluster's API server. Safe to use from several threads."""

    def __init__(self, access: Access) -> None:
        from kubernetes.client.rest import RESTClientObject
        from urllib3.exceptions import InsecureRequestWarning

        self._access = access
        access.configuration.connection_pool_maxsize = AT_ONCE
        try:
            self.pool = RESTClientObject(access.configuration).pool_manager
        except ValueError as error:  # its message may have the proxy's password
            raise ClusterError(
                f"the proxy of context `{access.context}` is no address",
                hint=f"It is the proxy-url in {access.source}, or $HTTPS_PROXY.",
            ) from error
        self._lock = threading.Lock()
        self._failed: tuple[float, ClusterError] | None = None  # a plugin, and when
        if access.tls is not None:
            self.pool.connection_pool_kw["ssl_context"] = access.tls
            if access.tls.verify_mode is ssl.CERT_NONE:
                # The kubeconfig says so (insecure-skip-tls-verify); urllib3 would say it again at every request.
                warnings.simplefilter("ignore", InsecureRequestWarning)

    def send(
        self,
        method: str,
        where: str,
        query: Mapping[str, str],
        body: Object | None,
        content: str,
        read: float,
        *,
        following: bool = False,
    ) -> tuple[Any, bytes]:
        """The answer, of whatever status, and its body: whole, or not read yet where a good one is `following` events. Credentials
        that a plugin answered are renewed as they end, and once they are refused (401). Raises the HTTP client's exceptions, OSError for
        an answer that does not end, and ClusterError for a plugin that fails."""
        shown = self._credential()
        asked = urlencode({key: value for key, value in query.items() if value})
        url = f"{self._access.server}{where}{'?' if asked else ''}{asked}"
        data = None if body is None else json.dumps(body).encode()
        kept = {"Accept": "application/json", "User-Agent": MANAGER}
        if body is not None:
            kept["Content-Type"] = content

        def exchange(credential: Credential | None) -> tuple[Any, bytes]:
            headers = kept | self._headers(credential)

            def request() -> tuple[Any, bytes]:
                answer = self._request(method, url, data, headers, read)
                return answer, b"" if following and answer.status == 200 else _whole(answer)

            return run_within(WHOLE, request)

        answer = exchange(shown)
        if answer[0].status == 401 and shown is not None:
            other = self._credential(refused=shown)
            if other != shown:
                answer = exchange(other)
        return answer

    def _credential(self, refused: Credential | None = None) -> Credential | None:
        """The plugin's credential, with connections that use its certificate; None without a plugin."""
        began, login = time.monotonic(), self._access.login
        if login is None:
            return None
        if not self._lock.acquire(blocking=False):
            if refused is None and (valid := login.valid):
                return valid  # another thread asks the plugin for the next one, which may take minutes
            self._lock.acquire()
        try:
            if self._failed is not None and self._failed[0] >= began:
                raise self._failed[1]  # of another thread: a plugin that hangs is not waited for by each
            try:
                credential = login.renew(refused)
            except ClusterError as error:
                self._failed = time.monotonic(), error
                raise
            if login.tls is not self.pool.connection_pool_kw.get("ssl_context"):
                self.pool.connection_pool_kw["ssl_context"] = login.tls
                self.pool.clear()  # those in use end with their request
            return credential
        finally:
            self._lock.release()

    def _headers(self, shown: Credential | None) -> dict[str, str]:
        if shown is not None:
            headers = {"authorization": f"Bearer {shown.token}"} if shown.token else {}
        else:
            headers = {"authorization": self._access.token} if self._access.token else {}
        if not all(value.isascii() and value.isprintable() for value in headers.values()):
            raise ClusterError(
                f"the token of context `{self._access.context}` is invalid: it has characters that HTTP headers do not allow",
                hint=f"Check the user's token in {self._access.source}, or log in again.",
            )
        return headers

    def _request(
        self, method: str, url: str, data: bytes | None, headers: Mapping[str, str], read: float
    ) -> Any:
        from urllib3 import Timeout
        from urllib3.exceptions import ProtocolError

        # A kept connection may have been closed at the other end meanwhile; what can be asked twice is.
        for last in (method == "POST", True):
            try:
                return self.pool.request(
                    method,
                    url,
                    body=data,
                    headers=headers,
                    timeout=Timeout(connect=CONNECT, read=read),
                    retries=False,
                    preload_content=False,
                )
            except ProtocolError:
                if last:
                    raise
        return None


def _whole(answer: Any) -> bytes:
    body = bytearray()
    while part := answer.read1(1 << 20):
        body += part
        if len(body) > LARGEST:
            answer.close()
            raise OSError(f"its answer has more than {LARGEST >> 20} MiB")
    return bytes(body)
