"""Cordons with their owner, pods that are waited for or evicted, and one operator a cluster."""

import threading
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from gpunode.cluster import lease
from gpunode.cluster.api import Api, connect
from gpunode.engine import work
from gpunode.engine.member import Member
from gpunode.errors import ClusterError, Problem
from gpunode.links import node as nodes
from gpunode.links.node import cordon, drain
from gpunode.model import Cluster as Wanted
from gpunode.model import Host, Outcome, Ssh
from gpunode.sim.apiserver import kubectl
from gpunode.sim.cluster import Cluster
from tests import tables

from .clusters import Client, until
from .proxy import Proxy


@pytest.fixture
def api(cluster: Cluster, client: Client) -> Iterator[Api]:
    client.ask("POST", "/api/v1/nodes", {"kind": "Node", "metadata": {"name": "n1"}, "spec": {}})
    made = connect(Wanted(kubeconfig=str(cluster.kubeconfig)))
    yield made
    made.close()
    client.ask("DELETE", "/api/v1/nodes/n1")
    for item in client.ask("GET", "/api/v1/pods")[1]["items"]:
        client.ask(
            "DELETE",
            f"/api/v1/namespaces/default/pods/{item['metadata']['name']}",
            {"gracePeriodSeconds": 0},
        )


def node(api: Api) -> dict[str, Any]:
    item = api.get("Node", "n1")
    assert item
    return item


def set_unschedulable(client: Client, value: bool | None) -> None:
    """As kubectl does it, under its own name."""
    client.ask(
        "PATCH",
        "/api/v1/nodes/n1",
        {"spec": {"unschedulable": value}},
        "application/merge-patch+json",
        fieldManager="kubectl-cordon",
    )


def pod(client: Client, name: str, *, gpus: int = 0, owner: str = "", **meta: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    owners = [{"apiVersion": "apps/v1", "kind": owner, "name": "x", "uid": "u"}] if owner else []
    body = {
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "ownerReferences": owners, **meta},
        "spec": {
            "nodeName": "n1",
            "containers": [{"name": "c", "image": "i", "resources": {"limits": limits}}],
        },
    }
    code, made = client.ask("POST", "/api/v1/namespaces/default/pods", body)
    assert code == 201, made
    return dict(made)


# --- cordons ---


def test_a_cordon_carries_its_owner_and_is_lifted(api: Api):
    assert cordon.cordon(api, "n1", "run-1 ada@ws")
    assert cordon.owner_of(node(api)) == "run-1 ada@ws"
    assert cordon.owners(api) == {"n1": "run-1 ada@ws"}

    assert cordon.uncordon(api, "n1")
    after = node(api)
    assert not after["spec"].get("unschedulable")
    assert cordon.OWNER not in (after["metadata"].get("annotations") or {})
    assert cordon.owners(api) == {}


def test_a_run_takes_over_the_cordon_of_a_dead_one(api: Api):
    assert cordon.cordon(api, "n1", "dead")
    assert cordon.cordon(api, "n1", "mine")
    assert cordon.owners(api) == {"n1": "mine"}


def test_somebody_elses_cordon_stays(api: Api, client: Client):
    set_unschedulable(client, True)
    assert not cordon.cordon(api, "n1", "mine")
    assert not cordon.uncordon(api, "n1")
    assert node(api)["spec"]["unschedulable"]


def test_a_cordon_set_by_hand_after_gpunodes_was_lifted_by_hand_stays(api: Api, client: Client):
    """The annotation is still there: only the field's manager shows whose it is."""
    cordon.cordon(api, "n1", "mine")
    set_unschedulable(client, None)
    set_unschedulable(client, True)
    assert cordon.owner_of(node(api)) == ""
    assert not cordon.uncordon(api, "n1")
    assert node(api)["spec"]["unschedulable"]


def test_a_node_that_is_gone_is_named(api: Api):
    with pytest.raises(ClusterError, match="no node `n9` any more"):
        cordon.cordon(api, "n9", "mine")


# --- pods ---


