"""Why a pod is on no node: objects in, causes out, in the order of what to do first."""

from collections.abc import Iterable
from typing import Any

import pytest

from gpunode.errors import Problem
from gpunode.links.pod import fit, pending
from gpunode.links.pod.pending import Waiting, judge, largest, reasons, suspects
from tests import tables

GPU, MIG, SLICED = "nvidia.com/gpu", "nvidia.com/mig-1g.5gb", "nvidia.com/gpu.shared"
Object = dict[str, Any]


def node(
    name: str,
    gpus: int = 4,
    *,
    counted: int | None = None,
    ready: bool = True,
    labels: Object | None = None,
    taints: list[Object] | None = None,
    cpu: str = "64",
    managed: list[Object] | None = None,
    annotations: Object | None = None,
    since: str = "",
    **spec: Any,
) -> Object:
    room = {"cpu": cpu, "memory": "256Gi", "pods": "110"}
    return {
        "metadata": {
            "name": name,
            "uid": name,
            "labels": {"gpunode.dev/gpu": "true", **(labels or {})},
            "annotations": annotations or {},
            "managedFields": managed or [],
        },
        "spec": {"taints": taints or [], **spec},
        "status": {
            "allocatable": {**room, GPU: str(gpus)},
            "capacity": {**room, GPU: str(gpus if counted is None else counted)},
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True" if ready else "Unknown",
                    "message": "Kubelet stopped posting",
                    "lastTransitionTime": since,
                }
            ],
        },
    }


def pod(
    name: str = "p", gpus: int = 1, *, on: str = "", says: str = "", asks: Object | None = None, **spec: Any
) -> Object:
    limits = {GPU: str(gpus)} if gpus and asks is None else asks or {}
    refused = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": says}
    return {
        "metadata": {"name": name, "namespace": "ml", "uid": name},
        "spec": {"containers": [{"name": "c", "resources": {"limits": limits}}], **({"nodeName": on} if on else {}), **spec},
        "status": {"phase": "Running" if on else "Pending", "conditions": [refused]},
    }  # fmt: skip


UNVERIFIED = {"key": "gpunode.dev/unverified", "value": "20261126T001200Z-0a1b", "effect": "NoSchedule"}
KEPT = {"key": "nvidia.com/gpu", "value": "yes", "effect": "NoSchedule"}
GONE = {"key": "node.kubernetes.io/unreachable", "effect": "NoExecute"}
FULL = [pod("a", 3, on="n1"), pod("b", 1, on="n1")]
TWO = [*FULL, pod("c", 4, on="n2")]
H100 = {"accelerator": "nvidia-h100-80gb"}
CLAIM = {"volumes": [{"persistentVolumeClaim": {"claimName": "data"}}]}
P100 = {"n1": "nvidia-tesla-p100"}


def affinity(*asked: tuple[str, Iterable[str]]) -> Object:
    """For one of these, operator and values, of the label `accelerator`."""
    terms = [
        {"matchExpressions": [{"key": "accelerator", "operator": operator, "values": list(values)}]}
        for operator, values in asked
    ]
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}


UNBOUND = "0/1 nodes are available: pod has unbound immediate PersistentVolumeClaims. preemption: 0/1 nodes are available: 1 Preemption is not helpful for scheduling."


