"""The link `work`: containers that lost their GPUs, pods that the kubelet refused, pods with GPUs that they never asked for."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpunode.commands import verify
from gpunode.engine.member import Member
from gpunode.engine.session import Session
from gpunode.errors import NO_RIGHTS, Problem
from gpunode.links.node import Node
from gpunode.links.pod.work import judge_work
from gpunode.model import Facts, GpuContainer, GpuUser, Host, Outcome, Ssh, Verdict
from tests import cases

SEEN = cases.facts("modern")
FILES = ("/dev/nvidia0", "/dev/nvidiactl")
Pod = Mapping[str, Any]


def given(pod: str | None, lost: Sequence[str] | None = (), name: str | None = None) -> GpuContainer:
    files = None if lost is None else tuple(lost)
    return GpuContainer("ab" * 32, pod, name or (pod and f"ml/{pod}"), FILES, files)


def make_pod(
    uid: str, *, gpus: int = 0, owner: str = "", reason: str = "", phase: str = "", **spec: object
) -> Pod:
    limits = {"limits": {"nvidia.com/gpu": str(gpus)}} if gpus else {}
    owners = [{"kind": owner, "name": "o", "controller": True}] if owner else []
    return {
        "metadata": {"name": uid, "namespace": "ml", "uid": uid, "ownerReferences": owners},
        "spec": {"containers": [{"name": "c", "resources": limits}], **spec},
        "status": {
            "phase": phase or ("Failed" if reason else "Running"),
            "reason": reason,
            "message": "Pod was rejected" if reason else "",
        },
    }


def judge(
    *pods: Pod, containers: Sequence[GpuContainer] = (), users: Sequence[GpuUser] = ()
) -> Verdict | None:
    seen = replace(SEEN, gpu_containers=tuple(containers), gpu_users=tuple(users))
    return judge_work(seen, [dict(pod) for pod in pods])


def test_without_containers_and_refused_pods_there_is_no_link():
    """Pods that ended for another reason, or that asked for no GPU, are not the node's concern."""
    assert judge() is None
    assert judge(make_pod("train", gpus=1)) is None
    assert judge(make_pod("done", gpus=1, reason="Evicted")) is None
    assert judge(make_pod("web", reason="NodeShutdown")) is None


@pytest.mark.parametrize(
    ("pods", "fix"),
    [
        ([make_pod("train", gpus=1, owner="Job")], "kubectl -n ml delete pod train"),
        ([make_pod("train", gpus=1)], "kubectl -n ml get pod train -o yaml | kubectl replace --force -f -"),
        ([], "kubectl -n ml delete pod train; its controller creates it again"),
    ],
)
def test_a_container_that_lost_its_gpus_is_named_with_what_starts_it_again(pods: Sequence[Pod], fix: str):
    """A bare pod is gone once it is deleted; where the cluster was not asked, the host knows the pod's name alone."""
    link = judge(*pods, containers=[given("train", lost=FILES), given("other")])
    assert (link.status, link.text, link.fix) == ("broken", "1 container lost GPUs: ml/train", fix)
    assert link.cause.startswith("ml/train: its device cgroup refuses /dev/nvidia0, /dev/nvidiactl.")


def test_the_container_of_the_pod_is_named_where_the_kubelet_says_which_it_is():
    statuses = [{"name": "side", "containerID": "containerd://" + "cd" * 32}]
    statuses.append({"name": "main", "containerID": "containerd://" + "ab" * 32})
    pod = {**make_pod("train", gpus=1), "status": {"phase": "Running", "containerStatuses": statuses}}
    link = judge(pod, containers=[given("train", lost=FILES)])
    assert link.cause.startswith("ml/train, container main: its device cgroup refuses")


def test_a_pod_whose_containers_all_lost_their_gpus_is_named_once():
    pod = make_pod("train", gpus=2, owner="Job")
    link = judge(pod, containers=[given("train", lost=FILES), given("train", lost=FILES[:1])])
    assert (link.text, link.fix) == ("2 containers lost GPUs: ml/train", "kubectl -n ml delete pod train")


def test_a_container_whose_pod_was_deleted_is_about_to_end():
    link = judge(make_pod("other", gpus=1), containers=[given("train", lost=FILES), given("other")])
    assert link.status == "ok"


def test_a_container_outside_kubernetes_is_named_too():
    link = judge(containers=[given(None, lost=FILES, name="web")])
    assert "docker restart web" in link.fix
    nameless = judge(containers=[given(None, lost=FILES)])
    assert nameless.text == "1 container lost GPUs: abababababab"


