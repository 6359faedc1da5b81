"""The program: with TLS, behind probes, only while it leads; clients without a certificate keep nobody out."""

import argparse
import base64
import http.client
import json
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509

from gpunode.deviceplugin.cluster import apiserver
from gpunode.deviceplugin.cluster.apiserver import ApiError
from gpunode.links.scheduler import deployment
from gpunode.share import __main__ as program
from gpunode.share import server
from gpunode.share.__main__ import STANDBY, Replica, trust
from gpunode.share.lease import SURE, Lease
from gpunode.share.ledger import Ledger
from gpunode.share.protocol import Extender
from gpunode.share.server import Probes, Server
from tests.deviceplugin.test_metrics import free_port
from tests.share.objects import MEM, Pods, node, pod
from tests.share.test_follow import until
from tests.share.test_lease import Clock, Leases


class Cluster(Leases, Pods):
    """Nodes, pods and the Lease."""

    def __init__(self, *pods: Any) -> None:
        Leases.__init__(self)
        Pods.__init__(self, *pods)
        self.fail = None  # of Leases
        self.ready = "True"  # the node's condition; "" where there is no node

    def get(self, path: str) -> Any:
        if "/leases" in path:
            return Leases.get(self, path)
        if path.startswith("/api/v1/nodes?"):
            each = node("n", 4, 8, published=True)
            each["status"]["conditions"] = [{"type": "Ready", "status": self.ready}]
            return {"items": [each] if self.ready else [], "metadata": {"resourceVersion": "1"}}
        if path.startswith("/api/v1/pods?"):
            return {"items": self.listed(), "metadata": {"resourceVersion": "1"}}
        return json.loads(json.dumps(self.pods[path.rpartition("/")[2]]))

    def send(self, method: str, path: str, body: Any = None) -> None:
        if "/leases" in path:
            return Leases.send(self, method, path, body)
        self.pods[body["metadata"]["name"]]["spec"]["nodeName"] = body["target"]["name"]
        self.pods[body["metadata"]["name"]]["metadata"]["annotations"] |= body["metadata"]["annotations"]
        return None

    def watch(self, path: str, seconds: int) -> Any:
        threading.Event().wait(0.05)
        if "metadata.name" in path:
            raise ApiError(410, "old")  # it is listed again
        return iter(())


@pytest.fixture
def files(tmp_path) -> Path:
    """The certificates of a Secret."""
    for name, text in deployment.make_certificates().items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    return tmp_path


def client(files: Path, *, known: bool = True) -> ssl.SSLContext:
    """As the scheduler's, which knows the server by name though it asks an address."""
    context = ssl.create_default_context(cafile=str(files / "ca.crt"))
    if known:
        context.load_cert_chain(files / "client.crt", files / "client.key")
    return context


@contextmanager
def connected(port: int, context: ssl.SSLContext) -> Iterator[http.client.HTTPConnection]:
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with context.wrap_socket(plain, server_hostname=deployment.SERVER) as secure:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.auto_open = 0
        connection.sock = secure
        yield connection


def on(connection: http.client.HTTPConnection, verb: str, body: Any) -> Any:
    connection.request("POST", f"/share/{verb}", json.dumps(body))
    return json.loads(connection.getresponse().read())


def ask(port: int, context: ssl.SSLContext, verb: str, body: Any) -> Any:
    with connected(port, context) as connection:
        return on(connection, verb, body)


@contextmanager
def running(api: Any, files: Path, lease: Lease) -> Iterator[tuple[int, Replica, threading.Thread]]:
    """One replica, once it leads."""
    port = free_port()
    options = argparse.Namespace(resource="aliyun.com/gpu-mem", policy="packed", port=port)
    replica = Replica(options, trust(files), api, api, "n")
    thread = threading.Thread(target=replica.run, args=(lease,), daemon=True)
    thread.start()
    try:
        until(lambda: replica.why_not == "")
        yield port, replica, thread
    finally:
        replica.stop.set()
        thread.join(60)


