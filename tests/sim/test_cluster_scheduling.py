"""Which node a pod gets, and kube-scheduler's words where it gets none."""

from typing import Any

import pytest

from gpunode.sim.apiserver.store import Object, Store
from gpunode.sim.scheduler import schedule

GPU = "nvidia.com/gpu"


@pytest.fixture
def store() -> Store:
    return Store()


def add_node(store: Store, name: str, gpus: int, *taints: Object, **spec: Any) -> None:
    room = {"cpu": "4", "memory": "8Gi", "pods": "110", GPU: str(gpus)}
    store.put(
        {
            "kind": "Node",
            "apiVersion": "v1",
            "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
            "spec": {**spec, "taints": list(taints)},
            "status": {"allocatable": room},
        }
    )


def add_pod(store: Store, name: str, gpus: int, **spec: Any) -> None:
    requests = {GPU: str(gpus), **spec.pop("requests", {})}
    container = {"name": "c", "image": "i", "resources": {"requests": requests}}
    store.put(
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"containers": [container], **spec},
            "status": {"phase": "Pending"},
        }
    )


def outcome(store: Store, name: str) -> str:
    """The pod's node, or why it has none."""
    schedule(store)
    pod = store.get("Pod", "default", name)
    assert pod is not None
    return pod["spec"].get("nodeName") or pod["status"]["conditions"][0]["message"]


def test_a_pod_gets_the_node_that_has_room_for_it(store: Store):
    """GPUs that other pods hold are counted; one that is over holds none."""
    add_node(store, "a", 2)
    add_node(store, "b", 4)
    add_pod(store, "big", 3)
    assert outcome(store, "big") == "b"
    add_pod(store, "small", 2)
    assert outcome(store, "small") == "a"
    big = store.get("Pod", "default", "big")
    assert big is not None
    store.change(big, lambda pod: pod["status"].update(phase="Succeeded"))
    add_pod(store, "next", 4)
    assert outcome(store, "next") == "b"


def test_a_pod_that_asks_for_too_much_stays_pending_with_the_schedulers_words(store: Store):
    """More than any node has."""
    add_node(store, "a", 2)
    add_node(store, "b", 4)
    add_pod(store, "greedy", 8)
    assert outcome(store, "greedy") == "0/2 nodes are available: 2 Insufficient nvidia.com/gpu."
    (event,) = store.all("Event") or [{}]
    assert event == {}  # namespace default is not there: nothing can be told in it


@pytest.mark.parametrize(
    ("node", "spec", "words"),
    [
        ({}, {"nodeSelector": {"kubernetes.io/hostname": "b"}}, "1 node(s) didn't match Pod's node affinity/selector"),
        ({"unschedulable": True}, {}, "1 node(s) were unschedulable"),
        ({}, {"requests": {"cpu": "8"}}, "1 Insufficient cpu"),
        ({}, {"requests": {"cpu": "8", "memory": "64Gi"}}, "1 Insufficient cpu, 1 Insufficient memory"),
    ],
)  # fmt: skip
def test_each_reason_has_its_words(store: Store, node: Object, spec: Object, words: str):
    """Selector, cordon, room."""
    add_node(store, "a", 1, **node)
    add_pod(store, "p", 1, **spec)
    assert outcome(store, "p") == f"0/1 nodes are available: {words}."


TAINT = {"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}


@pytest.mark.parametrize(
    ("toleration", "fits"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "nvidia.com/gpu", "value": "no"}, False),
        ({"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "other", "operator": "Exists"}, False),
    ],
)
def test_taints_keep_off_who_does_not_tolerate_them(store: Store, toleration: Object, fits: bool):
    """By key, value and effect."""
    add_node(store, "a", 1, TAINT)
    add_pod(store, "p", 1, tolerations=[toleration])
    assert (outcome(store, "p") == "a") is fits
    if not fits:
        assert "1 node(s) had untolerated taint(s)" in outcome(store, "p")
