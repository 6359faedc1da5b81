"""gpushare's requests, as kube-scheduler sends them by its documented configuration, and what they are answered here.

From AliyunContainerService/gpushare-scheduler-extender: docs/designs/designs.md, docs/userguide.md, pkg/scheduler. Where
the answer differs, the case says so.
"""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gpunode.deviceplugin.promises.bound import BoundPods
from gpunode.deviceplugin.promises.placement import ASSIGNED, ASSUMED, DEV, INDEX, POD
from gpunode.share.ledger import Ledger
from gpunode.share.protocol import Extender
from gpunode.share.server import Server
from tests.share.objects import MEM, Pods, node, pod

PREFIX = "/gpushare-scheduler"


def busy() -> list[Any]:
    """The design's figure: N1's GPUs have 12207 and 8138 MiB free in sum enough, N2's one GPU has 8138, N3's has 0."""
    there = {"N1": [(0, 7)], "N2": [(0, 8)], "N3": [(0, 16)]}
    return [
        pod(f"old-{name}-{number}", units, on=name, **{INDEX: str(gpu), POD: str(units), ASSIGNED: "true"})
        for name, uses in there.items()
        for number, (gpu, units) in enumerate(uses)
    ]


@pytest.fixture
def api() -> Pods:
    return Pods(pod("binpack-1", 2), pod("wide", 9), pod("two", 4, 6))


@pytest.fixture
def port(api: Pods) -> Iterator[int]:
    """Nodes as gpushare's plugin reports them: memory and count, without sizes."""
    ledger = Ledger.of(MEM, [node("N1", 16, 16), node("N2", 16), node("N3", 16), node("cpu")], busy())
    with Server(("127.0.0.1", 0), Extender(ledger, api)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(port: int, verb: str, body: Any) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", f"{PREFIX}/{verb}", json.dumps(body))
        return json.loads(connection.getresponse().read())


NODES = ["N1", "N2", "N3", "cpu"]
FITS = [
    ("one unit of memory", pod("new", 2), ["N1", "N2"], {"N3": "fewer than 2 units", "cpu": "offers no"}),
    (
        "what one GPU has",
        pod("new", 16),
        ["N1"],
        {"N2": "fewer than 16", "N3": "fewer than 16", "cpu": "offers no"},
    ),
    # gpushare says "Insufficient GPU Memory in one device" of every node.
    ("enough in sum only", pod("new", 17), [], {"N1": "no GPU of it has 17", "cpu": "offers no"}),
    ("no memory", pod("new", 0), NODES, {}),
    # gpushare adds the containers up, and fails the pod at its start: each counts here.
    ("two containers, one GPU each", pod("new", 9, 16), ["N1"], {"N2": "fewer than 25"}),
    ("two containers beyond each GPU", pod("new", 10, 17), [], {"N1": "no GPU of it has 17"}),
]


@pytest.mark.parametrize(
    ("asking", "fit", "failed"), [case[1:] for case in FITS], ids=[case[0] for case in FITS]
)
def test_filter(port: int, asking: Any, fit: list[str], failed: dict[str, str]) -> None:
    """`nodeCacheCapable: true`: names in, names out, and a reason for each that failed."""
    answer = ask(port, "filter", {"Pod": asking, "Nodes": None, "NodeNames": NODES})
    assert (answer["NodeNames"], answer["Nodes"], answer["Error"]) == (fit, None, "")
    assert set(answer["FailedNodes"]) == set(NODES) - set(fit)
    for name, words in failed.items():
        assert words in answer["FailedNodes"][name]


def test_bind_writes_gpushares_annotations(port: int, api: Pods) -> None:
    """Onto the GPU with the least memory that is enough; gpushare patches the pod first and binds it then, this does both at once."""
    body = {"PodName": "binpack-1", "PodNamespace": "default", "PodUID": "uid-binpack-1", "Node": "N1"}
    assert ask(port, "bind", body) == {"Error": ""}
    notes = api.pods["binpack-1"]["metadata"]["annotations"]
    assert {key: notes[key] for key in (INDEX, DEV, POD, ASSIGNED)} == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "2",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
    }
    assert notes[ASSUMED].isdecimal()


def test_a_bind_that_has_no_room_is_an_error_in_the_answer(port: int, api: Pods) -> None:
    """gpushare answers HTTP 500; the scheduler reads the field of the protocol of status 200."""
    body = {"PodName": "wide", "PodNamespace": "default", "PodUID": "uid-wide", "Node": "N2"}
    assert "fewer than 9 units of GPU memory are free" in ask(port, "bind", body)["Error"]
    assert "nodeName" not in api.pods["wide"]["spec"]


@pytest.mark.parametrize("skew", [-3600, 0, 3600])
def test_the_time_of_another_clock_decides_nothing(skew: int) -> None:
    """gpushare's plugin takes the pod that was assumed first; here no time of another machine is read."""
    stamp = str(1_700_000_000 * 10**9 + skew * 10**9)
    pods = [
        pod("a", 4, on="n", **{INDEX: "0", ASSIGNED: "false", ASSUMED: str(1_700_000_000 * 10**9)}),
        pod("b", 4, on="n", **{INDEX: "1", ASSIGNED: "false", ASSUMED: stamp}),
    ]
    book = Ledger.of(MEM, [node("n", 16, 16)], pods).book("n")
    assert book is not None
    assert book.free == (12, 12)
    bound = BoundPods("n", MEM)
    for one in pods:
        bound.kind.seen(one)
    places = bound.waiting(4, {}, {"0": "GPU-a", "1": "GPU-b"}, 0)
    assert places == [frozenset({("GPU-a", 4)}), frozenset({("GPU-b", 4)})]
