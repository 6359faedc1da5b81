"""The client of the API server, against the simulated one: TLS, tokens, refusals, watches."""

import base64
import contextlib
import errno
import http.client
import json
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpunode.deviceplugin.cluster import incluster
from gpunode.deviceplugin.cluster.apiserver import ApiError
from gpunode.deviceplugin.cluster.incluster import InCluster
from gpunode.sim.apiserver import tls
from gpunode.sim.cluster import Cluster

NODE = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "gpu-01"}}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    """A cluster without hosts."""
    made = Cluster(tmp_path_factory.mktemp("sim"), [])
    yield made
    made.close()


@pytest.fixture
def account(tmp_path, cluster: Cluster) -> Path:
    """A folder as the kubelet mounts it, of a user who may do all."""
    config = json.loads(cluster.kubeconfig.read_text())
    trust = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
    (tmp_path / "ca.crt").write_bytes(trust)
    (tmp_path / "token").write_text(config["users"][0]["user"]["token"] + "\n")
    return tmp_path


@pytest.fixture
def environ(cluster: Cluster) -> dict[str, str]:
    server = json.loads(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    url = urlsplit(server)
    return {"KUBERNETES_SERVICE_HOST": str(url.hostname), "KUBERNETES_SERVICE_PORT": str(url.port)}


@pytest.fixture
def api(environ: dict[str, str], account: Path) -> InCluster:
    return InCluster(environ, account)


def refused(api: InCluster, method: str = "PATCH", path: str = "/api/v1/nodes/none") -> ApiError:
    with pytest.raises(ApiError) as caught:
        api.send(method, path, {})
    return caught.value


def test_creates_changes_and_says_what_the_server_says(api: InCluster):
    """An object comes to be and is patched; the server's own words where it refuses."""
    api.send("POST", "/api/v1/nodes", NODE)
    api.send("PATCH", "/api/v1/nodes/gpu-01", {"metadata": {"annotations": {"a": "b"}}})
    error = refused(api)
    assert (error.code, str(error)) == (404, 'nodes "none" not found')


def test_a_new_token_is_taken_up(api: InCluster, account: Path):
    """The kubelet replaces it before it expires."""
    good = (account / "token").read_text()
    (account / "token").write_text("old")
    assert refused(api).code == 401
    (account / "token").write_text(good)
    assert refused(api).code == 404


def test_a_watch_begins_with_what_is_there_and_tells_changes(api: InCluster):
    """Until its time is over."""
    node = {**NODE, "metadata": {"name": "watched"}}
    api.send("POST", "/api/v1/nodes", node)
    seen = []
    for kind, item in api.watch("/api/v1/nodes?fieldSelector=metadata.name%3Dwatched", 1):
        seen.append((kind, item["metadata"].get("labels")))
        if len(seen) == 1:
            api.send("PATCH", "/api/v1/nodes/watched", {"metadata": {"labels": {"a": "b"}}})
            api.send("POST", "/api/v1/nodes", {**NODE, "metadata": {"name": "other"}})
    assert seen == [("ADDED", None), ("MODIFIED", {"a": "b"})]


def test_a_server_that_is_not_the_clusters_gets_no_token(api: InCluster, account: Path, tmp_path):
    """The cluster's CA has not signed it."""
    _, other = tls.server(tmp_path / "other.pem")
    (account / "ca.crt").write_text(other)
    error = refused(api)
    assert error.code == 0
    assert "CERTIFICATE_VERIFY_FAILED" in str(error)


@pytest.mark.parametrize(
    ("missing", "message"),
    [("token", "no service account token"), ("ca.crt", "ca.crt cannot be read")],
)
def test_what_is_not_mounted_is_named(api: InCluster, account: Path, missing: str, message: str):
    """A pod without a service account token, which is how gpunode runs it unless asked otherwise."""
    (account / missing).unlink()
    error = refused(api)
    assert error.code == 0
    assert message in str(error)


@pytest.mark.parametrize("token", [b"\xff\xfe", b"a\nb", "\N{SNOWMAN}".encode()])
def test_what_can_be_no_token_is_an_error_as_any_other(api: InCluster, account: Path, token: bytes):
    """A file that is being written, or is somebody else's, ends no thread."""
    (account / "token").write_bytes(token)
    assert refused(api).code == 0


def test_a_port_that_is_no_number_is_shown(environ: dict[str, str], account: Path):
    """As docker's links set such variables."""
    error = refused(InCluster({**environ, "KUBERNETES_SERVICE_PORT": "tcp://10.96.0.1:443"}, account))
    assert "KUBERNETES_SERVICE_PORT: expected a number, found 'tcp://10.96.0.1:443'" in str(error)


def test_outside_of_a_pod_there_is_no_api_server(account: Path):
    """Said at once."""
    assert "KUBERNETES_SERVICE_HOST is not set" in str(refused(InCluster({}, account)))


def test_nobody_listens(environ: dict[str, str], account: Path):
    """The address is named."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    error = refused(InCluster({**environ, "KUBERNETES_SERVICE_PORT": port}, account))
    assert f"the API server at 127.0.0.1:{port} cannot be reached" in str(error)


@contextlib.contextmanager
def answering(account: Path, answer: bytes, then: bytes = b"", deadline: float = 10.0) -> Iterator[InCluster]:
    """A client of a server that gives one answer and hangs up; `then` comes byte by byte, 0.2 s apart, before it does."""
    context, certificate = tls.server(account / "cut.pem")
    (account / "ca.crt").write_text(certificate)
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve_once() -> None:
            connection, _ = server.accept()
            with connection, context.wrap_socket(connection, server_side=True) as secure:
                with secure.makefile("rb") as asked:
                    heads = http.client.parse_headers(asked) if asked.readline() else {}
                    asked.read(int(heads.get("Content-Length") or 0))
                secure.sendall(answer)
                with contextlib.suppress(OSError):
                    for byte in then:
                        time.sleep(0.2)
                        secure.sendall(bytes([byte]))

        thread = threading.Thread(target=serve_once)
        thread.start()
        port = str(server.getsockname()[1])
        try:
            yield InCluster(
                {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": port}, account, deadline
            )
        finally:
            thread.join()


def test_a_watch_that_breaks_off_is_no_good_answer(account: Path):
    """Its connection is cut in the middle of a line."""
    cut = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{"typ\r\n'
    with answering(account, cut) as api, pytest.raises(ApiError, match="the watch broke"):
        list(api.watch("/api/v1/nodes?fieldSelector=x", 1))


def test_a_watch_that_the_server_ends_for_a_reason_has_that_reason(account: Path):
    """With 200 and, in the stream, a Status: 410, when it remembers too little."""
    body = b'{"type":"ERROR","object":{"kind":"Status","code":410,"message":"too old resource version"}}\n'
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with answering(account, head + body) as api, pytest.raises(ApiError, match="too old") as caught:
        list(api.watch("/api/v1/nodes?fieldSelector=x", 1))
    assert caught.value.code == 410


def test_what_the_server_has_done_is_done_though_its_answer_breaks_off(account: Path):
    """The status has come, the object has not."""
    with answering(account, b'HTTP/1.1 201 Created\r\nContent-Length: 500\r\n\r\n{"kind') as api:
        api.send("POST", "/api/v1/nodes", NODE)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (b"", "cannot be reached"),
        (b"SSH-2.0-OpenSSH_9.2\r\n", "cannot be reached"),
        (b'HTTP/1.1 500 No\r\nContent-Length: 500\r\n\r\n{"kind', "HTTP status 500"),
    ],
)
def test_what_is_no_answer_is_an_error_as_any_other(account: Path, answer: bytes, message: str):
    """Nothing, something else, or a refusal that breaks off."""
    with answering(account, answer) as api:
        assert message in str(refused(api))


DRIP = b" " * 600  # two minutes, each byte well within the deadline of one second


@pytest.mark.parametrize(
    ("head", "watches"),
    [
        (b"", False),
        (b"HTTP/1.1 200 OK\r\nX: ", False),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 90\r\n\r\n", False),
        (b"HTTP/1.1 200 OK\r\nX: ", True),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n", True),
    ],
)
def test_an_answer_that_drips_ends(account: Path, head: bytes, watches: bool):
    """The deadline is the whole answer's: a socket's begins again with each byte. A watch has the seconds that were asked for, too."""
    with answering(account, head, DRIP, 1.0) as api:
        began = time.monotonic()
        with pytest.raises(ApiError, match="timed out"):
            list(api.watch("/api/v1/nodes?fieldSelector=x", 1)) if watches else api.get(
                "/api/v1/nodes/gpu-01"
            )
        assert time.monotonic() - began < 60


LONG = b'{"type":"ADDED","object":{"x":"%s"}}' % (b"x" * 3_000)


@pytest.mark.parametrize(
    "line",
    [b"[" * 100_000, b'{"type":"ADDED","object":[]}', b'{"type":"ERROR","object":[]}', b"[]", LONG],
    ids=["deep", "list", "error", "no-event", "long"],
)
def test_a_watch_of_something_else_is_an_error_as_any_other(account: Path, line: bytes, monkeypatch):
    """As deep as Python cannot read, of other shapes, or without an end."""
    monkeypatch.setattr(incluster, "LARGEST", 2_000 if line == LONG else 1 << 20)
    answer = b"HTTP/1.1 200 OK\r\n\r\n" + line + b"\n"
    with answering(account, answer) as api, pytest.raises(ApiError, match="the watch broke"):
        list(api.watch("/api/v1/nodes?fieldSelector=x", 1))


def test_a_request_that_misses_its_deadline_is_dropped(account: Path):
    """By a reset: the kernel would go on to deliver it for minutes."""
    context, certificate = tls.server(account / "slow.pem")
    (account / "ca.crt").write_text(certificate)
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        place = {
            "KUBERNETES_SERVICE_HOST": "127.0.0.1",
            "KUBERNETES_SERVICE_PORT": str(server.getsockname()[1]),
        }
        error = pool.submit(refused, InCluster(place, account, deadline=2.0))
        connection, _ = server.accept()
        connection.settimeout(20)
        raw = connection.dup()
        with raw, context.wrap_socket(connection, server_side=True):
            assert "timed out" in str(error.result(20))
            assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET


def test_a_strict_python_takes_an_old_clusters_ca(api: InCluster):
    """Python 3.13 refuses CAs without key identifiers unless told not to."""
    assert not api._connect()._context.verify_flags & ssl.VERIFY_X509_STRICT  # type: ignore[attr-defined]
