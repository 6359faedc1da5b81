"""The scheduler's extender API over real HTTP."""

import http.client
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from gpunode.deviceplugin.cluster.apiserver import ApiError
from gpunode.share.ledger import Ledger
from gpunode.share.protocol import Extender
from gpunode.share.server import Server
from tests.share.objects import MEM, Object, Pods, node, pod


@pytest.fixture
def api() -> Pods:
    return Pods(*(pod(f"p{number}", 4) for number in range(20)))


@pytest.fixture
def server(api: Pods) -> Iterator[Server]:
    """Over three nodes: one with room, one that is full, one without GPUs."""
    full = pod("full", 10, on="full")
    ledger = Ledger.of(MEM, [node("room", 10, 10), node("full", 10), node("plain")], [full])
    with Server(("127.0.0.1", 0), Extender(ledger, api)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


def ask(server: Server, verb: str, body: Any, method: str = "POST", **headers: str) -> tuple[int, Any]:
    """Status and answer. A body of bytes goes as it is."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    try:
        text = body if isinstance(body, bytes) else json.dumps(body).encode()
        connection.request(method, f"/gpushare-scheduler/{verb}", text, headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


NAMES = ["room", "full", "plain", "unknown"]


def test_a_filter_by_names_answers_with_names(server: Server):
    """nodeCacheCapable: true. What no preemption changes is in both maps."""
    status, answer = ask(server, "filter", {"Pod": pod("p0", 4), "Nodes": None, "NodeNames": NAMES})

    assert status == 200
    assert answer == {
        "Nodes": None,
        "NodeNames": ["room"],
        "FailedNodes": {
            "full": "fewer than 4 units of GPU memory are free",
            "plain": "it offers no aliyun.com/gpu-mem",
            "unknown": "the extender does not know the node",
        },
        "FailedAndUnresolvableNodes": {
            "plain": "it offers no aliyun.com/gpu-mem",
            "unknown": "the extender does not know the node",
        },
        "Error": "",
    }


def test_a_filter_by_nodes_answers_with_nodes(server: Server):
    """nodeCacheCapable: false, and the small keys of old schedulers."""
    nodes = {"items": [{"metadata": {"name": name, "labels": {"a": name}}} for name in NAMES]}

    status, answer = ask(server, "filter", {"pod": pod("p0", 4), "nodes": nodes})

    assert status == 200
    assert answer["Nodes"] == {"items": [nodes["items"][0]]}
    assert answer["NodeNames"] is None
    assert set(answer["FailedNodes"]) == {"full", "plain", "unknown"}


def test_a_pod_without_gpu_memory_fits_everywhere(server: Server):
    """The extender has no say."""
    body = {"Pod": pod("p0", 0), "NodeNames": NAMES}

    assert ask(server, "filter", body)[1]["NodeNames"] == NAMES
    assert ask(server, "prioritize", body)[1] == [{"Host": name, "Score": 0} for name in NAMES]


def test_priorities_are_a_list(server: Server):
    """One for each node, between 0 and 10."""
    status, answer = ask(server, "prioritize", {"Pod": pod("p0", 10), "NodeNames": NAMES})

    assert (status, answer) == (200, [{"Host": name, "Score": 5 * (name == "room")} for name in NAMES])


def test_a_bind_is_made_or_refused(server: Server, api: Pods):
    """By the protocol's Error, with status 200: of others the scheduler reads no answer."""
    body = {"PodName": "p0", "PodNamespace": "default", "PodUID": "uid-p0", "Node": "room"}

    assert ask(server, "bind", body) == (200, {"Error": ""})
    assert api.pods["p0"]["spec"]["nodeName"] == "room"
    assert ask(server, "bind", body) == (200, {"Error": "default/p0 is bound to room already"})
    status, answer = ask(server, "bind", body | {"PodName": "none"})
    assert status == 200
    assert "not found" in answer["Error"]


GOOD: Object = {"Pod": pod("p0", 4), "NodeNames": NAMES}


def test_a_replica_that_does_not_lead_promises_nothing(api: Pods):
    """Whatever its ledger says."""
    ledger = Ledger.of(MEM, [node("room", 10, 10)], [])
    body = {"PodName": "p0", "PodNamespace": "default", "PodUID": "uid-p0", "Node": "room"}
    with Server(("127.0.0.1", 0), Extender(ledger, api, leads=lambda: False)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        assert "does not lead" in ask(server, "filter", GOOD)[1]["Error"]
        assert ask(server, "prioritize", GOOD)[0] == 503
        assert "does not lead" in ask(server, "bind", body)[1]["Error"]
        server.shutdown()
    assert api.bindings == 0


def test_a_pod_whose_bind_failed_is_not_in_its_own_way(server: Server, api: Pods):
    """What is reserved for it counts against others only."""
    body = {"PodName": "p0", "PodNamespace": "default", "PodUID": "uid-p0", "Node": "room"}
    api.pods["p0"] = pod("p0", 8, 8)

    def away(method: str, _path: str) -> None:
        if method == "POST":
            raise ApiError(503, "away")

    api.fail = away
    assert "away" in ask(server, "bind", body)[1]["Error"]
    api.fail = lambda *_: None
    own, other = ({"Pod": item, "NodeNames": ["room"]} for item in (api.pods["p0"], pod("p1", 4)))
    assert ask(server, "filter", other)[1]["NodeNames"] == []
    assert ask(server, "filter", own)[1]["NodeNames"] == ["room"]
    assert ask(server, "prioritize", own)[1] == [{"Host": "room", "Score": 8}]
    assert ask(server, "bind", body)[1] == {"Error": ""}


MISTAKES = [
    b"",
    b"{",
    b"\xff\xfe",
    b"[" * 100_000,
    b'{"Pod": ' + b"9" * 5000 + b"}",
    b"null",
    b"[]",
    {},
    {"Pod": None, "NodeNames": NAMES},
    {"Pod": 4, "NodeNames": NAMES},
    {"Pod": {}, "NodeNames": NAMES},
    GOOD | {"NodeNames": "room"},
    GOOD | {"NodeNames": [4]},
    GOOD | {"NodeNames": None},
    GOOD | {"NodeNames": None, "Nodes": {"items": [{}]}},
    GOOD | {"NodeNames": None, "Nodes": {"items": 4}},
    GOOD | {"Pod": pod("p0", -1)},
    GOOD | {"Pod": pod("p0", 10**40)},
    GOOD | {"Pod": pod("p0", "1e99")},
    GOOD | {"Pod": pod("p0", 10, gpus=3)},
]


@pytest.mark.parametrize("body", MISTAKES, ids=lambda body: str(body)[:40])
def test_mistakes_are_answered_by_the_protocols_error(server: Server, body: Any):
    """And the server goes on."""
    status, answer = ask(server, "filter", body)
    assert status == 200
    assert answer["Error"]
    assert not answer.get("NodeNames")
    assert ask(server, "prioritize", body)[0] == 400

    assert ask(server, "filter", GOOD)[1]["NodeNames"] == ["room"]


NOBODY = {"PodName": "none", "PodNamespace": "default", "PodUID": "u", "Node": "room"}


WRONG_BINDS = [
    b"{",
    [],
    {},
    {"PodName": "p0"},
    NOBODY,
    NOBODY | {"PodName": 4},
    NOBODY | {"PodName": "\ud800"},
    NOBODY | {"PodName": "../p0"},
    NOBODY | {"PodUID": ""},
]


@pytest.mark.parametrize("body", WRONG_BINDS, ids=ascii)
def test_a_mistaken_bind_binds_nothing(server: Server, api: Pods, body: Any):
    """Not even one whose name leads elsewhere in the API."""
    status, answer = ask(server, "bind", body)

    assert status == 200
    assert answer["Error"]
    assert api.bindings == 0


def test_other_requests_are_answered_too(server: Server):
    """Whether it lives, and what is not there."""
    assert ask(server, "healthz", b"", "GET")[0] == 404  # probes have a port of their own
    assert ask(server, "filter", b"", "GET")[0] == 404
    assert ask(server, "unbind", {})[0] == 404
    assert ask(server, "preempt", {})[0] == 400  # no field for an error
    assert ask(server, "filter", b"", **{"Content-Length": "many"})[0] == 411
    assert ask(server, "filter", b"", **{"Content-Length": "9" * 30})[0] == 413


def test_one_connection_serves_many_requests(server: Server):
    """As the scheduler uses it."""
    connection = http.client.HTTPConnection(*server.server_address[:2], timeout=10)
    for _ in range(3):
        connection.request("POST", "/filter", json.dumps(GOOD))
        assert json.loads(connection.getresponse().read())["NodeNames"] == ["room"]
        assert connection.sock is not None
    connection.close()


def test_a_body_that_ends_early_is_not_answered(server: Server):
    """As when the server leaves in the middle of a request: its sender would read that its pod is no JSON."""
    address: Any = server.server_address[:2]
    with socket.create_connection(address, 10) as client:
        client.sendall(b"POST /filter HTTP/1.1\r\nContent-Length: 50\r\n\r\n{}")
        client.shutdown(socket.SHUT_WR)
        assert client.recv(100) == b""


def test_binds_side_by_side_take_what_there_is(server: Server, api: Pods):
    """Twenty pods of 4, two GPUs of 10: four are bound."""
    bodies = [
        {"PodName": f"p{number}", "PodNamespace": "default", "PodUID": f"uid-p{number}", "Node": "room"}
        for number in range(20)
    ]
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda body: ask(server, "bind", body)[1]["Error"], bodies))

    assert (answers.count(""), api.bindings) == (4, 4)


def test_the_extender_needs_only_what_is_in_the_plugins_image():
    """It is to run in the plugin's image, which has nothing else of gpunode."""
    program = (
        "import sys, gpunode.share.server\n"
        "names = [name for name in sys.modules if name.startswith('gpunode.')]\n"
        "parts = 'gpunode.contract', 'gpunode.deviceplugin', 'gpunode.share'\n"
        "print([name for name in names if not name.startswith(parts)])\n"
        "print([name for name in ('yaml', 'grpc', 'typer', 'rich', 'kubernetes', 'paramiko') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[0] == "[]"
    assert set(json.loads(done.stdout.splitlines()[1].replace("'", '"'))) <= {"yaml"}
