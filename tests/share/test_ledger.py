"""The books: what nodes have, what is promised of it, by whatever annotations, in whatever order it is seen."""

import json
import random
from typing import Any

import pytest

from gpunode.contract import status
from gpunode.contract.promises import ALLOCATION, INDEX, MEMORY_ANNOTATION, POD, demand_of
from gpunode.contract.status import Configuration, Status, Unavailable
from gpunode.share.fit import Refused, find, score
from gpunode.share.ledger import Ledger
from tests import tables
from tests.share.objects import COUNT, MEM, free, node, pod

LOST = status.dumps(
    Status("", Configuration("none", "memory", ()), lost=(Unavailable("GPU-n-1", "1", "xid-79", "gone"),))
)


def own(on: str, **containers: list[int]) -> dict[str, str]:
    """gpunode's own annotation: indexes by container."""
    placed = {
        name: [{"index": str(index), "uuid": ""} for index in indexes] for name, indexes in containers.items()
    }
    return {MEMORY_ANNOTATION: json.dumps({"version": 1, "node": on, "containers": placed})}


@pytest.mark.parametrize(
    ("seen", "expected"),
    [
        (node("n", 10, 10), (10, 10)),
        (node("n", 10, 20, published=True), (10, 20)),
        (node("n", 10, 20, published=True) | {"status": {"capacity": {MEM: "30"}}}, (10, 20)),
        (node("n", 10, 10, **{status.ANNOTATION: LOST}), (10, 0)),
        (node("n", 10, 20, published=True, **{status.ANNOTATION: LOST}), (10, 0)),
        (node("n", 10, 10, **{status.ANNOTATION: "no JSON"}), (10, 10)),
        ({"metadata": {"name": "n"}, "status": {"capacity": {MEM: "16k", COUNT: "2"}}}, (8000, 8000)),
    ],
)
def test_a_nodes_gpus_are_what_it_publishes(seen: Any, expected: tuple[int, ...]):
    """Sizes of its annotation, else its memory by its GPUs; a GPU that is lost has nothing free."""
    assert free(Ledger.of(MEM, [seen], [])) == expected


@tables.rows("unknown-gpus")
def test_a_node_whose_gpus_are_unknown_promises_nothing(seen: Any, code: str):
    """Each with its reason."""
    book = Ledger.of(MEM, [seen], []).book("n")

    assert book.why.code == code
    with pytest.raises(Refused):
        find(book, demand_of(pod("p", 1), MEM), packed=True)


@pytest.mark.parametrize(
    ("bound", "expected"),
    [
        # gpushare's extender writes the GPU of the whole pod
        (pod("p", 4, on="n", **{INDEX: "1", POD: "4"}), (10, 6)),
        (pod("p", 4, 2, on="n", **{INDEX: "1"}), (10, 4)),
        (pod("p", 4, on="n", **{INDEX: "1", POD: "1000"}), (10, 6)),
        (pod("p", 4, on="n", **{INDEX: "1"}, phase="Succeeded"), (10, 10)),
        (pod("p", 4, on="n", **{INDEX: "1"}, phase="Failed"), (10, 10)),
        # ACK's has indexes by container
        (pod("p", 4, 2, on="n", **{ALLOCATION: '{"0":{"1":4},"1":{"0":2}}'}), (8, 6)),
        (pod("p", 4, on="n", gpus=2, **{ALLOCATION: '{"0":{"1":2,"0":2}}'}), (8, 8)),
        (pod("p", 4, 2, on="n", **own("n", c0=[1], c1=[0])), (8, 6)),
        (pod("p", 4, on="n", gpus=2, **own("n", c0=[0, 1])), (8, 8)),
        # the label was edited since
        (pod("p", 4, on="n", gpus=3, **own("n", c0=[0, 1])), (8, 8)),
        (pod("p", *[1] * 101, on="n", **{INDEX: "1"}), (10, 0)),
        # GPU not known: each can be the one
        (pod("p", 4, on="n"), (6, 6)),
        (pod("p", 4, on="n", **own("m", c0=[1])), (6, 6)),
        (pod("p", 4, on="n", **own("n", c0=[0, 1, 2])), (6, 6)),
        (pod("p", 4, on="n", **{ALLOCATION: '{"0":{"0":1,"1":2}}'}), (6, 6)),
        (pod("p", 4, on="n", **own("n", c0=[7])), (6, 6)),
        (pod("p", 4, on="n", **own("n")), (6, 6)),
        (pod("p", 4, on="n", **{MEMORY_ANNOTATION: "{"}), (6, 6)),
        (pod("p", 4, on="n", **{MEMORY_ANNOTATION: '{"version":2}'}), (6, 6)),
        (pod("p", 4, on="n", **{INDEX: "-1"}), (6, 6)),
        (pod("p", 4, on="n", **{INDEX: "GPU"}), (6, 6)),
        (pod("p", 4, on="n", **{ALLOCATION: '{"0":{"1":-4}}'}), (6, 6)),
        (pod("p", 4, on="n", init=[6], **own("n", c0=[1])), (4, 4)),
        # not bound: gpushare's extender ended between its two writes
        (pod("p", 4, **{INDEX: "1"}), (10, 10)),
        (pod("p", 0, on="n", **{INDEX: "1", POD: "4"}), (10, 10)),
        (pod("p", -4, on="n", **{INDEX: "1"}), (10, 10)),
        (pod("p", 400, on="n", **{INDEX: "1"}), (10, 0)),
        (pod("p", 4, on="elsewhere", **{INDEX: "1"}), (10, 10)),
    ],
)
def test_promises_are_read_from_pods(bound: Any, expected: tuple[int, ...]):
    """Annotations say where, the pod's spec how much; the node may be seen first or last, and the pod again."""
    ledger = Ledger.of(MEM, [node("n", 10, 10)], [bound, bound])
    later = Ledger.of(MEM, [], [bound])
    later.put_node(node("n", 10, 10))

    assert free(ledger) == expected
    assert later.books() == ledger.books()

    ledger.drop_pod("uid-p")
    assert free(ledger) == (10, 10)


