"""Pods that have other GPUs than they were promised: the plugin publishes them, the books count both, the extender notes them."""

import json
import random
from typing import Any

import pytest

from gpunode.contract.promises import (
    ALLOCATION,
    ELSEWHERE,
    INDEX,
    MEMORY_ANNOTATION,
    Elsewhere,
    Place,
    elsewhere_fields,
)
from gpunode.deviceplugin.cluster.apiserver import ApiError, Object
from gpunode.deviceplugin.kubelet.promised import BoundPods
from gpunode.share.binding import NotBound, Noting, bind
from gpunode.share.ledger import Ledger
from tests.share.objects import MEM, SCHEDULES, Pods, node, pod

GPUS = {"0": "GPU-n-0", "1": "GPU-n-1", "2": "GPU-n-2"}
Held = dict[tuple[str, str], Place]


def place(**gpus: int) -> Place:
    """By index: g0=4 is four units of GPU 0."""
    return frozenset((GPUS[name[1:]], units) for name, units in gpus.items())


def publishing(there: Object, entries: Any) -> Object:
    """The node with what its plugin publishes of these containers."""
    document = json.loads(there["metadata"]["annotations"][MEMORY_ANNOTATION])
    document[ELSEWHERE] = elsewhere_fields(tuple(entries))
    notes = {**there["metadata"]["annotations"], MEMORY_ANNOTATION: json.dumps(document)}
    return {**there, "metadata": {**there["metadata"], "annotations": notes}}


def moved(name: str, *containers: Place) -> list[Elsewhere]:
    return [
        Elsewhere(f"uid-{name}", f"default/{name}", f"c{number}", container)
        for number, container in enumerate(containers)
    ]


def free(ledger: Ledger) -> tuple[int, ...]:
    book = ledger.book("n")
    assert book is not None
    return book.free


