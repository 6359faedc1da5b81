"""gpushare's requests, as kube-scheduler sends them by its documented configuration, and what they are answered here.

The real extender's answers (AliyunContainerService/gpushare-scheduler-extender, commit c0b6141, built with its own go.mod) to
the same requests about the same nodes and pods are recorded beside ours; `gpunode.sim` was its API server.
"""

import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from gpunode.contract.promises import ASSIGNED, ASSUMED, DEV, INDEX, POD
from gpunode.deviceplugin.kubelet.promised import BoundPods
from gpunode.share.ledger import Ledger
from gpunode.share.protocol import Extender
from gpunode.share.server import Server
from tests.share.objects import MEM, Pods, node, pod

PREFIX = "/gpushare-scheduler"


def busy() -> list[Any]:
    """The design's figure: N1's GPUs have 12207 and 8138 MiB free in sum enough, N2's one GPU has 8138, N3's has 0. And pods
    of which the two think otherwise, each on a node of its name."""
    there = {"N1": [(0, 7)], "N2": [(0, 8)], "N3": [(0, 16)]}
    old = [
        pod(f"old-{name}-{number}", units, on=name, **{INDEX: str(gpu), POD: str(units), ASSIGNED: "true"})
        for name, uses in there.items()
        for number, (gpu, units) in enumerate(uses)
    ]
    noted = {INDEX: "0", POD: "12", ASSIGNED: "true"}
    leaving = pod("d", 12, on="leaving", phase="Running", **noted)
    leaving["metadata"]["deletionTimestamp"] = "2026-11-22T00:00:00Z"
    return [
        *old,
        pod("a", 12, on="unnoted", phase="Running"),
        pod("b", 12, on="edited", phase="Running", **{**noted, POD: "1"}),
        pod("c", 12, on="ended", phase="Succeeded", **noted),
        leaving,
    ]


def nodes() -> list[Any]:
    """As gpushare's plugin reports them: memory and count, without sizes."""
    unlike = node("unlike", 16, 15)
    unlike["status"]["capacity"][MEM] = "31"
    alike = [node(name, 16) for name in ("N2", "N3", "unnoted", "edited", "leaving", "ended")]
    return [node("N1", 16, 16), node("cpu"), unlike, *alike]


@pytest.fixture
def api() -> Pods:
    return Pods(pod("binpack-1", 2), pod("wide", 9), pod("two", 4, 6))


@pytest.fixture
def port(api: Pods) -> Iterator[int]:
    ledger = Ledger.of(MEM, nodes(), busy())
    with Server(("127.0.0.1", 0), Extender(ledger, api)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def ask(port: int, verb: str, body: Any) -> Any:
    with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=20)) as connection:
        connection.request("POST", f"{PREFIX}/{verb}", json.dumps(body))
        return json.loads(connection.getresponse().read())


