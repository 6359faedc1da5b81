"""Clients without a certificate: they keep the extender neither from the scheduler nor from the kubelet."""

from __future__ import annotations

import http.client
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest

from gpunode.share import server
from gpunode.share.__main__ import trust
from gpunode.share.ledger import Ledger
from gpunode.share.protocol import Extender
from gpunode.share.server import Probes, Server
from tests.share.objects import MEM, Pods, node, pod
from tests.share.test_follow import until
from tests.share.test_main import ask, client, connected, files, on

__all__ = ["files"]

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
def port(files: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
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
        found = []
        for _ in range(many):
            one = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            one.sendall(text)
            found.append(one)
        yield found


def closed(one: socket.socket) -> bool:
    """Whether the server has ended the connection; waits for that."""
    with suppress(ConnectionResetError):
        return one.recv(1) == b""
    return True


def still_open(one: socket.socket) -> bool:
    one.setblocking(False)
    try:
        return one.recv(1) != b""
    except (BlockingIOError, ssl.SSLWantReadError):
        return True


def test_a_crowd_without_certificates_keeps_no_scheduler_out(files: Path, port: int) -> None:
    """The oldest of it make room, before there is a thread for who comes next."""
    before = threading.active_count()
    with crowd(port, 3 * MOST) as those:
        assert ask(port, client(files), "filter", ARGS)["NodeNames"] == ["n"]
        assert all(closed(one) for one in those[: 2 * MOST + 1])
        assert all(still_open(one) for one in those[2 * MOST + 1 :])
        until(lambda: threading.active_count() <= before + MOST)


def test_a_known_scheduler_does_not_make_room(files: Path, port: int) -> None:
    """It is asked again on the connection that it keeps."""
    with connected(port, client(files)) as kept:
        assert on(kept, "filter", ARGS)["NodeNames"] == ["n"]
        with crowd(port, 2 * MOST) as those:
            assert all(closed(one) for one in those[:MOST])
            assert on(kept, "filter", ARGS)["NodeNames"] == ["n"]


def test_a_handshake_has_a_deadline_however_it_drips(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not put it off."""
    monkeypatch.setattr(server, "GREETING", 0.3)
    with crowd(port, 1, HELLO) as (one,):
        ended = threading.Event()

        def drip() -> None:
            with suppress(OSError):
                while not ended.wait(0.05):
                    one.sendall(b"\x01")

        threading.Thread(target=drip, daemon=True).start()
        assert closed(one)
        ended.set()


def test_a_connection_takes_one_descriptor(port: int) -> None:
    """A copy of each halves how many there can be."""
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    before, threads = len(os.listdir(folder)), threading.active_count()
    with crowd(port, MOST):
        until(lambda: threading.active_count() == threads + MOST)
        assert len(os.listdir(folder)) == before + 2 * MOST  # the clients' ends are in this process, too


def test_a_crowd_keeps_no_probe_out(monkeypatch: pytest.MonkeyPatch) -> None:
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
        assert all(closed(one) for one in those[: 2 * MOST + 1])