def test_one_replica_serves_the_scheduler_and_nobody_else(files: Path, monkeypatch):
    """By certificate; the other takes over when it ends, with a ledger of its own."""
    monkeypatch.setattr(program, "RENEW", 0.1)
    monkeypatch.setattr(apiserver, "RETRY", 0.05)
    api = Cluster(pod("a", 6), pod("b", 4))
    ports = {name: free_port() for name in "xy"}
    replicas, threads = {}, {}
    for name in "xy":
        options = argparse.Namespace(resource="aliyun.com/gpu-mem", policy="packed", port=ports[name])
        replicas[name] = Replica(options, trust(files), api, api, "n")
        lease = Lease(api, "gpunode", "share", name)
        threads[name] = threading.Thread(target=replicas[name].run, args=(lease,), daemon=True)
        threads[name].start()
    try:
        until(lambda: "" in [each.why_not for each in replicas.values()])
        (leader,) = [name for name, each in replicas.items() if not each.why_not]
        other = "y" if leader == "x" else "x"
        assert replicas[other].why_not == STANDBY

        bind = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n"}
        assert ask(ports[leader], client(files), "bind", bind) == {"Error": ""}
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(ports[leader], client(files, known=False), "bind", bind | {"PodName": "b", "PodUID": "uid-b"})
        assert "nodeName" not in api.pods["b"]["spec"]

        replicas[leader].stop.set()
        until(lambda: replicas[other].why_not == "")
        threads[leader].join(60)
        args = {"Pod": pod("b", 4), "NodeNames": ["n"]}
        assert ask(ports[other], client(files), "filter", args)["NodeNames"] == ["n"]
        args = {"Pod": pod("c", 5), "NodeNames": ["n"]}
        assert "no single GPU has 5" in ask(ports[other], client(files), "filter", args)["FailedNodes"]["n"]
    finally:
        for replica in replicas.values():
            replica.stop.set()
        for thread in threads.values():
            thread.join(60)


@pytest.fixture
def quick(monkeypatch) -> None:
    """The Lease is tended often."""
    monkeypatch.setattr(program, "RENEW", 0.1)
    monkeypatch.setattr(apiserver, "RETRY", 0.05)


@pytest.mark.usefixtures("quick")
def test_a_replica_that_lost_the_lead_answers_nobody(files: Path, monkeypatch):
    """On a connection that the scheduler keeps neither: its ledger is old."""
    api, clock = Cluster(pod("a", 6)), Clock()
    lease = Lease(api, "gpunode", "share", "x", clock)
    args = {"Pod": pod("a", 6), "NodeNames": ["n"]}
    with (
        running(api, files, lease) as (port, replica, _),
        connected(port, client(files)) as kept,
    ):
        assert on(kept, "filter", args)["NodeNames"] == ["n"]
        monkeypatch.setattr(api, "fail", ApiError(0, "away"))
        while lease.leads:  # a renewal under way counts from its beginning
            clock.now += SURE
        until(lambda: replica.why_not == STANDBY)

        def closed() -> bool:
            try:
                assert "does not lead" in on(kept, "filter", args)["Error"]
            except (OSError, http.client.HTTPException):
                return True
            return False

        until(closed)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("ready", ["Unknown", "False", ""])
def test_a_replica_of_a_lost_node_does_not_lead(files: Path, ready: str):
    """Its process goes on, but the Service leads there no more: another has to."""
    api, clock = Cluster(), Clock()
    lease, other = Lease(api, "gpunode", "share", "x", clock), Lease(api, "gpunode", "share", "y", clock)
    with running(api, files, lease) as (_, replica, _):
        api.ready = ready

        def over() -> bool:
            clock.now += 1
            other.tend()
            return other.leads

        until(over)
        until(lambda: replica.why_not == STANDBY)
        other.release()
        api.ready = "True"
        until(lambda: replica.why_not == "")


@pytest.mark.usefixtures("quick")
def test_the_lead_is_not_handed_over_before_a_bind_has_ended(files: Path, monkeypatch):
    """The next one's list would not have it."""
    api = Cluster(pod("a", 6))
    begun, go, holders = threading.Event(), threading.Event(), []
    send = api.send

    def slow(method: str, path: str, body: Any = None) -> None:
        if "/binding" in path:
            begun.set()
            assert go.wait(20)
            holders.append(api.lease["spec"]["holderIdentity"])
        send(method, path, body)

    monkeypatch.setattr(api, "send", slow)
    lease = Lease(api, "gpunode", "share", "x")
    body = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n"}
    with running(api, files, lease) as (port, replica, thread), ThreadPoolExecutor(1) as pool:
        answer = pool.submit(ask, port, client(files), "bind", body)
        assert begun.wait(20)
        replica.stop.set()
        until(lambda: replica.why_not == STANDBY)
        thread.join(1)
        go.set()
        assert answer.result(20) == {"Error": ""}
        thread.join(60)
    assert holders == ["x"]
    assert api.lease["spec"]["holderIdentity"] == ""


def test_the_kubelet_is_told_why_it_is_not_ready():
    """It is alive all the same."""
    why = STANDBY
    with Probes(("127.0.0.1", 0), lambda: why) as probes:
        threading.Thread(target=probes.serve_forever, daemon=True).start()

        def get(path: str) -> tuple[int, str]:
            with closing(
                http.client.HTTPConnection("127.0.0.1", probes.server_address[1], timeout=20)
            ) as asked:
                asked.request("GET", path)
                answer = asked.getresponse()
                return answer.status, answer.read().decode()

        assert get("/readyz") == (503, f"{STANDBY}\n")
        assert get("/healthz") == (200, "ok\n")
        assert get("/metrics")[0] == 404
        why = ""
        assert get("/readyz") == (200, "ok\n")
        probes.shutdown()


