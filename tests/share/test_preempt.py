"""Pods that make room for one of a higher priority: the scheduler's victims, and those added to them, until one GPU has room."""

import random
from typing import Any

import pytest

from gpunode.contract.promises import INDEX, demand_of
from gpunode.deviceplugin.cluster.apiserver import Object
from gpunode.share.ledger import Ledger
from gpunode.share.protocol import BadRequest, Extender
from tests.share.objects import MEM, Pods, node, pod


def placed(name: str, units: int, gpu: int, priority: int, on: str = "n") -> Object:
    """A running pod on a GPU."""
    made = pod(name, units, on=on, phase="Running")
    made["metadata"]["annotations"][INDEX] = str(gpu)
    made["spec"]["priority"] = priority
    return made


def asking(*units: int, priority: int = 100) -> Object:
    made = pod("new", *units)
    made["spec"]["priority"] = priority
    return made


def preempted(ledger: Ledger, asker: Object, proposed: dict[str, list[str]]) -> dict[str, list[str]]:
    """The names of each node's victims, after the scheduler proposed these; it sends and reads UIDs."""
    extender = Extender(ledger, Pods())
    meta = {
        name: {"Pods": [{"UID": f"uid-{each}"} for each in pods], "NumPDBViolations": 0}
        for name, pods in proposed.items()
    }
    answer = extender.preempt({"Pod": asker, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta})[
        "NodeNameToMetaVictims"
    ]
    return {
        name: sorted(each["UID"].removeprefix("uid-") for each in victims["Pods"])
        for name, victims in answer.items()
    }


@pytest.mark.parametrize(
    ("running", "asker", "proposed", "expected"),
    [
        # Two GPUs of 8. The sum is full; the victim frees a GPU for it.
        ([("a", 8, 0, 0), ("b", 8, 1, 50)], asking(8), ["a"], ["a"]),
        # By the sum one of each 4 would do; they are on different GPUs.
        ([("a", 4, 0, 0), ("b", 4, 0, 50), ("c", 4, 1, 0), ("d", 4, 1, 60)], asking(8), ["a", "c"], ["a", "b", "c"]),
        # Nobody on the other GPU has a lower priority.
        ([("a", 4, 0, 0), ("b", 4, 0, 100), ("c", 4, 1, 0), ("d", 4, 1, 900)], asking(8), ["a", "c"], None),
        # Schedulers before 1.22 propose nobody where the sum is enough.
        ([("a", 4, 0, 0), ("b", 4, 1, 50)], asking(8), [], ["a"]),
        ([("a", 4, 0, 200), ("b", 4, 1, 200)], asking(8), [], None),
        # It asks for no GPU memory: as proposed.
        ([("a", 8, 0, 0)], asking(0), ["cpu-hog"], ["cpu-hog"]),
        # A victim without GPU memory frees what the scheduler counted, and stays one.
        ([("a", 8, 0, 0), ("b", 8, 1, 50)], asking(8), ["cpu-hog"], ["a", "cpu-hog"]),
        # Two containers, each on a GPU.
        ([("a", 8, 0, 0), ("b", 8, 1, 50)], asking(8, 8), ["a", "b"], ["a", "b"]),
    ],
    ids=["enough", "fragmented", "too high", "nobody", "nobody can", "no memory", "other resources", "two"],
)  # fmt: skip
def test_victims_free_a_single_gpu_or_the_node_is_dropped(
    running: list[tuple[str, int, int, int]], asker: Object, proposed: list[str], expected: list[str] | None
):
    """The scheduler's are kept, since they free other resources, too; as few as possible are added."""
    ledger = Ledger.of(MEM, [node("n", 8, 8)], [placed(*each) for each in running])
    assert preempted(ledger, asker, {"n": proposed}) == ({} if expected is None else {"n": expected})


def test_added_victims_count_as_violated_budgets():
    """So the scheduler takes a node without them first: the extender knows no budgets."""
    running = [placed("a", 4, 0, 0), placed("b", 4, 0, 50), placed("c", 4, 1, 0), placed("d", 4, 1, 50)]
    ledger = Ledger.of(MEM, [node("n", 8, 8)], running)
    meta = {"n": {"Pods": [{"UID": "uid-a"}, {"UID": "uid-c"}], "NumPDBViolations": 1}}
    answer = Extender(ledger, Pods()).preempt({"Pod": asking(8), "NodeNameToMetaVictims": meta})
    assert answer["NodeNameToMetaVictims"]["n"]["NumPDBViolations"] == 2


def test_unknown_nodes_and_pods_whose_binding_is_under_way_are_left_alone():
    """The scheduler fails the whole preemption for a victim that it does not know on the node."""
    ledger = Ledger.of(MEM, [node("n", 8)], [])
    reserved = pod("fresh", 8)
    ledger.reserve(reserved, demand_of(reserved, MEM), "n", packed=True)
    assert preempted(ledger, asking(8), {"n": ["cpu-hog"], "unknown": ["a"]}) == {}


