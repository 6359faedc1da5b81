"""Whether API server and etcd are healthy, asked before and after a host of the control plane is disturbed."""

from dataclasses import replace
from typing import Any

import pytest

from gpunode import report
from gpunode.cluster import control_plane
from gpunode.cluster.api import Api
from gpunode.engine import batch
from gpunode.engine import control_plane as rollout
from gpunode.engine import rollout as runs
from gpunode.engine.member import Member
from gpunode.model import (
    Cluster,
    Disturbance,
    Disturbed,
    File,
    Host,
    Inventory,
    Outcome,
    Plan,
    PluginImage,
    Reboot,
    Ssh,
    StepPlan,
)

from .conftest import add_node, pod
from .fake import FakeApi, Fault, plain

OK = plain(200, "ok")
FORBIDDEN = Fault(403, "Forbidden", "forbidden: User cannot get path")
GONE = plain(404, "404 page not found")
READY = {"conditions": [{"type": "Ready", "status": "True"}]}


@pytest.fixture
def cluster(fake: FakeApi) -> FakeApi:
    """Two nodes of the control plane, each with its etcd; and a worker that nobody asks about."""
    for name, role in (("cp1", "control-plane"), ("cp2", "master")):
        add_node(fake, name, labels={f"node-role.kubernetes.io/{role}": ""})
        labels = {"component": "etcd", "tier": "control-plane"}
        fake.put(pod(f"etcd-{name}", node=name, namespace="kube-system", labels=labels, **READY))
    add_node(fake, "worker", ready=False)
    fake.closed = {"/readyz": OK, "/readyz/etcd": OK, "/healthz": OK, "/healthz/etcd": OK}
    return fake


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        ({}, ""),
        ({"/readyz": GONE, "/readyz/etcd": GONE}, ""),  # before 1.16
        (
            {"/readyz": GONE, "/healthz": plain(500, "[+]ping ok\n[-]etcd failed\n")},
            "/healthz answers 500: [-]etcd failed",
        ),
        ({"/readyz": plain(500, "[-]etcd failed: reason withheld")}, "/readyz answers 500"),
        ({"/readyz/etcd": FORBIDDEN}, ""),
        ({"/readyz/etcd": plain(500, "etcd failed")}, "/readyz/etcd answers 500"),
        ({"/readyz": FORBIDDEN}, "/readyz answers 403"),
    ],
)
def test_the_api_server_says_whether_it_and_etcd_are_healthy(
    api: Api, cluster: FakeApi, answers: dict[str, Fault], problem: str
):
    """By the names that its version has. Who may not ask for etcd alone asks for all."""
    cluster.closed |= answers
    reported = control_plane.problem(api)
    assert reported.startswith(problem) if problem else reported == ""


def test_an_etcd_that_is_not_ready_is_named(api: Api, cluster: FakeApi):
    """One of several: the API server is healthy, and a second one gone would be too many."""
    cluster.update("Pod", "etcd-cp2", "kube-system", status={"conditions": []})
    assert control_plane.problem(api) == "not Ready: etcd-cp2"
    assert control_plane.problem(api, but=["cp2"]) == ""


def test_a_node_of_it_that_is_not_ready_is_named(api: Api, cluster: FakeApi):
    add_node(cluster, "cp2", ready=False, labels={"node-role.kubernetes.io/control-plane": ""})
    assert control_plane.problem(api) == "not Ready: cp2"
    assert control_plane.problem(api, but=["cp2"]) == ""


def test_an_api_server_that_is_away_is_a_problem(api: Api, cluster: FakeApi):
    for _ in range(3):  # a request that fails is made again
        cluster.fail("GET", "/readyz", None)
    assert control_plane.problem(api)


# --- which hosts are of it ---


def member(named: bool = False, manifest: str = "", *, quiet: bool = False) -> Member:
    """A host whose plan reboots it."""
    host = Host("cp1", Ssh("cp1"), control_plane=named)
    facts: Any = None
    if manifest:
        facts = type("Facts", (), {"files": {manifest: File(manifest, True)}, "units": {}})()
    plan = Plan("cp1", (StepPlan("reboot", (Reboot("why"),)),))
    disturbs = Disturbed(Disturbance(reboot=not quiet), pods={})
    return Member(host, Outcome("cp1", "planned", facts=facts, plan=plan, disturbs=disturbs))


APISERVER = "/etc/kubernetes/manifests/kube-apiserver.yaml"
INVENTORY = Inventory("inventory.yaml", (), Cluster(plugin=PluginImage("plugin:1")))


@pytest.mark.parametrize(
    ("asked", "inventory", "status"),
    [
        (member(manifest=APISERVER), INVENTORY, "refused"),
        (member(True, manifest=APISERVER), INVENTORY, "planned"),
        (member(True, manifest=APISERVER), Inventory("x", (), Cluster()), "refused"),
        (member(manifest=APISERVER, quiet=True), INVENTORY, "planned"),
        (member(manifest="/etc/kubernetes/kubelet.conf"), INVENTORY, "planned"),
        (member(), INVENTORY, "planned"),
    ],
)
def test_a_host_of_the_control_plane_is_disturbed_only_when_named(
    asked: Member, inventory: Inventory, status: str
):
    """And only where its health can be asked for."""
    (after,) = rollout.refuse_unnamed(inventory, (asked,))
    assert after.outcome.status == status
    if status == "refused":
        assert after.outcome.why == "it belongs to the control plane, and the plan disturbs it: reboot"
        assert (
            "`control_plane: true`" in after.outcome.problem.fix
            or "`cluster.plugin`" in after.outcome.problem.fix
        )


def test_a_host_whose_control_plane_is_not_healthy_is_out(api: Api, cluster: FakeApi, monkeypatch, capsys):
    monkeypatch.setattr(rollout, "AFTER", 0.0)
    cluster.update("Pod", "etcd-cp2", "kube-system", status={"conditions": []})
    reporter = report.make(json=True, quiet=True)
    members = (member(), Member(Host("other", Ssh("other"))))
    assert rollout.healthy_after(api, members, [], reporter) == members
    each, other = rollout.healthy_after(api, members, ["cp1"], reporter)
    assert other.reason is None
    assert (each.reason.code, each.reason.what) == (
        rollout.UNHEALTHY,
        "the control plane is not healthy: not Ready: etcd-cp2",
    )
    assert "cp1: the control plane is not healthy" in capsys.readouterr().out
    assert runs._unhealthy((each, other)) == each.reason.what  # no further batch begins
    assert runs._unhealthy((other,)) == ""
    assert batch.end_state(each)[0] == "skipped"  # nothing was changed there
    assert each.outcome is not None
    changed = replace(each, outcome=replace(each.outcome, status="changed", plan=None))
    assert batch.end_state(changed)[0] == "failed"
