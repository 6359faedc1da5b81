"""Requests, what is said when they are not answered well, and waits that outlive broken watches."""

import contextlib
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseRequestHandler, ThreadingTCPServer
from unittest.mock import Mock

import pytest

from gpunode.cluster import api as api_module
from gpunode.cluster.api import Api, connect, connection
from gpunode.cluster.api.exec_plugin import Trust
from gpunode.cluster.api.refusal import translate_errors
from gpunode.cluster.api.watch import follow
from gpunode.errors import ApiConnectionLost, ClusterError, HttpError
from gpunode.model import Cluster
from gpunode.sim.apiserver import tls
from tests import tables

from .conftest import add_node
from .fake import FakeApi, Fault, kubeconfig, plain


@pytest.fixture(autouse=True)
def _over_http(monkeypatch) -> None:
    """All of it."""
    monkeypatch.setattr(FakeApi, "served", {})


def at(server: str, folder: Path, **settings: object) -> Api:
    """A client for a server of that URL."""
    return connect(Cluster(kubeconfig=kubeconfig(server, folder, **settings)))


def listening() -> socket.socket:
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(10)
    return server


def test_an_absent_object_is_none_and_a_long_list_comes_in_pages(api: Api, fake: FakeApi, monkeypatch):
    """404 of an object is an answer, not an error; lists follow `continue`."""
    monkeypatch.setattr(api_module, "PAGE", 2)
    for number in range(5):
        add_node(fake, f"n{number}")
    assert api.get("Node", "none") is None
    assert [item["metadata"]["name"] for item in api.find("Node")[0]] == ["n0", "n1", "n2", "n3", "n4"]
    assert len([request for request in fake.requests if request[1] == "/api/v1/nodes"]) == 3


def test_a_refused_connection_names_the_address_and_its_source(tmp_path):
    """The person learns which server, and which kubeconfig named it."""
    server = listening()
    port = server.getsockname()[1]
    server.close()
    with pytest.raises(ApiConnectionLost) as caught:
        at(f"https://127.0.0.1:{port}", tmp_path).version()
    assert f"127.0.0.1:{port} cannot be reached: connection refused" in caught.value.message
    assert f"context `test` in {tmp_path}/kubeconfig" in caught.value.hint


def test_a_silent_server_is_given_up_soon(tmp_path, monkeypatch):
    """A server that accepts and never answers costs READ seconds, once."""
    monkeypatch.setattr(api_module, "READ", 0.2)
    with listening() as server, pytest.raises(ApiConnectionLost, match="did not answer in time"):
        at(f"http://127.0.0.1:{server.getsockname()[1]}", tmp_path).version()


def test_a_port_without_tls_is_reported_as_such(tmp_path):
    """https to a port that speaks plain HTTP."""
    with listening() as server:

        def plain() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(1024)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        thread = threading.Thread(target=plain)
        thread.start()
        with pytest.raises(ClusterError) as caught:
            at(f"https://127.0.0.1:{server.getsockname()[1]}", tmp_path).version()
        thread.join()
    assert "TLS" in caught.value.message
    assert "does not speak TLS" in caught.value.hint


def test_a_server_that_needs_no_proof_is_asked_without_a_word(tmp_path, recwarn: pytest.WarningsRecorder):
    """`insecure-skip-tls-verify` of the kubeconfig; without it the unknown certificate is refused."""
    secure, _ = tls.server(tmp_path / "server.pem")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Version)
    server.socket = secure.wrap_socket(server.socket, server_side=True)
    url = f"https://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        assert at(url, tmp_path, **{"insecure-skip-tls-verify": True}).version() == "v1.36.3"
        with pytest.raises(ClusterError, match="certificate"):
            at(url, tmp_path).version()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert not list(recwarn)


class Version(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"gitVersion": "v1.36.3"}')

    def log_message(self, *_: object) -> None: ...


def test_something_that_is_no_kubernetes_is_recognised(api: Api, fake: FakeApi):
    """A proxy's page or another program on the port."""
    fault = Fault(200, "", "")
    fault.body = {"etcdserver": "3.4"}
    fake.fail("GET", "/version", fault)
    with pytest.raises(ClusterError, match="in a way no Kubernetes API does"):
        api.version()


