"""Who has what, what is wrong, what would fit: from objects of the API server and kubelets' records."""

import json
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from gpunode.commands import share_inspect as shares
from gpunode.contract import offer
from gpunode.contract.checkpoint import Entry
from gpunode.contract.promises import ALLOCATION, INDEX, MEMORY_ANNOTATION, demand_of
from gpunode.contract.usage import Gpu, Offered, User
from gpunode.links.scheduler import allocations, simulation
from gpunode.links.scheduler.allocations import Real
from gpunode.share.fit import Refused, find
from gpunode.share.ledger import Ledger
from tests import tables
from tests.share.objects import MEM, node, pod


def entry(name: str, container: str, *units: str, resource: str = MEM) -> Entry:
    """What a kubelet recorded; units of memory as GPU/first-last."""
    ids: set[str] = set()
    for unit in units:
        gpu, _, numbers = unit.partition("/")
        first, _, last = numbers.partition("-")
        ids |= {f"{gpu}:1024:{n}" for n in range(int(first), int(last) + 1)} if numbers else {gpu}
    return Entry(f"uid-{name}", container, resource, frozenset(ids))


def memory(name: str = "n", *units: int) -> Any:
    return node(name, *(units or (10, 10)), published=True)


def table(rows: Any) -> list[tuple[Any, ...]]:
    return [
        (
            row.node,
            row.gpu,
            row.total,
            row.promised,
            row.used,
            [(use.pod, use.promised, use.used) for use in row.uses],
        )
        for row in rows
    ]


def test_promise_and_use_stand_side_by_side():
    """By GPU; a pod that is on another GPU than noted is on both, and one that nobody noted is where the kubelet put it."""
    pods = [
        pod("a", 4, on="n", **{INDEX: "0"}),
        pod("b", 3, on="n", **{INDEX: "0"}),
        pod("c", 2, on="n"),
        pod("waits", 5),
        pod("ended", 5, on="n", phase="Succeeded", **{INDEX: "1"}),
    ]
    entries = (
        entry("a", "c0", "GPU-n-0/0-3"),
        entry("b", "c0", "GPU-n-1/0-2"),
        entry("c", "c0", "GPU-n-1/3-4"),
    )

    assert table(allocations.make_rows([memory()], pods, MEM, {})) == [
        ("n", "0", 10, 7, None, [("default/a", 4, None), ("default/b", 3, None)]),
        ("n", "1", 10, 0, None, []),
        ("n", "?", None, 2, None, [("default/c", 2, None)]),
    ]
    assert table(allocations.make_rows([memory()], pods, MEM, {"n": Real(entries)})) == [
        ("n", "0", 10, 7, 4, [("default/a", 4, 4), ("default/b", 3, 0)]),
        ("n", "1", 10, 2, 5, [("default/b", 0, 3), ("default/c", 2, 2)]),
    ]
    late = allocations.make_rows([memory()], pods, MEM, {"n": Real(entries[:2])})[-1]
    assert table([late]) == [("n", "?", None, 2, 0, [("default/c", 2, 0)])]  # it has nothing yet


def test_what_the_plugin_answers_stands_for_what_its_host_would():
    """Also without the extender: which pod has how much memory of which GPU, where the node publishes no sizes."""
    pods = [pod("a", 4, on="n"), pod("b", 3, on="n")]
    answer = tuple(
        Gpu(f"GPU-{index}", index, "A100", 10 * 2**30, users=(User(f"default/{name}", "c0", MEM, units),))
        for index, name, units in (("0", "a", 4), ("1", "b", 3))
    )
    real = {"n": allocations.read_plugin(answer, pods)}
    alike, unlike = node("n", 10, 10), node("n", 10, 20)
    unlike["status"]["capacity"][MEM] = "31"  # of two GPUs: nobody knows each one's size
    assert table(allocations.make_rows([alike], pods, MEM, real)) == [
        ("n", "0", 10, 4, 4, [("default/a", 4, 4)]),
        ("n", "1", 10, 3, 3, [("default/b", 3, 3)]),
    ]
    assert table(allocations.make_rows([unlike], pods, MEM, real)) == [
        ("n", "0", None, 4, 4, [("default/a", 4, 4)]),
        ("n", "1", None, 3, 3, [("default/b", 3, 3)]),
    ]
    silent = (replace(answer[0], users=None), answer[1])
    assert allocations.read_plugin(silent, pods) == Real()  # the kubelet does not report pods' devices