NODES = ["N1", "N2", "N3", "cpu", "unlike", "unnoted", "edited", "leaving", "ended"]
ODD = {"unlike", "unnoted", "edited", "leaving"}  # nodes of which gpushare counts less
WORDS = {
    "unlike": "its GPUs differ",  # gpushare halves their sum: 15 for one of 16 and one of 15
    # Counted whole and on every GPU, by the spec, and until its containers end.
    **dict.fromkeys(("unnoted", "edited", "leaving"), "units of GPU memory are free"),
}
FITS: list[tuple[str, Any, set[str], set[str]]] = [  # where it fits by gpushare, and where here
    ("little", pod("new", 4), {"N1", "N2", *ODD, "ended"}, {"N1", "N2", "unnoted", "edited", "leaving", "ended"}),
    ("more than is left of some", pod("new", 5), {"N1", "N2", *ODD, "ended"}, {"N1", "N2", "ended"}),
    ("nearly a GPU", pod("new", 15), {"N1", *ODD, "ended"}, {"N1", "ended"}),
    ("a whole GPU", pod("new", 16), {"N1", "unnoted", "leaving", "ended"}, {"N1", "ended"}),
    ("another writing of it", pod("new", "16.0"), {"N1", "unnoted", "leaving", "ended"}, {"N1", "ended"}),
    ("enough in sum only", pod("new", 17), set(), set()),
    ("no memory", pod("new", 0), {*NODES} - {"cpu"}, {*NODES}),  # gpushare's is never asked
    # gpushare adds the containers up, for one GPU, and its plugin fails the pod's start; here each has its own.
    ("two containers, a GPU each", pod("new", 9, 16), set(), {"N1"}),
    ("two containers beyond each GPU", pod("new", 10, 17), set(), set()),
    # ACK's label, which the public extender does not know.
    ("half of each of two GPUs", pod("new", 18, gpus=2), set(), {"N1"}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("asking", "theirs", "ours"), [case[1:] for case in FITS], ids=[case[0] for case in FITS]
)
def test_filter(port: int, asking: Any, theirs: set[str], ours: set[str]):
    """`nodeCacheCapable: true`: names in, names out, and a reason for each that failed; gpushare's is always "Insufficient GPU
    Memory in one device"."""
    answer = ask(port, "filter", {"Pod": asking, "Nodes": None, "NodeNames": NODES})
    assert (set(answer["NodeNames"]), answer["Nodes"], answer["Error"]) == (ours, None, "")
    assert set(answer["FailedNodes"]) == set(NODES) - ours
    for name in theirs - ours:
        assert WORDS[name] in answer["FailedNodes"][name]


def test_a_pod_whose_init_container_asks_for_memory_fits_nowhere(port: int):
    """gpushare counts no init container; which of its units the others get is the kubelet's choice."""
    answer = ask(port, "filter", {"Pod": pod("new", 2, init=[17]), "NodeNames": ["N1", "N2"]})
    assert answer["NodeNames"] == []
    assert all("its init container asks" in words for words in answer["FailedNodes"].values())


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"NodeNames": NODES}, "expected a pod"),  # gpushare: "arg or pod is nil"
        ({"Pod": pod("new", 2)}, "expected NodeNames or Nodes"),  # "cannot get node names"
        ({"Pod": pod("new", "x"), "NodeNames": NODES}, "expected a quantity"),  # "quantities must match …"
        ({"Pod": pod("new", "-4"), "NodeNames": NODES}, "from 0"),  # no error, but no node has room
    ],
)
def test_a_filter_that_cannot_be_read_is_an_error_in_the_answer(port: int, body: Any, words: str):
    """Of status 200, from both."""
    assert words in ask(port, "filter", body)["Error"]


def test_bind_writes_gpushares_annotations(port: int, api: Pods):
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


def test_a_bind_that_has_no_room_is_an_error_in_the_answer(port: int, api: Pods):
    """gpushare answers HTTP 500; the scheduler reads the field of the protocol of status 200."""
    body = {"PodName": "wide", "PodNamespace": "default", "PodUID": "uid-wide", "Node": "N2"}
    assert "fewer than 9 units of GPU memory are free" in ask(port, "bind", body)["Error"]
    assert "nodeName" not in api.pods["wide"]["spec"]


@pytest.mark.parametrize("skew", [-3600, 0, 3600])
def test_the_time_of_another_clock_decides_nothing(skew: int):
    """gpushare's plugin takes the pod that was assumed first; here no time of another machine is read."""
    stamp = str(1_700_000_000 * 10**9 + skew * 10**9)
    pods = [
        pod("a", 4, on="n", **{INDEX: "0", ASSIGNED: "false", ASSUMED: str(1_700_000_000 * 10**9)}),
        pod("b", 4, on="n", **{INDEX: "1", ASSIGNED: "false", ASSUMED: stamp}),
    ]
    book = Ledger.of(MEM, [node("n", 16, 16)], pods).book("n")
    assert book.free == (12, 12)
    bound = BoundPods("n", MEM)
    for item in pods:
        bound.kind.seen(item)
    places = bound.wait_for_places(4, {}, {"0": "GPU-a", "1": "GPU-b"}, 0)
    assert places == [frozenset({("GPU-a", 4)}), frozenset({("GPU-b", 4)})]