def test_pods_are_told_apart_by_what_ends_them(api: Api, client: Client):
    pod(client, "train", gpus=1)
    pod(client, "web")
    pod(client, "plugin", owner="DaemonSet")
    pod(client, "etcd", annotations={drain.MIRROR: "x"})

    work = {entry.name: (dict(entry.asks), entry.service) for entry in drain.work_on(api, "n1")}

    assert work == {
        "default/etcd": ({}, True),
        "default/plugin": ({}, True),
        "default/train": ({"nvidia.com/gpu": 1}, False),
        "default/web": ({}, False),
    }


@tables.rows("pods-kept-by-finalizers")
def test_a_pod_that_only_a_finalizer_keeps_is_not_waited_for(
    status: dict[str, Any], deleted: bool, works: bool
):
    item = {
        "metadata": {
            "name": "p",
            "uid": "u",
            **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}),
        },
        "spec": {"containers": [{"name": "c"}]},
        "status": status,
    }
    assert bool(drain.find_work([item])) == works


def test_init_containers_ask_one_after_the_other_resource_by_resource():
    def container(**limits: int) -> dict[str, Any]:
        names = {"gpu": "nvidia.com/gpu", "memory": "aliyun.com/gpu-mem", "cpu": "cpu"}
        return {"resources": {"limits": {names[key]: str(amount) for key, amount in limits.items()}}}

    spec = {
        "containers": [container(memory=2, cpu=4), container(memory=3), {}],
        "initContainers": [container(memory=4), container(gpu=1)],
    }
    (work,) = drain.find_work([{"metadata": {"name": "p", "uid": "u"}, "spec": spec}])
    assert work.asks == {"aliyun.com/gpu-mem": 5, "nvidia.com/gpu": 1}


def test_waiting_names_the_pod_and_ends_with_it(api: Api, client: Client):
    made = pod(client, "train", gpus=1)
    told: list[str] = []
    results: list[tuple[drain.Work, ...]] = []
    waiting = threading.Thread(
        target=lambda: results.append(
            drain.wait(api, "n1", lambda each: bool(each.asks), evict=False, seconds=30, notify=told.append)
        )
    )
    waiting.start()
    until(lambda: told == ["waiting for default/train: at most 30 s"])
    client.ask(
        "DELETE", f"/api/v1/namespaces/default/pods/{made['metadata']['name']}", {"gracePeriodSeconds": 0}
    )
    waiting.join(60)
    assert results == [()]


def test_pods_that_do_not_end_in_time_are_returned(api: Api, client: Client):
    pod(client, "train", gpus=1)
    left = drain.wait(api, "n1", lambda pod: bool(pod.asks), evict=False, seconds=0.2, notify=lambda _: None)
    assert [entry.name for entry in left] == ["default/train"]


def test_eviction_ends_a_pod_in_its_grace(api: Api, client: Client):
    """The API server marks the pod; it is waited for until its kubelet has ended it. A DaemonSet's stays."""
    pod(client, "web")
    pod(client, "plugin", owner="DaemonSet")

    def kubelet() -> None:
        where = "/api/v1/namespaces/default/pods/web"
        until(lambda: "deletionTimestamp" in client.ask("GET", where)[1]["metadata"])
        client.ask("DELETE", where, {"gracePeriodSeconds": 0})

    thread = threading.Thread(target=kubelet)
    thread.start()
    left = drain.wait(api, "n1", lambda each: not each.service, evict=True, seconds=20, notify=lambda _: None)
    thread.join()
    assert left == ()
    assert [entry.name for entry in drain.work_on(api, "n1")] == ["default/plugin"]


def test_a_disruption_budget_that_never_allows_it_is_named(api: Api, client: Client, monkeypatch):
    made = pod(client, "web")
    asked: list[str] = []
    budget = "The disruption budget web needs 1 healthy pods and has 1 currently"

    def evict(_: Api, item: dict[str, Any]) -> str:
        asked.append(item["metadata"]["uid"])
        return budget

    monkeypatch.setattr(Api, "evict", evict)
    told: list[str] = []
    (left,) = drain.wait(api, "n1", lambda each: True, evict=True, seconds=3, notify=told.append)

    assert (left.name, left.obstacle) == ("default/web", budget)
    assert asked == [made["metadata"]["uid"]]  # again only after RETRY
    assert told[-1].endswith(f", at most 3 s; default/web may not be evicted: {budget}")