@pytest.mark.parametrize(
    ("resource", "unit", "gpu", "what"),
    [
        ("nvidia.com/gpu", "GPU-a", "0", "GPU"),
        ("nvidia.com/gpu.shared", "GPU-a::3", "0", "share"),
        ("nvidia.com/gpu", "GPU-a::mps-1", "0", "share"),
        ("nvidia.com/mig-1g.10gb", "MIG-7", "MIG-7", "MIG device"),
    ],
    ids=["whole", "time-slicing", "MPS", "MIG"],
)
def test_every_way_of_sharing_is_in_the_picture(resource: str, unit: str, gpu: str, what: str):
    """The scheduler knows a number; the kubelet which device."""
    other = {
        "metadata": {"name": "m"},
        "status": {key: {resource: "4"} for key in ("capacity", "allocatable")},
    }
    item = pod("a", 0, on="m")
    item["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}

    assert table(allocations.make_rows([other], [item], MEM, {})) == [
        ("m", "?", 4, 1, None, [("default/a", 1, None)])
    ]
    real = {"m": Real((entry("a", "c0", unit, resource=resource),), {"GPU-a": "0"})}
    assert table(allocations.make_rows([other], [item], MEM, real)) == [
        ("m", gpu, None, 1, 1, [("default/a", 1, 1)]),
        ("m", "?", 3, 0, 0, []),
    ]
    assert {row.unit for row in allocations.make_rows([other], [item], MEM, real)} == {what}
    late = table(allocations.make_rows([other], [item], MEM, {"m": Real(())}))
    assert late == [("m", "?", 4, 1, 0, [("default/a", 1, 0)])]
    gone = {
        "metadata": {"name": "m"},
        "status": {"capacity": {resource: "4"}, "allocatable": {resource: "0"}},
    }
    assert allocations.make_rows([gone], [], MEM, {}) == ()


@pytest.mark.parametrize("asked", ["plugin", "host"])
def test_shares_are_counted_on_idle_gpus_too(asked: str):
    """Every GPU with its units, used or not; what the cluster can have is their sum."""
    gpu, pods = "nvidia.com/gpu", [pod("a", 0, on="m")]
    pods[0]["spec"]["containers"][0]["resources"]["limits"] = {gpu: "4"}
    there = {"metadata": {"name": "m"}, "status": {key: {gpu: "20"} for key in ("capacity", "allocatable")}}
    if asked == "plugin":
        offered = (Offered(gpu, 10, offer.TIME_SLICING),)
        used = (User("default/a", "c0", gpu, 4),)
        answer = [
            Gpu("GPU-a", "0", "P100", 1, users=used, offered=offered),
            Gpu("GPU-b", "1", "P100", 1, users=(), offered=offered),
        ]
        real = allocations.read_plugin(answer, pods)
    else:
        units = {gpu: [f"{each}::{n}" for each in ("GPU-a", "GPU-b") for n in range(10)]}
        given = entry("a", "c0", *(f"GPU-a::{n}" for n in range(4)), resource=gpu)
        real = allocations.read_host((given,), units, {"GPU-a": "0", "GPU-b": "1"})
    rows = allocations.make_rows([there], pods, MEM, {"m": real})
    assert table(rows) == [("m", "0", 10, 4, 4, [("default/a", 4, 4)]), ("m", "1", 10, 0, 0, [])]
    assert [row.unit for row in rows] == ["share", "share"]
    listener = mock.Mock()
    shares.show(rows, listener, details=False)
    listener.total.assert_called_once_with("nvidia.com/gpu 4/20", {"resources": {gpu: [4, 20]}})


GPUSHARES = Entry("uid-a", "c0", MEM, frozenset(f"GPU-n-0-_-{n}" for n in range(4)), index="1")


def test_a_pod_of_gpushare_is_where_its_plugin_put_it():
    """Which the kubelet's record has, whatever the ids and the annotation say; its unit it does not."""
    (first, second) = allocations.make_rows(
        [node("n", 10, 10)], [pod("a", 4, on="n", **{INDEX: "0"})], MEM, {"n": Real((GPUSHARES,))}
    )
    assert table([first]) == [("n", "0", 10, 4, 0, [("default/a", 4, 0)])]
    assert table([second]) == [("n", "1", 10, 0, 4, [("default/a", 0, 4)])]
    assert first.unit == allocations.UNIT


@tables.rows("units-of-memory")
def test_what_a_unit_of_memory_is_follows_from_ids_or_what_the_node_publishes(
    ids: list[str], published: int, unit: str
):
    """Whoever reads `4` is to know of what."""
    there = node("n", 10, published=True)
    document = json.loads(there["metadata"]["annotations"][MEMORY_ANNOTATION]) | {"mib": published}
    there["metadata"]["annotations"][MEMORY_ANNOTATION] = json.dumps(document)
    entries = tuple(Entry("uid-a", "c0", MEM, frozenset([each])) for each in ids)
    rows = allocations.make_rows([there], [], MEM, {"n": Real(entries)} if ids else {})
    assert {row.unit for row in rows} == {unit}


CASES: list[tuple[str, list[Any], list[Entry] | None, list[tuple[str, str, bool]]]] = [
    ("right", [pod("a", 4, on="n", **{INDEX: "0"})], [entry("a", "c0", "GPU-n-0/0-3")], []),
    ("not asked", [pod("a", 4, on="n", **{INDEX: "0"})], None, []),
    (
        "not noted",
        [pod("a", 4, on="n")],
        [entry("a", "c0", "GPU-n-0/0-3")],
        [("default/a", "not-noted", True)],
    ),
    ("not noted, not asked", [pod("a", 4, on="n")], None, [("default/a", "not-noted", False)]),
    (
        "edited by hand",
        [pod("a", 4, on="n", **{ALLOCATION: '{"0":{"0":3}}'})],
        [entry("a", "c0", "GPU-n-1/0-3")],
        [("default/a", "unreadable", True)],
    ),
    (
        "elsewhere",
        [pod("a", 4, 2, on="n", **{ALLOCATION: '{"0":{"0":4},"1":{"0":2}}'})],
        [entry("a", "c0", "GPU-n-1/0-3"), entry("a", "c1", "GPU-n-0/0-1")],
        [("default/a", "elsewhere", True)],
    ),
    (
        "no devices",
        [pod("a", 4, on="n", phase="Running", **{INDEX: "0"})],
        [],
        [("default/a", "no-devices", False)],
    ),
    ("starting", [pod("a", 4, on="n", **{INDEX: "0"})], [], []),
    (
        "overcommitted",
        [pod("a", 6, on="n", **{INDEX: "0"}), pod("b", 6, on="n", **{INDEX: "0"})],
        None,
        [("", "overcommitted", False)],
    ),
    ("devices without pod", [], [entry("gone", "c0", "GPU-n-0/0-3")], []),
    (
        "gpushare's",
        [pod("a", 4, on="n", **{INDEX: "1"})],
        [entry("a", "c0", *(f"GPU-n-0-_-{n}" for n in range(4)))],
        [],
    ),
]


@pytest.mark.parametrize(
    ("pods", "entries", "mismatches"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_what_is_wrong_is_found_and_a_repair_is_right(
    pods: list[Any], entries: list[Entry] | None, mismatches: list[tuple[str, str, bool]]
):
    """Once its annotations are written there is nothing left to repair."""
    real = {} if entries is None else {"n": Real(tuple(entries))}
    now = allocations.find_mismatches([memory()], pods, MEM, real)
    assert [(link.pod, link.problem.code, bool(link.repair)) for link in now] == mismatches

    for mismatch in now:
        for each in pods if mismatch.repair else []:
            each["metadata"]["annotations"] = {**each["metadata"]["annotations"], **mismatch.repair}
            assert MEMORY_ANNOTATION in mismatch.repair
    left = allocations.find_mismatches([memory()], pods, MEM, real)
    assert [link.problem.code for link in left] == [code for _, code, fixable in mismatches if not fixable]


def test_pods_of_an_earlier_configuration_overcommit_nothing():
    """While gpushare's pods run, the plugin reserves every GPU: what they were promised is a part of that."""
    gpus = [{"index": str(each), "uuid": f"GPU-n-{each}", "units": 10, "reserved": 10} for each in range(2)]
    there = node("n", 10, 10, **{MEMORY_ANNOTATION: json.dumps({"version": 1, "gpus": gpus})})
    old = pod("a", 4, on="n", **{INDEX: "1"})
    entries = (entry("a", "c0", *(f"GPU-n-0-_-{n}" for n in range(4))),)

    assert allocations.find_mismatches([there], [old], MEM, {"n": Real(entries)}) == ()
    assert table(allocations.make_rows([there], [old], MEM, {"n": Real(entries)})) == [
        ("n", "0", 10, 0, 0, []),
        ("n", "1", 10, 4, 0, [("default/a", 4, 0)]),
        ("n", "?", None, 0, 4, [("default/a", 0, 4)]),
    ]
    with pytest.raises(Refused):
        find(Ledger.of(MEM, [there], [old]).book("n"), demand_of(pod("b", 1), MEM), packed=True)


def test_pods_past_a_second_scheduler_are_named():
    """With theirs, which is the cluster's own where they name none; all schedulers ask where there is no second one."""
    pods = [pod("a", 4, on="n"), pod("b", 4, on="n"), pod("c", 4, on="n", **{INDEX: "0"})]
    pods[1]["spec"]["schedulerName"] = "gpunode"
    mismatches = allocations.find_mismatches([memory()], pods, MEM, {}, "gpunode")
    assert [(mismatch.pod, mismatch.problem.code) for mismatch in mismatches] == [
        ("default/a", "other-scheduler"),
        ("default/b", "not-noted"),
    ]
    assert "default-scheduler" in mismatches[0].problem.what
    again = allocations.find_mismatches([memory()], pods, MEM, {})
    assert [mismatch.problem.code for mismatch in again] == ["not-noted", "not-noted"]


def test_a_node_that_does_not_publish_its_gpus_is_named():
    """Where they differ; one that shares no memory is none of fsck's."""
    unlike = node("n", 10, 5)
    mismatches = allocations.find_mismatches([unlike, node("other")], [], MEM, {})
    assert [(link.problem.subject, link.problem.code) for link in mismatches] == [("n", "gpus-unknown")]


@pytest.mark.parametrize(
    ("units", "count", "packed", "nodes", "free"),
    [
        ([6], 3, True, ["n", "n", "m"], [("m", 4, 4, (4,)), ("n", 8, 4, (4, 4))]),
        ([6], 4, True, ["n", "n", "m", ""], [("m", 4, 4, (4,)), ("n", 8, 4, (4, 4))]),
        ([4, 4], 1, False, ["n"], [("m", 10, 10, (10,)), ("n", 12, 6, (6, 6))]),
    ],
)
def test_a_simulation_places_as_the_extender_does(
    units: list[int], count: int, packed: bool, nodes: list[str], free: list[Any]
):
    """On a copy; what has no room says why, counted over nodes."""
    there = [memory("n"), memory("m", 10), memory("cordoned")]
    there[2]["spec"] = {"unschedulable": True}
    bound = [pod("a", 4, on="n", **{INDEX: "0"}), pod("b", 4, on="n", **{INDEX: "1"})] if packed else []
    placed, left = simulation.place(there, bound, MEM, units, count, packed=packed)
    if packed:
        assert sorted(each.node for each in placed) == sorted(nodes)
        assert sum(each.free for each in left) == 30 - 8 - 6 * sum(bool(each.node) for each in placed)
    else:
        assert [each.node for each in placed] == nodes
        assert [(each.node, each.free, each.largest, each.by_gpu) for each in left] == free
    for result in placed:
        assert bool(result.node) == (result.why is None)
        if result.why is not None:
            assert sum(result.why.values()) == 2
