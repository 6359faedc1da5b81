"""Pods that make room for one of a higher priority: the scheduler's victims, and those added to them, until one GPU has room."""

from __future__ import annotations

import random
from typing import Any

import pytest

from gpunode.deviceplugin.cluster.apiserver import Object
from gpunode.deviceplugin.promises import demand
from gpunode.deviceplugin.promises.placement import INDEX
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
        name: {"Pods": [{"UID": f"uid-{one}"} for one in pods], "NumPDBViolations": 0}
        for name, pods in proposed.items()
    }
    answer = extender.preempt({"Pod": asker, "NodeNameToVictims": None, "NodeNameToMetaVictims": meta})[
        "NodeNameToMetaVictims"
    ]
    return {
        name: sorted(one["UID"].removeprefix("uid-") for one in found["Pods"])
        for name, found in answer.items()
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
) -> None:
    """The scheduler's are kept, since they free other resources, too; as few as possible are added."""
    ledger = Ledger.of(MEM, [node("n", 8, 8)], [placed(*one) for one in running])
    assert preempted(ledger, asker, {"n": proposed}) == ({} if expected is None else {"n": expected})


def test_added_victims_count_as_violated_budgets() -> None:
    """So the scheduler takes a node without them first: the extender knows no budgets."""
    running = [placed("a", 4, 0, 0), placed("b", 4, 0, 50), placed("c", 4, 1, 0), placed("d", 4, 1, 50)]
    ledger = Ledger.of(MEM, [node("n", 8, 8)], running)
    meta = {"n": {"Pods": [{"UID": "uid-a"}, {"UID": "uid-c"}], "NumPDBViolations": 1}}
    answer = Extender(ledger, Pods()).preempt({"Pod": asking(8), "NodeNameToMetaVictims": meta})
    assert answer["NodeNameToMetaVictims"]["n"]["NumPDBViolations"] == 2


def test_unknown_nodes_and_pods_whose_binding_is_under_way_are_left_alone() -> None:
    """The scheduler fails the whole preemption for a victim that it does not know on the node."""
    ledger = Ledger.of(MEM, [node("n", 8)], [])
    reserved = pod("fresh", 8)
    ledger.reserve(reserved, demand.of(reserved, MEM), "n", packed=True)
    assert preempted(ledger, asking(8), {"n": ["cpu-hog"], "unknown": ["a"]}) == {}


def test_whole_pods_and_small_letters_are_read() -> None:
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
        found = extender.preempt(body)["NodeNameToMetaVictims"]
        assert found == {"n": {"Pods": [{"UID": "uid-a"}], "NumPDBViolations": 0}}


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
def test_what_is_no_preemption_is_refused(body: Any) -> None:
    """The answer has no field for an error: the scheduler gets a status."""
    with pytest.raises(BadRequest):
        Extender(Ledger(MEM), Pods()).preempt(body)


def by_sum(running: list[Object], asker: Object, size: int) -> list[str] | None:
    """The scheduler's choice: all of a lower priority leave, and each that fits the node's sum again stays."""
    priority = asker["spec"]["priority"]
    lower = sorted(
        (one for one in running if one["spec"]["priority"] < priority),
        key=lambda one: -one["spec"]["priority"],
    )
    names = {one["metadata"]["name"] for one in lower}

    def units(one: Object) -> int:
        return sum(int(box["resources"]["limits"][MEM]) for box in one["spec"]["containers"])

    free = size - units(asker) - sum(units(one) for one in running if one["metadata"]["name"] not in names)
    if free < 0 or not lower:
        return None
    victims = []
    for one in lower:
        if units(one) <= free:
            free -= units(one)
        else:
            victims.append(one["metadata"]["name"])
    return victims


def test_a_thousand_random_preemptions_make_room_and_end_nobody_without_need() -> None:
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
            stay = [one for one in all_of if one["metadata"]["name"] not in gone]
            ledger = Ledger.of(MEM, [node("n", *gpus)], stay)  # noqa: B023 (called in this round)
            return bool(Extender(ledger, Pods()).filter({"Pod": asker, "NodeNames": ["n"]})["NodeNames"])

        ledger = Ledger.of(MEM, [node("n", *gpus)], running)
        answer = preempted(ledger, asker, {"n": proposed})
        lower = [one["metadata"]["name"] for one in running if one["spec"]["priority"] < 100]
        if "n" not in answer:
            assert not fits(lower) or (fits([]) and not proposed)
            seen[0] += 1
            continue
        found = answer["n"]
        assert set(proposed) <= set(found) <= set(lower)
        assert fits(found)
        added = set(found) - set(proposed)
        assert not any(fits([one for one in found if one != other]) for other in added)
        seen[1 + bool(added)] += 1
    assert all(count > 50 for count in seen), seen