def test_a_budget_holds_a_pod_whose_other_containers_run(api: Api, client: Client, monkeypatch):
    """The one with a GPU crashes; what the budget is for may be the one that runs."""
    made = pod(client, "web", gpus=1)
    spec = {**made["spec"], "containers": [*made["spec"]["containers"], {"name": "d", "image": "i"}]}
    states = {"c": {"waiting": {"reason": "CrashLoopBackOff"}}, "d": {"running": {}}}
    statuses = [{"name": name, "state": state} for name, state in states.items()]
    monkeypatch.setattr(
        drain,
        "changes",
        lambda *_, **__: iter(
            [({"u": {**made, "spec": spec, "status": {"containerStatuses": statuses}}}, "1")]
        ),
    )
    monkeypatch.setattr(Api, "evict", lambda *_: "The disruption budget web needs 1 healthy pods")
    monkeypatch.setattr(drain, "_reports", lambda *_: True)
    (left,) = drain.wait(api, "n1", lambda each: True, evict=True, seconds=1, notify=lambda _: None)
    assert left.standstill == ""
    (left,) = drain.wait(api, "n1", lambda each: True, evict=False, seconds=1, notify=lambda _: None)
    assert left.standstill == "CrashLoopBackOff"


# --- one operator ---


def test_one_operator_holds_the_cluster(api: Api, monkeypatch):
    """A second run is refused by the first one's name, and goes on when that has ended."""
    monkeypatch.setattr(lease, "RENEW", 0.1)
    monkeypatch.setattr(lease, "RETRY", 0.3)
    with lease.hold(api, "ada", lambda _: None) as held:
        with (
            pytest.raises(ClusterError, match="ada is changing this cluster's nodes"),
            lease.hold(api, "bob", lambda _: None),
        ):
            pass
        assert not held.lost
    with lease.hold(api, "bob", lambda _: None):
        pass


@pytest.mark.parametrize("year", [2001, 2099])
def test_a_dead_operators_lease_is_taken_over(api: Api, monkeypatch, year: int):
    """Whatever its clock said: what counts is whether the Lease changes."""
    monkeypatch.setattr(lease, "SECONDS", 1)
    monkeypatch.setattr(lease, "RETRY", 0.1)
    clock_says(monkeypatch, year)
    live = api.get("Lease", lease.NAME, lease.NAMESPACE)
    (api.replace if live else api.create)(lease._lease("dead", live or {}))
    monkeypatch.undo()
    monkeypatch.setattr(lease, "SECONDS", 1)
    told: list[str] = []
    with lease.hold(api, "bob", told.append) as held:
        assert (held.holder, told) == (
            "bob",
            ["dead holds the cluster's lease: waiting to see whether it still works"],
        )


@pytest.mark.parametrize("year", [2001, 2099])
def test_a_live_operator_whose_clock_is_wrong_keeps_its_lease(api: Api, monkeypatch, year: int):
    monkeypatch.setattr(lease, "RENEW", 0.1)
    monkeypatch.setattr(lease, "RETRY", 0.3)
    clock_says(monkeypatch, year)
    with (
        lease.hold(api, "ada", lambda _: None),
        pytest.raises(ClusterError, match="ada is changing this cluster's nodes"),
        lease.hold(api, "bob", lambda _: None),
    ):
        pass


def clock_says(monkeypatch, year: int) -> None:
    class Wrong(datetime):
        @classmethod
        def now(cls, tz: Any = None) -> "Wrong":
            return super().now(tz).replace(year=year, day=1)

    monkeypatch.setattr(lease, "datetime", Wrong)