def test_whole_pods_and_small_letters_are_read():
    """Schedulers without a node cache send pods; those before 1.15 or so wrote keys small."""
    ledger = Ledger.of(MEM, [node("n", 8)], [placed("a", 8, 0, 0)])
    extender = Extender(ledger, Pods())
    whole = {"n": {"Pods": [placed("a", 8, 0, 0)], "NumPDBViolations": 0}}
    small = {"n": {"pods": [{"uid": "uid-a"}], "numPDBViolations": 0}}
    bodies: list[Any] = [
        {"Pod": asking(8), "NodeNameToVictims": whole},
        {"pod": asking(8), "nodeNameToMetaVictims": small},
    ]
    for body in bodies:
        victims = extender.preempt(body)["NodeNameToMetaVictims"]
        assert victims == {"n": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0}}


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"Pod": asking(8), "NodeNameToMetaVictims": [1]},
        {"Pod": asking(8), "NodeNameToMetaVictims": {"n": {"Pods": ["a"]}}},
        {"Pod": asking(8), "NodeNameToMetaVictims": {"n": {"Pods": [{"UID": 3}]}}},
        {"Pod": pod("p", "much"), "NodeNameToMetaVictims": {}},
    ],
)
def test_what_is_no_preemption_is_refused(body: Any):
    """The answer has no field for an error: the scheduler gets a status."""
    with pytest.raises(BadRequest):
        Extender(Ledger(MEM), Pods()).preempt(body)


def by_sum(running: list[Object], asker: Object, size: int) -> list[str] | None:
    """The scheduler's choice: all of a lower priority leave, and each that fits the node's sum again stays."""
    priority = asker["spec"]["priority"]
    lower = sorted(
        (each for each in running if each["spec"]["priority"] < priority),
        key=lambda each: -each["spec"]["priority"],
    )
    names = {each["metadata"]["name"] for each in lower}

    def units(each: Object) -> int:
        return sum(int(box["resources"]["limits"][MEM]) for box in each["spec"]["containers"])

    free = size - units(asker) - sum(units(each) for each in running if each["metadata"]["name"] not in names)
    if free < 0 or not lower:
        return None
    victims = []
    for item in lower:
        if units(item) <= free:
            free -= units(item)
        else:
            victims.append(item["metadata"]["name"])
    return victims


def test_a_thousand_random_preemptions_make_room_and_end_nobody_without_need():
    """Whatever runs: the pod fits once the victims have ended; no victim that was added could have stayed; a node is
    dropped only where nobody's end helps."""
    chance, seen = random.Random(7), [0, 0, 0]
    for _ in range(1000):
        gpus = [chance.randrange(4, 12) for _ in range(chance.randrange(1, 5))]
        room, running = list(gpus), []
        for number in range(chance.randrange(1, 14)):
            gpu, units = chance.randrange(len(gpus)), chance.randrange(1, 6)
            if room[gpu] >= units:
                room[gpu] -= units
                running.append(placed(f"p{number}", units, gpu, chance.choice([0, 10, 50, 100, 200])))
        asker = asking(*(chance.randrange(1, 9) for _ in range(chance.choice([1, 1, 2]))))
        proposed = by_sum(running, asker, sum(gpus))
        if proposed is None:
            continue

        def fits(gone: list[str], asker: Object = asker, all_of: list[Object] = running) -> bool:
            stay = [item for item in all_of if item["metadata"]["name"] not in gone]
            ledger = Ledger.of(MEM, [node("n", *gpus)], stay)  # noqa: B023 (called in this round)
            return bool(Extender(ledger, Pods()).filter({"Pod": asker, "NodeNames": ["n"]})["NodeNames"])

        ledger = Ledger.of(MEM, [node("n", *gpus)], running)
        answer = preempted(ledger, asker, {"n": proposed})
        lower = [item["metadata"]["name"] for item in running if item["spec"]["priority"] < 100]
        if "n" not in answer:
            assert not fits(lower) or (fits([]) and not proposed)
            seen[0] += 1
            continue
        victims = answer["n"]
        assert set(proposed) <= set(victims) <= set(lower)
        assert fits(victims)
        added = set(victims) - set(proposed)
        assert not any(fits([each for each in victims if each != other]) for other in added)
        seen[1 + bool(added)] += 1
    assert all(count > 50 for count in seen), seen


def nominated(name: str, units: int, priority: int, on: str = "n") -> Object:
    """A pod that victims make room for."""
    made = pod(name, units)
    made["spec"]["priority"] = priority
    made["status"]["nominatedNodeName"] = on
    return made


