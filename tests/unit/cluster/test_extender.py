"""The scheduler extender's objects in the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode import report
from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import KINDS
from gpunode.cluster.objects import difference
from gpunode.cluster.objects.apply import ORDER
from gpunode.commands import share_inspect as shares
from gpunode.errors import ClusterError, Problem
from gpunode.links.scheduler import deployment
from gpunode.links.scheduler.deployment import NAME, STAYS, Spec, rights_to_remove
from gpunode.links.scheduler.picture import Mismatch
from gpunode.model import PluginImage, Share
from gpunode.sim.controllers import workloads
from gpunode.wording import Advice

from .conftest import pod
from .fake import FakeApi


@pytest.mark.parametrize("archive", [None, "plugin.tar"])
def test_two_replicas_of_which_one_is_ready(archive: str | None) -> None:
    """Replaced both at once; where the image is loaded by gpunode, on the nodes that have it."""
    image = PluginImage("plugin:1", archive)
    spec = Spec(
        "ns", image, Share(policy="distributed", resource="example.com/mem"), deployment.make_certificates()
    )
    made = {one["kind"]: one for one in spec.manifests}

    assert set(made) <= set(ORDER)
    assert {one["metadata"].get("namespace", "ns") for one in spec.manifests} == {"ns"}
    wanted = made["Deployment"]["spec"]
    assert wanted["replicas"] == 2
    assert wanted["strategy"] == {"type": "Recreate"}
    pod = wanted["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][-2:] == ["--resource=example.com/mem", "--policy=distributed"]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert ("nodeSelector" in pod) == (archive is not None)
    assert {one["key"] for one in pod["volumes"][0]["secret"]["items"]} == {"ca.crt", "tls.crt", "tls.key"}
    assert made["Service"]["spec"]["selector"].items() <= wanted["template"]["metadata"]["labels"].items()
    rules = made["ClusterRole"]["rules"]
    assert [(one["resources"], one["verbs"]) for one in rules] == [
        (["nodes", "pods"], ["get", "list", "watch"]),
        (["pods/binding"], ["create"]),
        (["pods/status"], ["patch"]),
    ]


ROLES = [
    yaml.safe_load(part.split("```")[0])
    for part in (Path(__file__).parents[3] / "docs/safety.md").read_text().split("```yaml\n")[1:]
    if "kind: ClusterRole\n" in part
]


def given(roles: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Verb and resource, as `get deployments.apps`."""
    return {
        (verb, f"{resource}.{group}" if group else resource)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_documents_roles_are_what_share_and_a_notebook_take(api: Api) -> None:
    """To write, to remove, to ask; and the API server lets nobody give rights that he does not have."""
    base, more = given(ROLES[:1]), given(ROLES[1:])
    spec = Spec("ns", PluginImage("any"), Share(), dict.fromkeys(deployment.FILES, ""))
    own = [one for one in spec.manifests if one["kind"] in ("Role", "ClusterRole")]
    kinds = {KINDS[one["kind"]].resource for one in spec.manifests}
    applied = {(verb, kind) for verb in ("get", "patch", "create") for kind in kinds}
    asked = (*rights.of_share("ns"), *rights_to_remove(api, "ns"), *rights.of_notebook("ns"))
    needed = given(own) | applied | {(one.verb, one.resource) for one in asked}
    assert needed - base - more == set()
    repair = {("patch", "pods")}
    maintenance = {(verb, kind) for verb, kind in more if verb in ("list", "watch", "delete")}
    assert more - needed - repair - maintenance == set()


def test_a_plan_shows_no_key() -> None:
    """Neither new nor changed."""
    one, other = (
        next(
            each
            for each in Spec("ns", PluginImage("i"), Share(), deployment.make_certificates()).manifests
            if each["kind"] == "Secret"
        )
        for _ in range(2)
    )
    shown = [difference.created(one), difference.changed(one, other), difference.removed(one)]
    assert [each.action for each in shown] == ["created", "changed", "removed"]
    text = "\n".join(line for each in shown for line in each.lines)
    assert NAME in text
    assert not any(value in text for value in one["data"].values())


def test_a_repair_leaves_a_pod_alone_that_has_its_name_from_another_by_now(api: Api, fake: FakeApi) -> None:
    """A StatefulSet makes its pods again by the same names."""
    fake.put(pod("train-0", node="a", namespace="ml", gpus=1))
    (before,) = fake.all("Pod")
    finding = Mismatch(Problem("elsewhere", "", subject="a"), "ml/train-0", {"x": "1"})
    shown = report.make(json=False, quiet=True)
    seen = [deepcopy(before)]
    seen[0]["metadata"] |= {"uid": "another", "resourceVersion": "0"}
    assert not shares._repaired(api, finding, seen, shown)
    assert shares._repaired(api, finding, [deepcopy(before)], shown)
    (now,) = fake.all("Pod")
    assert now["metadata"]["annotations"] == {"x": "1"}


@pytest.mark.parametrize(
    ("reason", "patience", "refusal", "fix"),
    [
        ("FailedCreate", "REFUSED", "pods is forbidden: exceeded quota: few", "The ResourceQuota `few`"),
        ("Simulated", "FINAL", workloads.WHY, "describe deployments share"),
    ],
)
def test_pods_that_the_cluster_does_not_make_are_not_waited_for_to_the_end(
    api: Api,
    fake: FakeApi,
    monkeypatch: pytest.MonkeyPatch,
    reason: str,
    patience: str,
    refusal: str,
    fix: str,
) -> None:
    """As of a quota, or in the simulation, where nobody tries again: the Deployment has the reason, and it is told meanwhile."""
    monkeypatch.setattr(deployment, patience, 0.0)
    condition = {"type": "ReplicaFailure", "status": "True", "reason": reason, "message": refusal}
    state = {"conditions": [condition]}
    fake.put({"kind": "Deployment", "metadata": {"name": "share", "namespace": "gpunode"}, "status": state})
    with pytest.raises(ClusterError) as caught:
        deployment.wait_for_deployment(
            api, "share", "gpunode", what="the extender", seconds=600, tell=print, hint=STAYS
        )
    assert f"for the extender: the cluster makes no pods: {refusal}" in caught.value.message
    assert fix in caught.value.hint
    assert isinstance(caught.value.hint, Advice)
    assert "`gpunode share disable x.yaml` removes the objects" in caught.value.hint.on("x.yaml")


def test_a_wait_for_a_deployment_names_its_limit(
    api: Api, fake: FakeApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside what stands in the way so far."""
    told: list[str] = []
    ready = {"observedGeneration": 1, "updatedReplicas": 2, "replicas": 2, "readyReplicas": 1}
    share = {
        "kind": "Deployment",
        "metadata": {"name": "share", "namespace": "gpunode"},
        "spec": {"replicas": 2},
    }
    fake.put(share)
    monkeypatch.setattr(deployment.time, "sleep", lambda _: fake.put({**share, "status": ready}))
    deployment.wait_for_deployment(
        api, "share", "gpunode", what="the extender", seconds=180, tell=told.append
    )
    assert told == ["waiting for the extender, up to 3 min"]
