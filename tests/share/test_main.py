"""The program: with TLS, behind probes, and only while it leads."""

from __future__ import annotations

import argparse
import base64
import http.client
import json
import socket
import ssl
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpunode.cluster.extender import certificates
from gpunode.deviceplugin.cluster import follow
from gpunode.share import __main__ as program
from gpunode.share.__main__ import STANDBY, Replica, trust
from gpunode.share.lease import Lease
from gpunode.share.probes import Probes
from tests.share.objects import Pods, node, pod
from tests.share.test_follow import until
from tests.share.test_lease import Leases


class Cluster(Leases, Pods):
    """Nodes, pods and the Lease."""

    def __init__(self, *pods: Any) -> None:
        Leases.__init__(self)
        Pods.__init__(self, *pods)
        self.fail = None  # of Leases

    def get(self, path: str) -> Any:
        if "/leases" in path:
            return Leases.get(self, path)
        if path.startswith("/api/v1/nodes?"):
            return {"items": [node("n", 4, 8, published=True)], "metadata": {"resourceVersion": "1"}}
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
        return iter(())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """The certificates of a Secret."""
    for name, text in certificates.made().items():
        (tmp_path / name).write_bytes(base64.b64decode(text))
    return tmp_path


def client(files: Path, *, known: bool = True) -> ssl.SSLContext:
    """As the scheduler's, which knows the server by name though it asks an address."""
    context = ssl.create_default_context(cafile=str(files / "ca.crt"))
    if known:
        context.load_cert_chain(files / "client.crt", files / "client.key")
    return context


def ask(port: int, context: ssl.SSLContext, verb: str, body: Any) -> Any:
    plain = socket.create_connection(("127.0.0.1", port), timeout=20)
    with context.wrap_socket(plain, server_hostname=certificates.SERVER) as secure:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
        connection.sock = secure
        connection.request("POST", f"/share/{verb}", json.dumps(body))
        return json.loads(connection.getresponse().read())


def test_one_replica_serves_the_scheduler_and_nobody_else(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By certificate; the other takes over when it ends, with a ledger of its own."""
    monkeypatch.setattr(program, "RENEW", 0.1)
    monkeypatch.setattr(follow, "RETRY", 0.05)
    api = Cluster(pod("a", 6), pod("b", 4))
    ports = {name: free_port() for name in "xy"}
    replicas, threads = {}, {}
    for name in "xy":
        options = argparse.Namespace(resource="aliyun.com/gpu-mem", policy="packed", port=ports[name])
        replicas[name] = Replica(options, trust(files), api)  # type: ignore[arg-type]
        lease = Lease(api, "gpunode", "share", name)
        threads[name] = threading.Thread(target=replicas[name].run, args=(lease,), daemon=True)
        threads[name].start()
    try:
        until(lambda: "" in [one.why_not for one in replicas.values()])
        (leader,) = [name for name, one in replicas.items() if not one.why_not]
        other = "y" if leader == "x" else "x"
        assert replicas[other].why_not == STANDBY

        bind = {"PodName": "a", "PodNamespace": "default", "PodUID": "uid-a", "Node": "n"}
        assert ask(ports[leader], client(files), "bind", bind) == {"Error": ""}
        with pytest.raises((OSError, http.client.HTTPException)):
            ask(ports[leader], client(files, known=False), "bind", bind | {"PodName": "b", "PodUID": "uid-b"})
        assert "nodeName" not in api.pods["b"]["spec"]

        replicas[leader].stop.set()
        until(lambda: replicas[other].why_not == "")
        threads[leader].join(20)
        args = {"Pod": pod("b", 4), "NodeNames": ["n"]}
        assert ask(ports[other], client(files), "filter", args)["NodeNames"] == ["n"]
        args = {"Pod": pod("c", 5), "NodeNames": ["n"]}
        assert "no single GPU has 5" in ask(ports[other], client(files), "filter", args)["FailedNodes"]["n"]
    finally:
        for one in replicas.values():
            one.stop.set()
        for thread in threads.values():
            thread.join(20)


def test_the_kubelet_is_told_why_it_is_not_ready() -> None:
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


def test_certificates_are_kept_while_they_can_be_used() -> None:
    """Another set would start the scheduler again."""
    made = certificates.made()
    assert certificates.usable(made)
    assert not certificates.usable(None)
    assert not certificates.usable(made | {"tls.crt": "bm9uZQ=="})
    assert not certificates.usable({name: text for name, text in made.items() if name != "client.key"})