@pytest.mark.parametrize("taken", [False, True])
def test_nothing_begins_while_the_lease_may_be_another_s(
    api: Api, cluster: Cluster, monkeypatch, taken: bool
):
    """The API server is away for one operator alone, and for longer than the Lease lasts."""
    for name, value in (("SECONDS", 0.5), ("RENEW", 0.05), ("RETRY", 0.05)):
        monkeypatch.setattr(lease, name, value)
    door = Proxy(cluster.kubeconfig)
    mine = connect(Wanted(kubeconfig=str(door.kubeconfig)))
    told: list[str] = []
    never = lambda: False  # noqa: E731
    with lease.hold(mine, "ada", told.append) as held:
        assert held.lost_reason(60, told.append, never) == ""
        told.clear()  # where another process kept this one from renewing it in time
        door.shut()
        until(lambda: lease.clock() - held.renewed >= 0.5)
        assert held.lost_reason(60, told.append, lambda: True) == ""  # nor does an interrupted run wait
        if taken:
            live = api.get("Lease", lease.NAME, lease.NAMESPACE)
            assert live
            api.replace(lease._lease("bob", live))
        answers: list[str] = []
        asking = threading.Thread(target=lambda: answers.append(held.lost_reason(60, told.append, never)))
        asking.start()
        until(lambda: told)
        assert not answers
        door.open()
        asking.join(60)
        assert answers == (["bob has taken the cluster's lease"] if taken else [""])
    mine.close()
    door.close()
    live = api.get("Lease", lease.NAME, lease.NAMESPACE)
    assert live
    api.replace(lease._lease("", live))


def test_a_lease_that_cannot_be_renewed_is_given_up(monkeypatch):
    monkeypatch.setattr(lease, "RETRY", 0.01)
    held = lease.Held("ada")
    held.renewed = lease.clock() - 60
    assert held.lost_reason(0.05, lambda _: None, lambda: False) == "its lease could not be renewed for 0 min"


def test_a_kubernetes_without_leases_is_passed_over(api: Api, monkeypatch):
    """Before 1.12. The user is told to see to it."""
    monkeypatch.setattr(
        kubectl, "KINDS", {name: kind for name, kind in kubectl.KINDS.items() if name != "Lease"}
    )
    told: list[str] = []
    with lease.hold(api, "ada", told.append) as held:
        assert held.lost_reason(0, told.append, lambda: False) == ""
        assert not held.exclusive  # so that nobody's pods are taken for a dead run's
    assert told == [
        "this Kubernetes has no Leases (it is older than 1.12): make sure that no other operator changes its nodes"
    ]


def replaced(api: Api, holder: str) -> bool:
    """Make the lease this holder's; False where another write came first."""
    live = api.get("Lease", lease.NAME, lease.NAMESPACE)
    assert live
    try:
        api.replace(lease._lease(holder, live))
    except ClusterError:
        return False
    return True


def test_an_answer_that_was_lost_on_its_way_loses_no_lease(api: Api, monkeypatch):
    """The API server has a version of ours that this run does not know."""
    monkeypatch.setattr(lease, "RENEW", 0.05)
    with lease.hold(api, "ada", lambda _: None) as held:
        until(lambda: replaced(api, "ada"))
        now = lease.clock()
        until(lambda: held.renewed > now)
        assert held.lost == ""


def test_a_run_that_ends_leaves_another_s_lease(api: Api):
    """Taken since it was last renewed."""
    with lease.hold(api, "ada", lambda _: None):
        assert replaced(api, "bob")
    assert lease.holder(api) == "bob"
    assert replaced(api, "")


def test_only_a_proven_node_is_given_back(api: Api):
    """One that failed its proof takes no pods."""
    assert cordon.cordon(api, "n1", "mine")
    host = Host("n1", Ssh("n1"))
    member = Member(host, Outcome("n1", "right"), nodes.parse(node(api)))
    work.release(api, (member.exclude(Problem("failed", "no proof")),), "")
    assert cordon.owners(api) == {"n1": "mine"}
    work.release(api, (member,), "")
    assert cordon.owners(api) == {}


def test_a_lease_that_was_taken_is_known_to_be_lost(api: Api, monkeypatch):
    monkeypatch.setattr(lease, "RENEW", 0.05)
    with lease.hold(api, "ada", lambda _: None) as held:
        until(lambda: replaced(api, "bob"))
        until(lambda: held.lost)
        assert held.lost == "bob has taken the cluster's lease"
    live = api.get("Lease", lease.NAME, lease.NAMESPACE)
    assert live
    assert live["spec"]["holderIdentity"] == "bob"
    api.replace(lease._lease("", live))