@pytest.mark.parametrize(
    ("waiting", "codes", "words"),
    [
        pytest.param(Waiting(pod(), [node("n1")], FULL), ["in-use"], "n1: 0 of 4 free, in use by ml/a (3), ml/b (1)", id="all in use"),
        pytest.param(Waiting(pod(), [node("n1"), node("n2")], TWO), ["in-use"], "n2: 0 of 4 free, in use by ml/c (4)", id="on all nodes"),
        pytest.param(Waiting(pod(priority=9), [node("n1")], FULL), ["in-use"], "the scheduler may end for it, of lower priority: ml/a, ml/b", id="of lower priority"),
        pytest.param(Waiting(pod(priority=9, preemptionPolicy="Never"), [node("n1")], FULL), ["in-use"], "preemptionPolicy keeps", id="that it may not end"),
        pytest.param(Waiting(pod(gpus=8), [node("n1"), node("n2", 2)], ()), ["too-many"], "no node has more than 4", id="more than any node has"),
        pytest.param(Waiting(pod(gpus=8), [node("n1")], FULL), ["too-many"], "at most 4", id="too many is told before in use"),
        pytest.param(Waiting(pod(gpus=8), [node("n1", 3, counted=4), node("n2", 0, counted=4)], (), wrong={"n2": Problem("no-pod", "no pod")}), ["too-many"], "no node has more than 4", id="too many, and no repair helps"),
        pytest.param(Waiting(pod(gpus=8), [node("n1", 3, counted=4), node("n2", 0, counted=8)], (), wrong={"n2": Problem("no-pod", "no pod")}), ["no-pod"], "n2 offers 0 of 8", id="only a node with enough GPUs is to be repaired"),
        pytest.param(Waiting(pod(asks={SLICED: "1"}), [node("n1")], ()), ["no-such-resource"], "The nodes offer 4 nvidia.com/gpu", id="a shared name"),
        pytest.param(Waiting(pod(asks={SLICED: "1"}), [node("n1", 0, counted=4), node("n2")], ()), ["no-such-resource"], "Ask for nvidia.com/gpu", id="a shared name, and a node that is broken"),
        pytest.param(Waiting(pod(asks={MIG: "1"}), [node("n1")], FULL), ["no-such-resource"], "Ask for nvidia.com/gpu", id="MIG that nobody makes"),
        pytest.param(Waiting(pod(asks={"nvidia.com/gpus": "1"}), [node("n1")], ()), ["no-such-resource"], "Ask for nvidia.com/gpu ", id="a misspelt name"),
        pytest.param(Waiting(pod(), [node("n1", 0, labels={"gpunode.dev/gpu": ""})], ()), ["no-such-resource"], "No node offers GPUs", id="no GPU node"),
        pytest.param(Waiting(pod(nodeSelector=H100), [node("n1", labels={"accelerator": "nvidia-tesla-p100"})], ()), ["selector"], "n1: accelerator=nvidia-tesla-p100", id="another model"),
        pytest.param(Waiting(pod(nodeSelector=H100), [node("n1")], ()), ["selector"], "gpunode label --accelerator", id="no model is labelled"),
        pytest.param(Waiting(pod(nodeSelector=H100), [node("n1")], (), models={"n1": "nvidia-h100-80gb"}), ["selector"], "gpunode label --accelerator` labels the nodes with", id="a model that is there"),
        pytest.param(Waiting(pod(nodeSelector=H100), [node("n1")], (), models={"n1": "nvidia-tesla-p100"}), ["selector"], "Select a model that you have (nvidia-tesla-p100), and run", id="a model that no node has"),
        pytest.param(Waiting(pod(nodeSelector={"accelerator": "NVIDIA-H100-80GB"}), [node("n1")], (), models={"n1": "nvidia-h100-80gb"}), ["selector"], "has the labels that it requires: accelerator=NVIDIA-H100-80GB n1: nvidia-h100-80gb No node has the label accelerator", id="a model in capitals"),
        pytest.param(Waiting(pod(affinity=affinity(("Exists", []))), [node("n1")], (), models=P100), ["selector"], "gpunode label --accelerator` labels the nodes with", id="any model, and no label"),
        pytest.param(Waiting(pod(affinity=affinity(("NotIn", H100.values())), nodeSelector={"zone": "b"}), [node("n1")], (), models=P100), ["selector"], "Correct nodeSelector", id="a zone, and any model but one"),
        pytest.param(Waiting(pod(affinity=affinity(("In", H100.values()), ("Exists", []))), [node("n1")], (), models=P100), ["selector"], "gpunode label --accelerator` labels the nodes with", id="a model, or any"),
        pytest.param(Waiting(pod(affinity=affinity(("In", [*H100.values(), *P100.values()]))), [node("n1")], (), models=P100), ["selector"], "gpunode label --accelerator` labels the nodes with", id="one of two models"),
        pytest.param(Waiting(pod(affinity=affinity(("In", H100.values()))), [node("n1", labels={"accelerator": "x"})], ()), ["selector"], "accelerator in (nvidia-h100-80gb)", id="affinity"),
        pytest.param(Waiting(pod(nodeSelector=H100), [node("n1", labels=H100), node("n2")], FULL), ["in-use"], "n1: 0 of 4", id="a node that is not selected is no cause"),
        pytest.param(Waiting(pod(), [node("n1", taints=[KEPT])], ()), ["tainted"], "{key: nvidia.com/gpu, operator: Exists, effect: NoSchedule}", id="a taint"),
        pytest.param(Waiting(pod(tolerations=[{"operator": "Exists"}]), [node("n1", taints=[KEPT])], FULL), ["in-use"], "", id="a tolerated taint"),
        pytest.param(Waiting(pod(), [node("n1", taints=[UNVERIFIED])], ()), ["unverified"], "gpunode provision --limit n1", id="not proven yet"),
        pytest.param(Waiting(pod(), [node("n1", ready=False, taints=[GONE])], ()), ["node-not-ready"], "Kubelet stopped posting", id="NotReady"),
        pytest.param(Waiting(pod(), [node("n1", unschedulable=True)], ()), ["cordoned"], "kubectl uncordon n1", id="cordoned"),
        pytest.param(Waiting(pod(), [node("n1", unschedulable=True), node("n2")], TWO), ["cordoned", "in-use"], "n2: 0 of 4 free, in use by ml/c (4)\nn1: 0 of 4 free, in use by ml/a (3), ml/b (1)", id="cordoned and in use"),
        pytest.param(Waiting(pod(), [node("n1", unschedulable=True)], FULL), ["cordoned", "in-use"], "When its node is open, it starts", id="only cordoned ones"),
        pytest.param(Waiting(pod(priority=9), [node("n1", unschedulable=True), node("n2")], TWO), ["cordoned", "in-use"], "of lower priority: ml/c Nothing", id="the scheduler ends no pod on a cordoned node"),
        pytest.param(Waiting(pod(gpus=4), [node("n1", 3, counted=4)], (), wrong={"n1": Problem("unhealthy", "GPU 2 is Unhealthy: Xid 79", fix="Reboot")}), ["unhealthy"], "GPU 2 is Unhealthy", id="one is sick"),
        pytest.param(Waiting(pod(), [node("n1", 0)], (), wrong={"n1": Problem("no-pod", "no pod")}), ["no-pod"], "n1 offers no nvidia.com/gpu", id="the plugin offers none"),
        pytest.param(Waiting(pod(), [node("n1", 0), node("n2")], [pod("c", 4, on="n2")]), ["fewer", "in-use"], "gpunode verify --limit n1", id="broken first, then in use"),
        pytest.param(Waiting(pod(**CLAIM), [node("n1")], (), {"data": None}), ["no-claim"], "data does not exist", id="a claim that is not there"),
        pytest.param(Waiting(pod(says=UNBOUND, **CLAIM), [node("n1")], (), {"data": {"status": {"phase": "Pending"}}}), ["claim-unbound"], "describe pvc data", id="a claim without a volume"),
        pytest.param(Waiting(pod(schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]), [node("n1")], ()), ["gated"], "kueue", id="gated"),
        pytest.param(Waiting(pod(asks={GPU: "1", "cpu": "2"}), [node("n1", cpu="1500m")], ()), ["other-resource"], "it asks for 2 cpu, 1.5 of 1.5 free", id="a node too small in cpu"),
        pytest.param(Waiting(pod(says="0/1 nodes are available: 1 node(s) didn't match pod anti-affinity rules."), [node("n1")], ()), ["pod-affinity"], "anti-affinity", id="what objects do not show"),
        pytest.param(Waiting(pod(says="0/1 nodes are available: 1 the moon is full."), [node("n1")], ()), ["scheduler"], "the moon is full", id="an unknown reason is quoted"),
        pytest.param(Waiting(pod(says="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."), [node("n1")], ()), ["fits-now"], "n1 has room", id="what has passed is not repeated"),
    ],
)  # fmt: skip
def test_a_pending_pod_has_these_causes(waiting: Waiting, codes: list[str], words: str):
    problems = judge(waiting)

    assert [problem.code for problem in problems] == codes
    assert words in " ".join(f"{problem.what} {problem.cause} {problem.fix}" for problem in problems)
    assert all(problem.fix for problem in problems)