def test_certificates_are_kept_while_they_can_be_used():
    """Another set would start the scheduler again."""
    made = deployment.make_certificates()
    assert deployment.are_usable(made)
    assert not deployment.are_usable(None)
    assert not deployment.are_usable(made | {"tls.crt": "bm9uZQ=="})
    assert not deployment.are_usable({name: text for name, text in made.items() if name != "client.key"})


@pytest.mark.parametrize("hours", [-1, 0, 1])
def test_certificates_are_valid_where_clocks_are_apart(hours: int):
    """The operator's machine makes them; the scheduler's and the extender's judge them, an hour behind or ahead."""
    then = datetime.now(timezone.utc) + timedelta(hours=hours)
    made = deployment.make_certificates()
    for name in ("ca.crt", "tls.crt", "client.crt"):
        each = x509.load_pem_x509_certificate(base64.b64decode(made[name]))
        assert each.not_valid_before_utc + timedelta(minutes=5) < then < each.not_valid_after_utc, name


HELLO = b"\x16\x03\x01\x02\x00"  # the first five bytes of a TLS handshake
ARGS = {"Pod": pod("p0", 4), "NodeNames": ["n"]}
MOST = 8


@contextmanager
def serving(made: server.Guarded) -> Iterator[int]:
    """The port of the server, while it serves."""
    with made:
        threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True).start()
        yield int(made.server_address[1])
        made.shutdown()


@pytest.fixture
def port(files: Path, monkeypatch) -> Iterator[int]:
    """Of an extender that lets so many strangers in at once, for as long as they like."""
    monkeypatch.setattr(server, "STRANGERS", MOST)
    monkeypatch.setattr(server, "GREETING", 3600.0)
    extender = Extender(Ledger.of(MEM, [node("n", 10)], []), Pods())
    with serving(Server(("127.0.0.1", 0), extender, trust(files))) as port:
        yield port


@contextmanager
def crowd(port: int, many: int, text: bytes = HELLO) -> Iterator[list[socket.socket]]:
    """So many clients that begin to speak and never end; in the order in which they came."""
    with ExitStack() as stack:
        answers = []
        for _ in range(many):
            each = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            each.sendall(text)
            answers.append(each)
        yield answers


def closed(connection: socket.socket) -> bool:
    """Whether the server has ended the connection; waits for that."""
    with suppress(ConnectionResetError):
        return connection.recv(1) == b""
    return True


def still_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        return connection.recv(1) != b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return True


def test_a_crowd_without_certificates_keeps_no_scheduler_out(files: Path, port: int):
    """The oldest of it make room, before there is a thread for who comes next."""
    before = threading.active_count()
    with crowd(port, 3 * MOST) as those:
        assert ask(port, client(files), "filter", ARGS)["NodeNames"] == ["n"]
        assert all(closed(each) for each in those[: 2 * MOST + 1])
        assert all(still_open(each) for each in those[2 * MOST + 1 :])
        until(lambda: threading.active_count() <= before + MOST)


def test_a_known_scheduler_does_not_make_room(files: Path, port: int):
    """It is asked again on the connection that it keeps."""
    with connected(port, client(files)) as kept:
        assert on(kept, "filter", ARGS)["NodeNames"] == ["n"]
        with crowd(port, 2 * MOST) as those:
            assert all(closed(each) for each in those[:MOST])
            assert on(kept, "filter", ARGS)["NodeNames"] == ["n"]


def test_a_handshake_has_a_deadline_however_it_drips(port: int, monkeypatch):
    """A byte now and then does not put it off."""
    monkeypatch.setattr(server, "GREETING", 0.3)
    with crowd(port, 1, HELLO) as (connection,):
        ended = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not ended.wait(0.05):
                    connection.sendall(b"\x01")

        threading.Thread(target=drip, daemon=True).start()
        assert closed(connection)
        ended.set()


def test_a_connection_takes_one_descriptor(port: int):
    """A copy of each halves how many there can be."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    before, threads = len(os.listdir(folder)), threading.active_count()
    with crowd(port, MOST):
        until(lambda: threading.active_count() == threads + MOST)
        assert len(os.listdir(folder)) == before + 2 * MOST  # the clients' ends are in this process, too


def test_a_crowd_keeps_no_probe_out(monkeypatch):
    """Nor does it take the descriptors that the scheduler's connections need."""
    monkeypatch.setattr(server, "PROBE_STRANGERS", MOST)
    with (
        serving(Probes(("127.0.0.1", 0), lambda: "")) as port,
        crowd(port, 3 * MOST, b"GET /hea") as those,
    ):
        asked = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        asked.request("GET", "/healthz")
        assert asked.getresponse().read() == b"ok\n"
        asked.close()
        assert all(closed(each) for each in those[: 2 * MOST + 1])