COMPARED: list[tuple[str, list[Object], Held, list[tuple[str, str, bool]], bool]] = [
    ("as noted", [pod("a", 4, on="n", **{INDEX: "0"})], {("default/a", "c0"): place(g0=4)}, [], False),
    ("not there yet", [pod("a", 4, on="n", **{INDEX: "0"})], {}, [], True),
    ("another GPU", [pod("a", 4, on="n", **{INDEX: "0"})], {("default/a", "c0"): place(g1=4)}, [("a", "c0", True)], False),
    ("nobody noted it", [pod("a", 4, on="n")], {("default/a", "c0"): place(g1=4)}, [("a", "c0", False)], False),
    (
        "two of a size swapped",
        [pod("a", 4, on="n", **{INDEX: "0"}), pod("b", 4, on="n", **{INDEX: "1"})],
        {("default/a", "c0"): place(g1=4), ("default/b", "c0"): place(g0=4)},
        [("a", "c0", False), ("b", "c0", False)],
        False,
    ),
    (
        "one container of two",
        [pod("a", 4, 2, on="n", **{ALLOCATION: '{"0":{"0":4},"1":{"1":2}}'})],
        {("default/a", "c0"): place(g0=4), ("default/a", "c1"): place(g0=2)},
        [("a", "c0", False), ("a", "c1", True)],
        False,
    ),
    ("an earlier configuration's", [pod("a", 4, on="n", **{INDEX: "0"})], {("default/a", "c0"): place(g1=3)}, [], False),
    ("an init container's", [pod("a", 4, on="n", init=[6])], {("default/a", "c0"): place(g1=4)}, [], False),
    ("ended", [pod("a", 4, on="n", phase="Failed", **{INDEX: "0"})], {("default/a", "c0"): place(g1=4)}, [], False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("pods", "held", "moved", "waits"), [item[1:] for item in COMPARED], ids=[item[0] for item in COMPARED]
)
def test_the_plugin_compares_notes_with_the_kubelets_record(
    pods: list[Object], held: Held, moved: list[tuple[str, str, bool]], waits: bool
):
    """Pod, container, and whether its GPU gives more than was promised of it, which is an event."""
    bound = BoundPods("n", MEM)
    for item in pods:
        bound.kind.seen(item)
    seen, left = bound.compare(held, GPUS)
    names = [(each.pod.removeprefix("default/"), each.container, each.more) for each in seen]
    assert (names, left) == (moved, waits)


@pytest.mark.parametrize(
    ("holder", "has", "expected"),
    [
        # Both count: the promised GPU, and the one that it has.
        (pod("a", 4, on="n", **{INDEX: "0"}), [place(g1=4)], (6, 6)),
        (pod("a", 4, 2, on="n", **{ALLOCATION: '{"0":{"0":4},"1":{"1":2}}'}), [place(g0=4), place(g0=2)], (4, 8)),
        (pod("a", 4, on="n", **{ALLOCATION: '{"0":{"0":4}}'}), [place(g0=2, g1=2)], (6, 8)),
        # Not recorded: where it is, not everywhere.
        (pod("a", 4, on="n"), [place(g1=4)], (10, 6)),
        (pod("a", 4, on="n", **{INDEX: "x"}), [place(g1=4)], (10, 6)),
        # Not all of its containers are known.
        (pod("a", 4, 2, on="n"), [place(g1=4)], (4, 4)),
        # Noted meanwhile.
        (pod("a", 4, on="n", **{INDEX: "1"}), [place(g1=4)], (10, 6)),
        (pod("other", 4, on="n", **{INDEX: "0"}), [place(g1=4)], (6, 10)),
    ],
)  # fmt: skip
def test_books_count_what_is_noted_and_what_is_published(
    holder: Object, has: list[Place], expected: tuple[int, ...]
):
    """In whatever order they are seen; and only the note once the node publishes nothing more."""
    there = node("n", 10, 10, published=True)
    now = publishing(there, moved("a", *has))
    first, last = Ledger.of(MEM, [now], [holder]), Ledger.of(MEM, [there], [holder])
    last.put_node(now)
    again = Ledger.of(MEM, [], [holder])
    again.put_node(now)
    assert [free(ledger) for ledger in (first, last, again)] == [expected] * 3
    assert first.books() == last.books() == again.books()

    last.put_node(there)
    assert last.books() == Ledger.of(MEM, [there], [holder]).books()
    first.drop_pod(holder["metadata"]["uid"])
    assert free(first) == (10, 10)


UNITS = [f'[{{"uid":"a","container":"c","gpus":{{"GPU-n-0":{units}}}}}]' for units in ("-4", "0", "1e999")]


@pytest.mark.parametrize("text", ['[{"uid":"a"}]', *UNITS, "7", '[["a"]]'])
def test_what_cannot_be_read_moves_nobody(text: str):
    """The sizes beside it still count."""
    there = node("n", 10, 10, published=True)
    document = there["metadata"]["annotations"][MEMORY_ANNOTATION]
    there["metadata"]["annotations"][MEMORY_ANNOTATION] = f'{document[:-1]},"{ELSEWHERE}":{text}}}'
    assert free(Ledger.of(MEM, [there], [pod("a", 4, on="n", **{INDEX: "0"})])) == (6, 10)


def noted(api: Pods, name: str) -> dict[str, str]:
    annotations: dict[str, str] = api.pods[name]["metadata"]["annotations"]
    return annotations


def test_what_a_pod_has_is_noted_on_it_and_then_counts_once():
    """Once: a pod that is noted as it is, is not written again while the node still publishes it."""
    item = pod("a", 4, 2, on="n", **{ALLOCATION: '{"0":{"0":4},"1":{"1":2}}'})
    api = Pods(item)
    there = publishing(node("n", 10, 10, published=True), moved("a", place(g1=4), place(g0=2)))
    ledger = Ledger.of(MEM, [there], [item])
    Noting(ledger, api).tend()
    assert (noted(api, "a")[INDEX], noted(api, "a")[ALLOCATION]) == ("1,0", '{"0":{"1":4},"1":{"0":2}}')
    assert "GPU-n-1" in noted(api, "a")[MEMORY_ANNOTATION]
    assert free(ledger) == (4, 4)  # until the API server says so

    ledger.put_pod(api.pods["a"])
    assert free(ledger) == (8, 6)
    assert ledger.moved_pods() == []
    api.fail = lambda *_: pytest.fail("there is nothing to write")
    Noting(ledger, api).tend()


@pytest.mark.parametrize(
    ("holder", "has"),
    [
        (pod("a", 4, 2, on="n"), [place(g0=4)]),
        (pod("a", 4, on="n"), [place(g0=3, g1=1)]),
        (pod("a", 4, on="n"), [place(g2=4)]),
        (pod("a", 4, on="n", init=[6]), [place(g0=4)]),
        (pod("a", 4, on="m"), [place(g0=4)]),
    ],
    ids=["half", "uneven", "unknown GPU", "init", "another node"],
)
def test_what_annotations_cannot_say_is_not_written(holder: Object, has: list[Place]):
    """Nor is what is known of half of a pod."""
    api = Pods(holder)
    ledger = Ledger.of(MEM, [publishing(node("n", 10, 10, published=True), moved("a", *has))], [holder])
    Noting(ledger, api).tend()
    assert noted(api, "a") == {}


@pytest.mark.parametrize("code", [0, 403, 404, 409, 503])
def test_a_note_that_fails_is_tried_again(code: int):
    """Both GPUs count meanwhile; one pod's conflict keeps no other waiting, and one that is always refused the others only once."""
    pods = [pod(name, 4, on="n", **{INDEX: "0"}) for name in ("a", "b")]
    api = Pods(*pods)
    there = node("n", 10, 10, published=True)
    ledger = Ledger.of(MEM, [publishing(there, [*moved("a", place(g1=4)), *moved("b", place(g1=4))])], pods)

    def fail(method: str, path: str) -> None:
        if method == "PATCH" and "/a/" in path:
            raise ApiError(code, "by the test")

    api.fail = fail
    noting = Noting(ledger, api)
    noting.tend()
    assert noted(api, "b")[INDEX] == ("1" if code in (404, 409) else "0")
    assert free(ledger) == (2, 2)
    noting.tend()
    assert noted(api, "b")[INDEX] == "1"
    api.fail = lambda *_: None
    noting.tend()
    assert [noted(api, name)[INDEX] for name in ("a", "b")] == ["1", "1"]


class Node:
    """A kubelet with its plugin: it puts pods where they were promised, or, by chance, elsewhere, and publishes that."""

    def __init__(self, sizes: list[int], chance: random.Random) -> None:
        self.sizes = sizes
        self.there = node("n", *sizes, published=True)
        self.index = {str(number): f"GPU-n-{number}" for number in range(len(sizes))}
        self.held: Held = {}
        self.bound = BoundPods("n", MEM)
        self._chance = chance

    def left(self) -> list[int]:
        used = dict.fromkeys(self.index.values(), 0)
        for item in self.held.values():
            for uuid, units in item:
                used[uuid] += units
        return [size - used[f"GPU-n-{number}"] for number, size in enumerate(self.sizes)]

    def start(self, item: Object, units: int) -> bool:
        """Whether the kubelet admits it: some GPU has room."""
        self.bound.kind.seen(item)
        promised = self.bound.wait_for_places(units, self.held, self.index, 0)
        room = [f"GPU-n-{number}" for number, left in enumerate(self.left()) if left >= units]
        fits = [each for each in promised if all(uuid in room for uuid, _ in each)]
        if not room:
            return False
        strays = not fits or self._chance.random() < 0.3
        name = f"default/{item['metadata']['name']}"
        self.held[name, "c0"] = frozenset({(self._chance.choice(room), units)}) if strays else fits[0]
        return True

    def end(self, item: Object) -> None:
        self.held.pop((f"default/{item['metadata']['name']}", "c0"), None)

    def published(self) -> Object:
        moved, _ = self.bound.compare(self.held, self.index)
        return publishing(self.there, moved)


def test_no_schedule_with_strays_promises_memory_twice_or_leaves_a_pod_waiting():
    """By chance: kubelets put pods elsewhere, or admit them not. Once the plugin has published it no GPU that is in use
    is promised; once that is noted, books and kubelets are the same, and whatever has room is bound."""
    chance, strays = random.Random(15), 0
    for schedule in range(SCHEDULES):
        kubelet = Node([chance.choice([4, 8, 8, 16]) for _ in range(chance.randint(1, 3))], chance)
        api, units = Pods(), dict[str, int]()
        ledger = Ledger.of(MEM, [kubelet.there], [])
        noting = Noting(ledger, api)

        def settle(
            ledger: Ledger = ledger, api: Pods = api, kubelet: Node = kubelet, noting: Noting = noting
        ) -> None:
            late = [entry.uid.removeprefix("uid-") for entry in ledger.moved_pods()]
            noting.tend()
            for each in map(api.pods.__getitem__, late):
                ledger.put_pod(each)
                kubelet.bound.kind.seen(each)
            ledger.put_node(kubelet.published())

        for step in range(12):
            running = [each for each in api.pods.values() if each["status"]["phase"] == "Running"]
            if running and chance.random() < 0.3:
                item = chance.choice(running)
                kubelet.end(item)
                item["status"]["phase"] = "Succeeded"
                ledger.put_pod(item)
                kubelet.bound.kind.seen(item)
                continue
            name = f"p{step}"
            api.pods[name], units[name] = pod(name, size := chance.randint(1, 6)), size
            before, clean = kubelet.left(), not ledger.moved_pods()
            try:
                bind(ledger, api, "default", name, f"uid-{name}", "n", packed=schedule % 2 == 0)
            except NotBound:
                assert not clean or max(before) < size, schedule
                del api.pods[name]
                continue
            assert not clean or max(before) >= size, schedule
            item = api.pods[name]
            item["status"]["phase"] = "Running" if kubelet.start(item, size) else "Failed"
            ledger.put_pod(item)
            kubelet.bound.kind.seen(item)
            ledger.put_node(kubelet.published())
            # From here on no GPU is promised beyond what the kubelet has left of it.
            assert all(ours <= theirs for ours, theirs in zip(free(ledger), kubelet.left(), strict=True))
            strays += bool(ledger.moved_pods())
            if chance.random() < 0.7:
                settle()
                assert free(ledger) == tuple(kubelet.left()), schedule
                assert ledger.moved_pods() == []
        settle()
        assert ledger.books() == Ledger.of(MEM, [kubelet.published()], api.listed()).books()
    assert strays > SCHEDULES // 2