def test_a_node_that_is_not_ready_is_named_with_the_time_since_when():
    (problem,) = judge(Waiting(pod(), [node("n1", ready=False, since="2026-11-26T00:12:00Z")], ()))

    assert problem.cause.endswith("\nsince 2026-11-26T00:12:00Z")


@pytest.mark.parametrize(
    ("over", "field", "manager", "cause"),
    [
        ({"unschedulable": True}, "f:unschedulable", "kubectl-cordon", "cordoned by kubectl-cordon at TIME"),
        (
            {"unschedulable": True},
            "f:unschedulable",
            "unknown",
            "cordoned at TIME; the cluster does not record by whom",
        ),
        ({"taints": [KEPT]}, "f:taints", "kubectl-taint", "taints last set by kubectl-taint at TIME"),
    ],
)
def test_who_cordoned_or_tainted_a_node_is_told_as_the_api_server_has_it(
    over: dict[str, Any], field: str, manager: str, cause: str
):
    time = "2026-11-26T00:12:00Z"
    entry = {"manager": manager, "time": time, "fieldsV1": {"f:spec": {field: {}}}}

    (problem,) = judge(Waiting(pod(), [node("n1", managed=[entry], **over)], ()))

    assert problem.cause == cause.replace("TIME", time)


def test_who_asks_for_too_many_is_told_what_is_wrong_with_the_largest_nodes():
    cluster = [node("n1"), node("n2", unschedulable=True), node("n3", 2, unschedulable=True)]
    broken = {"n1": Problem("library", "link `library` of host n1 is broken")}

    (problem,) = judge(Waiting(pod(gpus=8), cluster, (), wrong=broken))

    assert largest(pod(gpus=8), cluster) == ["n1", "n2"]
    assert problem.cause.splitlines() == [
        "n1, n2: 4 each",
        "n2 is cordoned",
        "link `library` of host n1 is broken: see `gpunode why node n1`",
    ]


