"""Binding: one write with the place in it, refused and lost answers, and many at once."""

import json
import random
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import pytest

from gpunode.contract.promises import ALLOCATION, ASSUMED, INDEX, MEMORY_ANNOTATION
from gpunode.deviceplugin.cluster.apiserver import ApiError
from gpunode.share.binding import NotBound, NotLeading, bind
from gpunode.share.ledger import Ledger
from tests.share.objects import MEM, SCHEDULES, Pods, free, node, pod


def ask(ledger: Ledger, api: Pods, name: str, on: str = "n", uid: str = "", *, packed: bool = True) -> str:
    """What the scheduler is answered: "" for a pod that is bound."""
    try:
        bind(ledger, api, "default", name, uid or f"uid-{name}", on, packed=packed)
    except NotBound as error:
        return str(error)
    return ""


def test_a_bound_pod_says_where_it_is():
    """gpushare's annotations, ACK's, and gpunode's own, in the write that binds it."""
    api = Pods(pod("a", 4))
    ledger = Ledger.of(MEM, [node("n", 10, 20, published=True)], api.listed())

    assert ask(ledger, api, "a") == ""

    notes = api.pods["a"]["metadata"]["annotations"]
    assert int(notes.pop(ASSUMED)) > 10**18  # nanoseconds
    assert json.loads(notes.pop(MEMORY_ANNOTATION)) == {
        "version": 1,
        "node": "n",
        "containers": {"c0": [{"index": "0", "uuid": "GPU-n-0"}]},
    }
    assert notes == {
        "ALIYUN_COM_GPU_MEM_IDX": "0",
        "ALIYUN_COM_GPU_MEM_DEV": "10",
        "ALIYUN_COM_GPU_MEM_POD": "4",
        "ALIYUN_COM_GPU_MEM_ASSIGNED": "false",
        "scheduler.framework.gpushare.allocation": '{"0":{"0":4}}',
    }
    assert free(ledger) == (6, 20)


def test_containers_of_one_pod_get_gpus_of_their_own():
    """What gpushare's index cannot say is no index: its plugin refuses it."""
    api = Pods(pod("a", 8, 0, 6), pod("b", 4, gpus=2))
    ledger = Ledger.of(MEM, [node("n", 10, 10)], api.listed())

    assert [ask(ledger, api, "a"), ask(ledger, api, "b")] == ["", ""]

    notes = [api.pods[name]["metadata"]["annotations"] for name in "ab"]
    assert [note[ALLOCATION] for note in notes] == [
        '{"0":{"0":8},"2":{"1":6}}',
        '{"0":{"0":2,"1":2}}',
    ]
    assert [note[INDEX] for note in notes] == ["0,1", "0,1"]
    assert free(ledger) == (0, 2)
    # A restart reads the same from the pods.
    again = Ledger.of(MEM, [node("n", 10, 10)], api.listed())
    assert again.books() == ledger.books()


def test_a_pod_without_gpu_memory_is_bound_without_notes():
    """The extender has the verb for all pods that the scheduler sends."""
    api = Pods(pod("a", 0))

    assert ask(Ledger(MEM), api, "a") == ""
    assert api.pods["a"]["metadata"]["annotations"] == {}


@pytest.mark.parametrize(
    ("name", "on", "uid", "words"),
    [
        ("none", "n", "", "not found"),
        ("a", "n", "uid-other", "another pod by now"),
        ("a", "elsewhere", "", "the extender does not know the node"),
        ("large", "n", "", "no GPU of it has 40 units"),
        ("negative", "n", "", "expected a number from 0"),
        ("bound", "n", "", "bound to m already"),
    ],
)
def test_a_pod_that_cannot_be_bound_is_refused(name: str, on: str, uid: str, words: str):
    """With the reason; nothing is reserved."""
    api = Pods(pod("a", 4), pod("large", 40), pod("negative", -4), pod("bound", 4, on="m"))
    ledger = Ledger.of(MEM, [node("n", 10)], [])

    assert words in ask(ledger, api, name, on, uid)
    assert api.bindings == 0
    assert free(ledger) == (10,)