def leaving(item: Object) -> Object:
    return {**item, "metadata": {**item["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


A, B = placed("a", 8, 0, 0), placed("b", 4, 1, 50)
NOMINATED: list[tuple[str, list[Object], Object, bool]] = [
    # Two GPUs of 8: `a` leaves the first to `high`; 4 are free of the second.
    ("room beside it", [leaving(A), B, nominated("high", 8, 100)], asking(4, priority=0), True),
    ("its GPU, before its victim has ended", [leaving(A), nominated("high", 8, 100)], asking(8, priority=0), True),
    ("its GPU, afterwards", [B, nominated("high", 8, 100)], asking(8, priority=0), False),
    ("a smaller one on its GPU", [B, nominated("high", 8, 100)], asking(5, priority=0), False),
    ("of its own priority", [B, nominated("high", 8, 100)], asking(8, priority=100), False),
    ("of a higher priority", [B, nominated("high", 8, 100)], asking(8, priority=101), True),
    ("itself", [B, nominated("new", 8, 100)], asking(8, priority=100), True),
    ("nominated elsewhere", [B, nominated("high", 8, 100, "m")], asking(8, priority=0), True),
    ("bound meanwhile", [B, placed("high", 4, 1, 100)], asking(8, priority=0), True),
    ("without memory", [B, nominated("high", 0, 100)], asking(8, priority=0), True),
    # Its victims are not known to be deleted yet, so it can be any GPU.
    ("not known where", [A, B, nominated("high", 8, 100)], asking(4, priority=0), False),
    ("two are nominated", [nominated("high", 8, 100), nominated("other", 5, 200)], asking(4, priority=0), False),
]  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "asker", "fits"), [each[1:] for each in NOMINATED], ids=[each[0] for each in NOMINATED]
)
def test_what_victims_leave_is_kept_for_the_pod_that_they_left_it_to(
    seen: list[Object], asker: Object, fits: bool
):
    """At the filter and at the bind, as kube-scheduler counts nominated pods: for others of no higher priority."""
    api = Pods(asker)
    ledger = Ledger.of(MEM, [node("n", 8, 8)], seen)
    extender = Extender(ledger, api)
    names = extender.filter({"Pod": asker, "NodeNames": ["n"]})["NodeNames"]
    body = {"PodNamespace": "default", "PodName": "new", "PodUID": "uid-new", "Node": "n"}
    assert (names == ["n"], extender.bind(body)["Error"] == "") == (fits, fits)


def test_a_nomination_ends_with_the_pod_and_with_its_binding():
    """And comes back where the binding failed; the books are the same as after a restart."""
    each = nominated("high", 8, 100)
    ledger = Ledger.of(MEM, [node("n", 8, 8)], [B, each])

    def room() -> list[int]:
        book = ledger.room("n", "uid-new", 0, packed=True)
        assert book is not None
        return list(book.free)

    assert room() == [0, 4]
    ledger.reserve(each, demand_of(each, MEM), "n", packed=True)
    assert room() == [0, 4]
    ledger.release("uid-high")
    assert room() == [0, 4]
    assert ledger.books() == Ledger.of(MEM, [node("n", 8, 8)], [B, each]).books()
    assert "uid-high" in ledger.pods()
    ledger.drop_pod("uid-high")
    assert room() == [8, 4]


def test_a_thousand_random_nominations_are_kept():
    """Victims end, others come and are bound meanwhile: the pod that they made room for fits once they have gone."""
    chance, taken = random.Random(11), 0
    for _ in range(1000):
        gpus = [8] * chance.randint(1, 3)
        room, running = list(gpus), []
        for number in range(chance.randint(1, 9)):
            gpu, units = chance.randrange(len(gpus)), chance.randint(1, 6)
            if room[gpu] >= units:
                room[gpu] -= units
                running.append(placed(f"p{number}", units, gpu, chance.choice([0, 10, 200])))
        high = asking(chance.randint(4, 8))
        high["metadata"] |= {"name": "high", "uid": "uid-high"}
        others = [pod(f"o{number}", chance.randint(1, 8)) for number in range(6)]
        api = Pods(high, *others)
        ledger = Ledger.of(MEM, [node("n", *gpus)], running)
        extender = Extender(ledger, api)
        if extender.filter({"Pod": high, "NodeNames": ["n"]})["NodeNames"]:
            continue
        victims = preempted(ledger, high, {"n": []}).get("n")
        if victims is None:
            continue
        ends = [each for each in running if each["metadata"]["name"] in victims]
        for item in ends:
            ledger.put_pod(leaving(item))
        high["status"]["nominatedNodeName"] = "n"
        ledger.put_pod(high)
        steps = [*ends, *others]
        chance.shuffle(steps)
        for item in steps:
            meta = item["metadata"]
            if item in ends:
                ledger.drop_pod(meta["uid"])
            elif extender.filter({"Pod": item, "NodeNames": ["n"]})["NodeNames"]:
                body = {"PodNamespace": "default", "PodName": meta["name"], "PodUID": meta["uid"]}
                taken += extender.bind(body | {"Node": "n"})["Error"] == ""
        assert extender.filter({"Pod": high, "NodeNames": ["n"]})["NodeNames"] == ["n"]
    assert taken > 100