def test_a_broken_link_of_the_host_is_the_cause_of_a_node_that_is_not_ready():
    item = node("n1", ready=False)
    assert suspects(pod(), [item]) == ["n1"]
    broken = Problem("kubelet", "link `kubelet` of host n1 is broken", subject="n1")
    problems = judge(Waiting(pod(), [item], (), wrong={"n1": broken}))
    assert [problem.code for problem in problems] == ["kubelet", "node-not-ready"]


def test_a_cordon_of_gpunodes_names_its_run_and_the_command_that_ends_it():
    notes = {"gpunode.dev/cordoned-by": "run 20261126T001200Z-0a1b of ann@ops"}

    (problem,) = judge(Waiting(pod(), [node("n1", unschedulable=True, annotations=notes)], ()))

    assert "ann@ops" in problem.cause
    assert "gpunode resume" in problem.fix


@pytest.mark.parametrize(
    ("message", "parts"),
    [
        ("0/3 nodes are available: 1 Insufficient cpu, 2 Insufficient nvidia.com/gpu.", ["Insufficient cpu", "Insufficient nvidia.com/gpu"]),
        ("0/3 nodes are available: 3 node(s) had taint {a: b}, that the pod didn't tolerate.", ["node(s) had taint {a: b}, that the pod didn't tolerate"]),
        ("0/3 nodes are available: 1 node(s) had untolerated taint(s), 2 Insufficient memory. no new claims to deallocate, preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.", ["node(s) had untolerated taint(s)", "Insufficient memory"]),
        (UNBOUND, ["pod has unbound immediate PersistentVolumeClaims"]),
        ('persistentvolumeclaim "x" not found', ['persistentvolumeclaim "x" not found']),
        ("", []),
    ],
)  # fmt: skip
def test_the_schedulers_message_is_read_as_its_reasons(message: str, parts: list[str]):
    assert reasons(message) == parts