def refusing(error: ApiError) -> Callable[[str, str], None]:
    """Fails bindings; reads work."""
    return lambda method, _: mock.Mock(side_effect=error)() if method == "POST" else None


@pytest.mark.parametrize("code", [400, 403, 404, 422])
def test_a_refused_binding_is_taken_back(code: int):
    """At once, and the next try gets it."""
    api = Pods(pod("a", 4))
    ledger = Ledger.of(MEM, [node("n", 10)], [])

    api.fail = refusing(ApiError(code, "no"))
    assert "no" in ask(ledger, api, "a")
    assert free(ledger) == (10,)

    api.fail = lambda *_: None
    assert ask(ledger, api, "a") == ""
    assert free(ledger) == (6,)


def test_a_binding_whose_answer_is_lost_is_looked_up():
    """It was made: the scheduler is answered so."""
    api = Pods(pod("a", 4))
    ledger = Ledger.of(MEM, [node("n", 10)], [])

    api.late = mock.Mock(side_effect=ApiError(0, "timed out"))
    assert ask(ledger, api, "a") == ""
    assert free(ledger) == (6,)
    assert not ledger.promises("n")["uid-a"].reserved


@pytest.mark.parametrize("code", [0, 500, 504])
def test_a_binding_that_nobody_knows_of_stays_reserved(code: int):
    """Until an event or the next try shows what became of it: it may still be made."""
    api = Pods(pod("a", 4), pod("b", 8))
    ledger = Ledger.of(MEM, [node("n", 10), node("m", 10)], [])

    api.fail = refusing(ApiError(code, "timed out"))
    assert "timed out" in ask(ledger, api, "a")
    assert "fewer than 8 units" in ask(ledger, api, "b")

    api.fail = lambda *_: None
    assert ask(ledger, api, "a", "m") == ""
    assert ask(ledger, api, "b", "n") == ""
    assert (free(ledger, "n"), free(ledger, "m")) == ((2,), (6,))


def test_the_api_server_away_for_both_requests_keeps_the_reservation():
    """And a deletion frees it."""
    api = Pods(pod("a", 4))
    ledger = Ledger.of(MEM, [node("n", 10)], [])

    api.fail = mock.Mock(side_effect=[None, *[ApiError(0, "gone")] * 9])
    assert "gone" in ask(ledger, api, "a")
    assert free(ledger) == (6,)
    ledger.drop_pod("uid-a")
    assert free(ledger) == (10,)


def test_a_lead_that_is_lost_meanwhile_binds_nothing():
    """Between the read and the write; nothing stays reserved."""
    api = Pods(pod("a", 4))
    ledger = Ledger.of(MEM, [node("n", 10)], [])
    with pytest.raises(NotLeading):
        bind(ledger, api, "default", "a", "uid-a", "n", packed=True, leads=lambda: False)
    assert api.bindings == 0
    assert free(ledger) == (10,)


def test_another_scheduler_that_was_faster_is_believed():
    """The pod is where it was bound, on a GPU not recorded."""
    api = Pods(pod("a", 4))
    ledger = Ledger.of(MEM, [node("n", 10), node("m", 10, 10)], [])

    def faster(method: str, _path: str) -> None:
        if method == "POST":
            api.pods["a"]["spec"]["nodeName"] = "m"

    api.fail = faster
    assert "already assigned" in ask(ledger, api, "a")
    assert (free(ledger, "n"), free(ledger, "m")) == ((10,), (6, 6))