def test_a_uuid_outlives_its_index():
    """A GPU is lost, and the others are counted anew: what is promised stays with its GPU."""
    placed = json.dumps(
        {"version": 1, "node": "n", "containers": {"c0": [{"index": "1", "uuid": "GPU-n-1"}]}}
    )
    ledger = Ledger.of(
        MEM, [node("n", 10, 20, published=True)], [pod("p", 4, on="n", **{MEMORY_ANNOTATION: placed})]
    )
    assert free(ledger) == (10, 16)

    table = {"version": 1, "gpus": [{"index": "0", "uuid": "GPU-n-1", "units": 20}]}
    ledger.put_node(node("n", 30, **{MEMORY_ANNOTATION: json.dumps(table)}))
    assert free(ledger) == (16,)


@pytest.mark.parametrize(
    ("asking", "code"),
    [
        (pod("p", 6), ""),
        (pod("p", 8), "fragmented"),
        (pod("p", 11), "too-large"),
        (pod("p", 10, 10), "full"),
        (pod("p", 5, 5), "fragmented"),
        (pod("p", 10, gpus=2), "fragmented"),
        (pod("p", 8, gpus=2), ""),
        (pod("p", 12, gpus=3), "too-few-gpus"),
        (pod("p", 4, init=[4]), "init-container"),
        (pod("p", 4, sidecars=[4]), ""),
        (pod("p", 2**63 - 1), "too-large"),
    ],
)
def test_why_a_node_does_not_fit_is_a_code_and_words(asking: Any, code: str):
    """With 4 and 6 units free of two GPUs."""
    on = [pod("a", 6, on="n", **own("n", c0=[0])), pod("b", 4, on="n", **own("n", c0=[1]))]
    book = Ledger.of(MEM, [node("n", 10, 10)], on).book("n")
    wanted = demand_of(asking, MEM)
    if not code:
        assert find(book, wanted, packed=True)
        return
    with pytest.raises(Refused) as refused:
        find(book, wanted, packed=True)
    assert refused.value.reason.code == code
    assert refused.value.reason.words
    assert score(book, wanted, packed=True) == 0


def test_scores_fill_nodes_or_leave_them_empty():
    """Between 0 and 10."""
    on = [pod("a", 6, on="full", **own("full", c0=[0]))]
    ledger = Ledger.of(MEM, [node("full", 10), node("empty", 10)], on)
    wanted = demand_of(pod("p", 2), MEM)

    packed = [score(ledger.book(name), wanted, packed=True) for name in ("full", "empty", "none")]
    distributed = [score(ledger.book(name), wanted, packed=False) for name in ("full", "empty", "none")]
    assert (packed, distributed) == ([8, 2, 0], [2, 8, 0])


def test_a_reservation_outlives_older_events_and_gives_way_to_the_binding():
    """A release frees only what is not bound."""
    ledger = Ledger.of(MEM, [node("n", 10, 10)], [])
    waiting = pod("p", 4)
    wanted = demand_of(waiting, MEM)
    ledger.reserve(waiting, wanted, "n", packed=True)
    ledger.put_pod(waiting)
    assert free(ledger) == (6, 10)

    ledger.reserve(waiting, wanted, "n", packed=True)  # the scheduler's next try
    assert free(ledger) == (6, 10)
    ledger.release("uid-p")
    assert free(ledger) == (10, 10)

    ledger.reserve(waiting, wanted, "n", packed=True)
    ledger.put_pod(pod("p", 4, on="n", **own("n", c0=[1])))
    ledger.release("uid-p")
    assert free(ledger) == (10, 6)
    with pytest.raises(Refused):
        ledger.reserve(waiting, wanted, "n", packed=True)


def test_any_order_of_events_makes_the_same_books():
    """What is kept event by event is what a restart makes of the objects as they are in the end."""
    chance = random.Random(4)
    for _ in range(200):
        nodes = {f"n{number}": node(f"n{number}", 10, 10, 10) for number in range(3)}
        pods: dict[str, Any] = {}
        ledger = Ledger(MEM)
        for _ in range(60):
            name = f"p{chance.randint(0, 9)}"
            act = chance.choice(["bind", "bind", "end", "delete", "node", "no node", "again"])
            if act == "bind" and name not in pods:
                on = chance.choice(list(nodes))
                placed = own(on, c0=[chance.randint(0, 2)]) if chance.random() < 0.8 else {}
                pods[name] = pod(name, chance.randint(1, 4), on=on, **placed)
            elif act == "end" and name in pods:
                pods[name]["status"]["phase"] = "Succeeded"
            elif act == "delete" and pods.pop(name, None):
                ledger.drop_pod(f"uid-{name}")
            elif act == "node":
                ledger.put_node(nodes[f"n{chance.randint(0, 2)}"])
            elif act == "no node":
                ledger.drop_node(f"n{chance.randint(0, 2)}")
            if name in pods:
                ledger.put_pod(pods[name])
        for each in nodes.values():
            ledger.put_node(each)
        again = Ledger.of(MEM, nodes.values(), pods.values())
        assert ledger.books() == again.books()
        assert [ledger.promises(name) for name in nodes] == [again.promises(name) for name in nodes]