def test_no_sentence_of_the_scheduler_that_is_known_is_one_that_the_objects_judge_and_another_does():
    """The first row that matches counts: a sentence of Kubernetes' matches the row of its own plugin."""
    own = {
        "node(s) didn't match pod anti-affinity rules": "pod-affinity",
        "node(s) didn't satisfy existing pods anti-affinity rules": "pod-affinity",
        "node(s) didn't match Pod's node affinity/selector": "",
        "node(s) had volume node affinity conflict": "volume-elsewhere",
        "node(s) didn't match PersistentVolume's node affinity": "volume-elsewhere",
        "node(s) didn't find available persistent volumes to bind": "volume-missing",
        "node(s) did not have enough free storage": "volume-missing",
        "node(s) exceed max volume count": "volume-busy",
        "node(s) didn't match pod topology spread constraints (missing required label)": "spread",
        "node(s) didn't have free ports for the requested pod ports": "host-port",
        "node(s) didn't match the requested node name": "node-name",
        "cannot allocate all claims": "resource-claim",
        "Too many pods": "",
        "no single GPU has 8 units of memory free": "gpu-memory",  # of gpunode's extender
        "it does not publish its GPUs: aliyun.com/gpu-count is 0": "gpu-memory",
    }
    for sentence, code in own.items():
        problems = judge(Waiting(pod(says=f"0/1 nodes are available: 1 {sentence}."), [node("n1")], ()))
        assert [problem.code for problem in problems] == [code or "fits-now"]


@tables.rows("quantities")
def test_a_quantity_counts_in_thousandths(quantity: object, units: int):
    assert fit.thousandths(quantity) == units


def test_init_containers_count_by_the_greatest_and_sidecars_with_the_others():
    asked = pod(gpus=1, initContainers=[
        {"name": "i", "resources": {"limits": {GPU: "3"}}},
        {"name": "s", "restartPolicy": "Always", "resources": {"limits": {GPU: "1"}}},
    ])  # fmt: skip
    assert fit.requests(asked)[GPU] == 3000
    asked["spec"]["initContainers"][0]["resources"] = {}
    assert fit.requests(asked)[GPU] == 2000


@tables.rows("affinity-expressions")
def test_an_expression_of_an_affinity_holds_as_for_the_scheduler(expression: Object, holds: bool):
    term = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}
    assert fit.selects(spec, node("n", labels={"a": "1"})) is holds


@pytest.mark.parametrize("empty", [{}, {"matchExpressions": []}, {"matchFields": []}])
def test_an_empty_term_of_an_affinity_selects_no_node(empty: Object):
    """source: kubernetes/component-helpers, scheduling/corev1/nodeaffinity, NewLazyErrorNodeSelector: they match no objects."""
    term: Object = {"nodeSelectorTerms": [empty]}
    spec = {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": term}}}
    assert not fit.selects(spec, node("n", labels={"a": "1"}))
    assert fit.selector(spec) == [fit.EMPTY]
    term["nodeSelectorTerms"].append({"matchExpressions": [{"key": "a", "operator": "Exists"}]})
    assert fit.selects(spec, node("n", labels={"a": "1"}))
    assert not fit.selects(spec, node("n"))


def test_overhead_and_the_resources_of_the_whole_pod_count():
    """The pod's own requests take the place of its containers', where it has any."""
    asked = pod(gpus=1, overhead={"cpu": "250m"})
    asked["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "2", "memory": "1Ki"}
    assert fit.requests(asked)["cpu"] == 2250
    asked["spec"]["resources"] = {"requests": {"cpu": "1"}, "limits": {"cpu": "4"}}
    assert fit.requests(asked)["cpu"] == 1250
    assert fit.requests(asked)["memory"] == 1024000
    asked["spec"]["resources"] = {"limits": {"cpu": "4"}}
    assert fit.requests(asked)["cpu"] == 2250
    assert fit.requests(asked)[GPU] == 1000


def test_nodes_that_offer_fewer_than_they_count_are_the_ones_whose_judges_are_asked():
    there = [node("n1", 0, counted=4), node("n2"), node("n3", 0, labels={"accelerator": "x"})]
    assert pending.suspects(pod(), there) == ["n1", "n3"]
    assert pending.suspects(pod(nodeSelector={"accelerator": "x"}), there) == ["n3"]