@pytest.mark.parametrize("packed", [True, False])
def test_200_pods_at_once_are_never_promised_the_same_memory(packed: bool):
    """They ask for twice what there is, with answers refused and lost at random and events in between."""
    chance = random.Random(200)
    asks = [[chance.randint(1, 6) for _ in range(chance.choice([1, 1, 1, 2]))] for _ in range(200)]
    api = Pods(*(pod(f"p{number}", *units) for number, units in enumerate(asks)))
    nodes = [node(f"n{number}", 16, 16, published=True) for number in range(10)]
    ledger = Ledger.of(MEM, nodes, [])
    lock = threading.Lock()

    def sometimes(method: str, _path: str) -> None:
        with lock:
            fails = method == "POST" and chance.random() < 0.1
            code = chance.choice([0, 403, 409, 500])
        if fails:
            raise ApiError(code, "by chance")

    def lost() -> None:
        with lock:
            fails = chance.random() < 0.1
        if fails:
            raise ApiError(0, "lost")

    api.fail, api.late = sometimes, lost
    together = threading.Barrier(50)

    def schedule(number: int) -> None:
        if number < 50:
            together.wait(30)
        for step in range(10):
            if ask(ledger, api, f"p{number}", f"n{(number + step) % 10}", packed=packed) == "":
                return
            for each in api.listed(number % 29, 29):
                ledger.put_pod(each)

    with ThreadPoolExecutor(50) as pool:
        list(pool.map(schedule, range(200)))

    for item in api.listed():
        if not item["spec"].get("nodeName"):
            ledger.release(item["metadata"]["uid"])  # tries that nobody repeats
        ledger.put_pod(item)
    rebuilt = Ledger.of(MEM, nodes, api.listed())
    assert rebuilt.books() == ledger.books()
    promised = 0
    for name in (f"n{number}" for number in range(10)):
        book: Any = ledger.book(name)
        assert book.unplaced == 0
        assert all(units <= gpu.units for gpu, units in zip(book.gpus, book.promised, strict=True))
        promised += sum(book.promised)
    bound = [each for each in api.listed() if each["spec"].get("nodeName")]
    assert promised == sum(sum(asks[int(each["metadata"]["name"][1:])]) for each in bound)
    assert promised > 250  # of 320


def test_no_schedule_promises_memory_twice_or_leaves_a_pod_waiting():
    """By chance, of binds, ends and deletions: counted by the pods' annotations alone, as an outsider does."""
    chance = random.Random(1000)
    for schedule in range(SCHEDULES):
        sizes = [chance.choice([4, 8, 8, 16]) for _ in range(chance.randint(1, 3))]
        api = Pods()
        ledger = Ledger.of(MEM, [node("n", *sizes, published=True)], [])

        def left(api: Pods = api, sizes: list[int] = sizes) -> list[int]:
            rest = list(sizes)
            for entry in api.pods.values():
                if entry["spec"].get("nodeName") and entry["status"]["phase"] != "Succeeded":
                    notes = json.loads(entry["metadata"]["annotations"][ALLOCATION])
                    for gpus in notes.values():
                        for index, units in gpus.items():
                            rest[int(index)] -= units
            return rest

        for step in range(25):
            bound = [entry for entry in api.pods.values() if entry["spec"].get("nodeName")]
            if bound and chance.random() < 0.3:
                item = chance.choice(bound)
                if chance.random() < 0.5:
                    item["status"]["phase"] = "Succeeded"
                    ledger.put_pod(item)
                else:
                    del api.pods[item["metadata"]["name"]]
                    ledger.drop_pod(item["metadata"]["uid"])
                continue
            name, each, gpus = f"p{step}", chance.randint(1, 6), chance.randint(1, 2)
            api.pods[name] = pod(name, each * gpus, gpus=gpus)
            before = left()
            refused = ask(ledger, api, name, packed=schedule % 2 == 0)
            assert bool(refused) == (sum(units >= each for units in before) < gpus), (refused, before)
            assert min(left()) >= 0
            if not refused and chance.random() < 0.8:
                ledger.put_pod(api.pods[name])