@tables.rows("refusals", hint="")
def test_a_refusal_says_what_is_needed(
    api: Api, fake: FakeApi, monkeypatch, status: int, reason: str | None, text: str, message: str, hint: str
):
    """Each status has its message: which user may not do what where, and the fix."""
    monkeypatch.setattr(api_module, "time", Mock(wraps=time, sleep=lambda _: None))
    for _ in range(3):  # 429 is tried again
        fake.fail("GET", "/nodes", plain(status, text) if reason is None else Fault(status, reason, text))
    with pytest.raises(HttpError) as caught:
        api.find("Node")
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert "secret" not in str(caught.value)


def test_a_server_that_asks_to_come_again_is_asked_again(api: Api, fake: FakeApi, monkeypatch):
    """429 is the one answer that is tried again; the request was not carried out."""
    monkeypatch.setattr(api_module, "time", Mock(wraps=time, sleep=lambda _: None))
    fake.fail("GET", "/nodes", Fault(429, "TooManyRequests", "later"))
    add_node(fake, "a")
    assert len(api.find("Node")[0]) == 1


@pytest.mark.parametrize("after", ["soon", "-1", "1e9", "Wed, 21 Oct 2026 07:28:00 GMT", "9" * 5000])
def test_a_server_that_asks_to_come_again_at_any_time_is_asked_again_soon(tmp_path, monkeypatch, after: str):
    waits: list[float] = []
    monkeypatch.setattr(api_module, "time", Mock(wraps=time, sleep=waits.append))
    with (
        answering(f"HTTP/1.1 429 x\r\nRetry-After: {after}\r\nContent-Length: 0\r\n\r\n".encode()) as url,
        pytest.raises(HttpError, match="too many requests"),
    ):
        at(url, tmp_path).version()
    assert waits == [1, 1]


@tables.rows("other-shapes")
def test_an_answer_of_another_shape_is_reported(tmp_path, body: str):
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n"
    with answering(f"{head}{body}".encode()) as url:
        for ask in (lambda api: api.find("Node"), Api.version):
            with pytest.raises(ClusterError, match="in a way no Kubernetes API does"):
                ask(at(url, tmp_path))
    with answering(f"{head.replace('200', '403')}{body}".encode()) as url, pytest.raises(ClusterError):
        at(url, tmp_path).version()


def test_an_answer_without_an_end_is_given_up(tmp_path, monkeypatch):
    """By its time, where it comes byte by byte, and by its size."""
    monkeypatch.setattr(connection, "WHOLE", 0.2)
    with (
        answering(b"HTTP/1.1 200 OK\r\n\r\n", then=b" ") as url,
        pytest.raises(ApiConnectionLost, match="no whole answer within"),
    ):
        at(url, tmp_path).version()
    monkeypatch.setattr(connection, "WHOLE", 600)
    monkeypatch.setattr(connection, "LARGEST", 1 << 20)
    with (
        answering(b"HTTP/1.1 200 OK\r\n\r\n", then=b" " * (1 << 16)) as url,
        pytest.raises(ApiConnectionLost, match="its answer has more than"),
    ):
        at(url, tmp_path).version()


@pytest.mark.parametrize("begin", [b"", b"HTTP/1.1 200 OK\r\nX-Long: "])
def test_headers_without_an_end_are_given_up(tmp_path, monkeypatch, begin: bytes):
    """A byte now and then is no silence, and no answer."""
    monkeypatch.setattr(connection, "WHOLE", 0.2)
    with (
        answering(begin, then=b"H") as url,
        pytest.raises(ApiConnectionLost, match=r"no whole answer within 0\.2 s"),
    ):
        at(url, tmp_path).version()


@pytest.mark.parametrize(
    "begin",
    [
        b"HTTP/1.1 200",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n10000\r\n",
    ],
)
def test_a_watch_that_drips_ends(tmp_path, monkeypatch, begin: bytes):
    monkeypatch.setattr(connection, "WHOLE", 0.2)
    monkeypatch.setattr(api_module, "READ", 0.2)
    start = time.monotonic()
    with answering(begin, then=b"H") as url, suppress(ApiConnectionLost):
        list(at(url, tmp_path).watch("Node", version="1", seconds=0))
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired", "Renew the API server's"),
        ("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet valid", "clock right"),
        ("[SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired", "client-certificate for expired"),
    ],
)  # fmt: skip
def test_a_certificate_that_has_ended_is_told_from_one_of_another_ca(tmp_path, words: str, hint: str):
    """In OpenSSL's words."""
    access = at("https://127.0.0.1:1", tmp_path).access
    with pytest.raises(ClusterError) as caught, translate_errors(access):
        raise ssl.SSLError(1, f"{words} (_ssl.c:1006)")
    assert hint in caught.value.hint