def test_containers_that_keep_their_gpus_and_those_of_which_nothing_is_known_are_counted():
    link = judge(make_pod("a", gpus=1), containers=[given("a"), given("b", lost=None)])
    assert link == Verdict.ok(
        "work", "1 container can use the GPUs allocated to them; 1 more unknown on this host"
    )


@pytest.mark.parametrize(
    "reason",
    [
        "UnexpectedAdmissionError",
        "OutOfnvidia.com/gpu",
        "TopologyAffinityError",
        "NodeShutdown",
        "Terminated",
    ],
)
def test_a_pod_that_the_kubelet_refused_is_named_with_what_starts_it_again(reason: str):
    """A bare one stays as it is; of one that its controller replaced only the object is left, which is no fault."""
    link = judge(make_pod("train", gpus=1, reason=reason))
    assert (link.status, link.text) == ("broken", "the kubelet refused 1 pod: ml/train")
    assert link.cause == f"ml/train: {reason}: Pod was rejected"
    assert link.fix == "kubectl -n ml get pod train -o yaml | kubectl replace --force -f -"
    left = judge(make_pod("train", gpus=1, reason=reason, owner="ReplicaSet"))
    assert (left.status, left.fix) == ("ok", "kubectl -n ml delete pod train")
    assert left.cause.endswith("its controller made another")


def uses(pod: str) -> GpuUser:
    return GpuUser(7, "python3", "cd" * 32, pod, f"ml/{pod}", ("0000:01:00.0",))


@pytest.mark.parametrize(
    ("pod", "containers", "users", "cause"),
    [
        (make_pod("a"), [given("a")], [], "ml/a has GPUs and asks for none: NVIDIA_VISIBLE_DEVICES of"),
        (
            make_pod("a"),
            [given("x")],
            [uses("a")],
            "ml/a has GPUs and asks for none: python3 uses 0000:01:00.0: it is",
        ),
        (make_pod("a", gpus=1), [given("a")], [uses("a")], ""),
        (make_pod("a", owner="DaemonSet"), [given("a")], [uses("a")], ""),
        (make_pod("a", resourceClaims=[{"name": "gpu"}]), [given("a")], [], ""),
        (make_pod("a", phase="Succeeded"), [given("a")], [], ""),
        (make_pod("a"), [given("x")], [replace(uses("a"), gpus=())], ""),
    ],
)
def test_a_pod_with_gpus_that_it_never_asked_for_is_a_remark(
    pod: Pod, containers: Sequence[GpuContainer], users: Sequence[GpuUser], cause: str
):
    """Those of DaemonSets, as of the device plugin, serve the node; a claim of DRA asks, too; a library alone is no use of a GPU."""
    link = judge(pod, containers=containers, users=users)
    assert link.status == "ok"
    assert link.cause.startswith(cause) if cause else not link.cause
    assert ("isolation: true" in link.fix) is bool(cause)


class Cluster:
    """Answers with these pods, and notes what it was asked."""

    def __init__(self, *pods: Pod) -> None:
        self.pods, self.asked = pods, list[str]()

    def find(self, kind: str, *, fields: str) -> tuple[list[Any], str]:
        self.asked.append(f"{kind} {fields}")
        return list(self.pods), ""


def test_it_follows_the_chain_also_after_a_broken_link(monkeypatch):
    """The pods are those of the host's node; the host is broken then, and its other links are as many as before."""
    host = Host("a", Ssh("192.0.2.1"))
    seen: Facts = replace(SEEN, gpu_containers=(given("train", lost=FILES),))
    member = Member(host, Outcome("a", "right", seen), node=cast(Node, SimpleNamespace(name="node-a")))
    cluster = Cluster(make_pod("train", gpus=1, owner="Job"))
    monkeypatch.setattr(verify.nodes, "connect", lambda _: cluster)
    monkeypatch.setattr(verify.nodes, "locate", lambda _, members, **__: members)
    session = SimpleNamespace(
        inventory=SimpleNamespace(cluster=SimpleNamespace(plugin=object())),
        reporter=SimpleNamespace(note=print),
    )
    chain = (Verdict.broken("runtime", "gone"), Verdict.unknown("kubelet"))
    chains = verify._with_work(cast(Session, session), (member,), {"a": chain})
    assert [link.layer for link in chains["a"]] == ["runtime", "kubelet", "work"]
    assert chains["a"][-1].fix == "kubectl -n ml delete pod train"
    assert cluster.asked == ["Pod spec.nodeName=node-a"]
    assert verify.list_unchecked(chains["a"]) == verify.list_unchecked(chain)
    assert verify.find_broken({"a": chains["a"][1:]}) == {"a": "work"}
    unread = {"a": (Verdict.unknown("ssh", "not judged", Problem(NO_RIGHTS, "no root")),)}
    assert verify._with_work(cast(Session, session), (member,), unread) == unread
