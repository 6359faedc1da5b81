"""`gpunode why` on a real control plane: what its scheduler and kubelets really write is read, and checked against the cluster."""

from collections.abc import Callable
from typing import Any

import pytest

from gpunode.links.pod import pending

from .api import Lab
from .conftest import Ran
from .pods import NAMESPACE, Pods
from .progress import wait

pytestmark = pytest.mark.lab
NODE, GPU = "modern", "nvidia.com/gpu"
KEPT = {"key": "lab.gpunode.dev/kept", "value": "yes", "effect": "NoSchedule"}


@pytest.fixture(scope="module", autouse=True)
def provisioned(gpunode: Callable[..., Ran]) -> None:
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran


def message(made: Pods, name: str) -> str:
    """The scheduler's, once it has looked at the pod."""
    wait(f"{name} to be looked at", lambda: bool(pending.message(made.get(name))), 60)
    return pending.message(made.get(name))


def reasons(ran: Ran, code: int = 1) -> list[dict[str, Any]]:
    assert ran.code == code, ran
    return ran.of("reason")


def test_what_the_scheduler_writes_is_checked_against_the_cluster(
    lab: Lab, gpunode: Callable[..., Ran], made: Pods
):
    """Too many, a name that nobody offers, a label that no node has: nothing of it is only quoted."""
    for name, more, code in (
        ("greedy", {"gpus": 64, "nodeSelector": {}}, "too-many"),
        ("shared", {"resource": "nvidia.com/gpu.shared"}, "no-such-resource"),
        ("elsewhere", {"nodeSelector": {"lab.gpunode.dev/rack": "none"}}, "selector"),
    ):
        made.make(name, NODE, **more)
        assert pending.reasons(message(made, name)), name
        assert [reason["code"] for reason in reasons(gpunode(f"why pod default/{name}", "--json"))] == [code]


def test_who_has_the_gpus_of_a_node_is_named(lab: Lab, gpunode: Callable[..., Ran], made: Pods):
    made.make("holder", NODE, lab.units(NODE))
    wait("the holder to run", lambda: made.get("holder")["status"].get("phase") == "Running", 120)
    made.make("second", NODE)
    message(made, "second")

    (reason,) = reasons(gpunode("why pod default/second", "--json"))

    assert reason["code"] == "in-use"
    assert reason["evidence"] == [
        f"{NODE}: 0 of {lab.units(NODE)} free, in use by default/holder ({lab.units(NODE)})"
    ]
    ran = gpunode(f"why node {NODE}", "--json")
    assert ran.code == 0, ran
    assert "default/holder" in ran.of("answer")[0]["text"]


def test_a_taint_and_a_cordon_are_told_with_who_set_them(lab: Lab, gpunode: Callable[..., Ran], made: Pods):
    where = f"/api/v1/nodes/{NODE}"
    lab.request("PATCH", where, {"spec": {"taints": [KEPT], "unschedulable": True}})
    try:
        made.make("kept-out", NODE, tolerations=[])
        message(made, "kept-out")
        told = reasons(gpunode("why pod default/kept-out", "--json"))
        assert sorted(reason["code"] for reason in told) == ["cordoned", "tainted"]
        assert [reason["code"] for reason in reasons(gpunode(f"why node {NODE}", "--json"))] == ["cordoned"]
    finally:
        lab.request("PATCH", where, {"spec": {"taints": None, "unschedulable": None}})


def test_a_pod_that_a_kubelet_refused_is_told_why(lab: Lab, gpunode: Callable[..., Ran], made: Pods):
    """Bound past the scheduler, it asks for more GPUs than the node has."""
    made.make("too-much", NODE, 64, nodeName=NODE)
    wait("the refusal", lambda: made.get("too-much")["status"].get("phase") == "Failed", 60)
    told = reasons(gpunode("why pod default/too-much", "--json"))
    assert [reason["code"] for reason in told] == ["too-many", "pods-refused"]
    assert f"kubectl -n {NAMESPACE.rpartition('/')[2]} get pod too-much" in told[1]["fix"]


def test_each_gpu_of_a_node_is_found(lab: Lab, gpunode: Callable[..., Ran]):
    ran = gpunode("status", "--json", "--limit", NODE)
    rows = ran.of("gpu")
    assert rows, ran
    for row in rows:
        answer = gpunode(f"why gpu {row['uuid']}", "--json")
        assert answer.code == 0, answer
        assert f"of node {NODE}" in answer.of("answer")[0]["text"]