@pytest.mark.parametrize("token", ["a\nb", "\u4e2d"])
def test_a_token_that_no_header_takes_is_not_sent_and_not_shown(tmp_path, token: str):
    text = json.dumps({"token": token})[1:-1]
    at("http://127.0.0.1:1", tmp_path)
    file = tmp_path / "kubeconfig"
    file.write_text(file.read_text().replace('"token": "secret-token"', text))
    with pytest.raises(ClusterError, match="the token of context `test` is invalid") as caught:
        connect(Cluster(kubeconfig=str(file))).version()
    assert token not in str(caught.value)


def test_a_proxy_that_is_no_address_is_named(tmp_path):
    with pytest.raises(ClusterError, match="the proxy of context `test` is no address"):
        at("http://127.0.0.1:1", tmp_path, **{"proxy-url": "http://["})


@contextmanager
def answering(answer: bytes, then: bytes = b"") -> Iterator[str]:
    """The URL of a server that answers every request so, and goes on with `then` until nobody reads it."""

    class Answering(BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(65536)
                self.request.sendall(answer)
                while then:
                    self.request.sendall(then)
                    time.sleep(0.01 if len(then) == 1 else 0)

    with ThreadingTCPServer(("127.0.0.1", 0), Answering) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()


def hello(context: ssl.SSLContext) -> bytes:
    """The first bytes that a client sends."""
    sent = ssl.MemoryBIO()
    client = context.wrap_bio(ssl.MemoryBIO(), sent, server_hostname="api.example.org")
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    return sent.read()


def test_the_protocol_is_named_once():
    """urllib3 names it for each connection: a thread that begins one meanwhile sent what lay in the memory that this freed."""
    context = Trust(verified=True, authorities=None).context()
    assert b"\x08http/1.1" in hello(context)
    context.set_alpn_protocols(["h2"])
    assert b"\x08http/1.1" in hello(context)


def test_what_is_there_comes_first_and_then_every_change(api: Api, fake: FakeApi):
    """Added, changed and deleted objects are all seen without asking again."""
    add_node(fake, "a")
    seen = follow(api, "Node", seconds=10)
    assert set(next(seen)) == {"a"}
    add_node(fake, "b")
    assert set(next(seen)) == {"a", "b"}
    fake.drop("/api/v1/nodes/a")
    assert set(next(seen)) == {"b"}
    lists = [request for request in fake.requests if not request[2].get("watch")]
    assert len(lists) == 1
    seen.close()  # type: ignore[attr-defined]


def test_it_ends_at_the_deadline_and_beats_until_then(api: Api, fake: FakeApi):
    """Even when nothing changes, the waiting one is woken now and then; and then it is over."""
    assert len(list(follow(api, "Node", seconds=1))) >= 2


@pytest.mark.parametrize(
    "fault",
    [
        Fault(410, "Expired", "too old"),
        Fault(503, "", "starting"),
        plain(502, "Bad Gateway"),
        plain(429, "Too many requests, please try again later."),
        plain(200, "{ rubbish\n"),
        plain(200, "[1]\n"),
        None,
    ],
)
def test_a_broken_watch_is_started_again(api: Api, fake: FakeApi, told: list[str], fault: Fault | None):
    """An expired version, a restarting API server, a cut connection: listed again, and told."""
    for _ in range(2):  # one cut is mended by the client itself
        fake.fail("GET", "watch=true", fault)
    seen = follow(api, "Node", seconds=10, notify=told.append)
    assert next(seen) == {}
    timer = threading.Timer(0.1, add_node, (fake, "late"))
    timer.start()
    assert any("late" in line for line in seen)
    timer.join()
    assert told
    assert sum("watch" not in query for _, path, query in fake.requests if path.endswith("/nodes")) > 1
    seen.close()  # type: ignore[attr-defined]


def test_a_watch_that_is_forbidden_is_an_error(api: Api, fake: FakeApi):
    """What waiting cannot mend is not waited for."""
    no = 'User "jane" cannot watch resource "nodes" in API group "" at the cluster scope'
    fake.fail("GET", "watch=true", Fault(403, "Forbidden", no))
    with pytest.raises(HttpError, match="does not let the user `jane` watch nodes"):
        list(follow(api, "Node", seconds=10))
