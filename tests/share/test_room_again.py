"""Pods that found no room are told to the scheduler when there is room and it does not ask."""

import json
from typing import Any

import pytest

from gpunode.contract.promises import INDEX, MEMORY_ANNOTATION
from gpunode.deviceplugin.cluster.apiserver import ApiError, Object
from gpunode.share.ledger import Ledger
from gpunode.share.protocol import Extender
from gpunode.share.waiting import FORGET, ITSELF, ROOM, Waiting
from tests.share.objects import MEM, node, pod


class Touches:
    """An API server that takes touches of pods, or answers `code`."""

    def __init__(self) -> None:
        self.touched: list[str] = []
        self.code: int | None = None

    def get(self, path: str) -> Object:
        raise NotImplementedError

    def watch(self, path: str, seconds: int) -> Any:
        raise NotImplementedError

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        assert method == "PATCH"
        assert set(body["metadata"]) == {"uid", "annotations"}
        assert set(body["metadata"]["annotations"]) == {ROOM}
        self.touched.append(path.removeprefix("/api/v1/namespaces/"))
        if self.code is not None:
            raise ApiError(self.code, "no")


class Cluster:
    """A node whose GPUs are full, and pods that wait."""

    def __init__(self) -> None:
        self.api, self.now = Touches(), 0.0
        self.ledger = Ledger.of(
            MEM,
            [node("n", 10, 10)],
            [pod("a", 8, on="n", **{INDEX: "0"}), pod("b", 8, on="n", **{INDEX: "1"})],
        )
        self.extender = Extender(self.ledger, self.api)
        self.extender.waiting = self.waiting = Waiting(
            self.ledger, self.api, packed=True, clock=lambda: self.now
        )
        self.waiting.tend()  # the books as they are

    def ask(self, name: str, units: int = 3) -> bool:
        """Whether the scheduler is told of a node."""
        return bool(self.extender.filter({"Pod": pod(name, units), "NodeNames": ["n"]})["NodeNames"])

    def after(self, seconds: float) -> list[str]:
        """Which pods are touched then."""
        self.now += seconds
        self.waiting.tend()
        touched, self.api.touched = self.api.touched, []
        return touched


@pytest.fixture
def cluster() -> Cluster:
    """One that has refused the pod `large`."""
    made = Cluster()
    assert not made.ask("large")
    return made


def test_a_pod_that_was_refused_just_before_there_was_room_is_touched_once(cluster: Cluster):
    """The scheduler knew of the end before the ledger did, and would not ask again for five minutes."""
    cluster.ledger.drop_pod("uid-a")

    assert cluster.after(0.1) == []
    assert cluster.after(ITSELF) == ["default/pods/large/status"]
    assert cluster.after(ITSELF) == []
    assert cluster.ask("large")


def test_a_pod_that_the_scheduler_asks_about_itself_is_left_alone(cluster: Cluster):
    cluster.ledger.drop_pod("uid-a")
    assert cluster.after(0.1) == []
    assert cluster.ask("large")
    assert cluster.after(ITSELF) == []


@pytest.mark.parametrize(
    "happens",
    [
        pytest.param(lambda scene: None, id="nothing"),
        pytest.param(lambda scene: scene.ledger.put_pod(pod("c", 1, on="n", **{INDEX: "0"})), id="less-room"),
        pytest.param(
            lambda scene: scene.ledger.put_pod(pod("a", 8, on="n", phase="Running", **{INDEX: "0"})),
            id="it-runs",
        ),
        pytest.param(lambda scene: scene.ledger.drop_node("n"), id="the-node-is-gone"),
    ],
)
def test_where_no_room_is_added_nobody_is_touched(cluster: Cluster, happens: Any):
    happens(cluster)
    assert cluster.after(0.1) == []
    assert cluster.after(ITSELF) == []


def test_only_those_for_whom_the_room_is_enough_are_touched():
    cluster = Cluster()
    assert not cluster.ask("small", 3)
    assert not cluster.ask("larger", 11)
    cluster.ledger.drop_pod("uid-a")
    cluster.after(0.1)
    assert cluster.after(ITSELF) == ["default/pods/small/status"]


def test_a_new_node_is_room(cluster: Cluster):
    cluster.ledger.put_node(node("m", 10))
    cluster.after(0.1)
    assert cluster.after(ITSELF) == ["default/pods/large/status"]


@pytest.mark.parametrize(
    ("code", "again"), [(0, True), (503, True), (403, True), (422, True), (404, False), (409, False)]
)
def test_a_touch_that_failed_is_tried_again_unless_the_pod_is_gone(cluster: Cluster, code: int, again: bool):
    cluster.ledger.drop_pod("uid-a")
    cluster.after(0.1)
    cluster.api.code = code
    assert len(cluster.after(ITSELF)) == 1
    assert cluster.after(ITSELF) == []
    assert bool(cluster.after(ITSELF)) == again


def test_a_pod_that_nobody_asks_about_any_more_is_forgotten(cluster: Cluster):
    cluster.after(FORGET)
    cluster.ledger.drop_pod("uid-a")
    cluster.after(0.1)
    assert cluster.after(ITSELF) == []


def test_no_more_are_touched_than_there_is_room_for():
    """The others are, once it is seen who took it."""
    cluster = Cluster()
    for number in range(200):
        assert not cluster.ask(f"p{number}")
    cluster.ledger.drop_pod("uid-a")  # 10 units are free: three pods of 3
    cluster.after(0.1)
    assert len(cluster.after(ITSELF)) == 3
    assert cluster.after(0.1) == []
    assert len(cluster.after(ITSELF)) == 3


def test_room_that_another_has_taken_is_none(cluster: Cluster):
    cluster.ledger.drop_pod("uid-a")
    assert cluster.after(0.1) == []
    cluster.ledger.put_pod(pod("c", 8, on="n", **{INDEX: "0"}))
    assert cluster.after(ITSELF) == []
    cluster.ledger.drop_pod("uid-c")
    assert cluster.after(0.1) == []
    assert cluster.after(ITSELF) == ["default/pods/large/status"]


def test_one_that_cannot_be_touched_comes_after_the_others():
    cluster = Cluster()
    assert not cluster.ask("bad", 8)
    assert not cluster.ask("good", 8)
    cluster.ledger.drop_pod("uid-a")
    cluster.after(0.1)
    cluster.api.code = 422
    assert cluster.after(ITSELF) == ["default/pods/bad/status"]
    cluster.api.code = None
    assert cluster.after(ITSELF) == ["default/pods/good/status"]


def test_units_of_an_earlier_configuration_do_not_make_a_gpu_too_small_for_ever():
    """The rest comes back when the earlier pod ends."""
    gpu = {"index": "0", "uuid": "GPU-0", "units": 10, "reserved": 4}
    shared = node("n", 10, **{MEMORY_ANNOTATION: json.dumps({"version": 1, "gpus": [gpu]})})
    answer = Extender(Ledger.of(MEM, [shared], []), Touches()).filter(
        {"Pod": pod("a", 8), "NodeNames": ["n"]}
    )
    assert answer["FailedNodes"] == {"n": "fewer than 8 units of GPU memory are free"}
    assert answer["FailedAndUnresolvableNodes"] == {}
