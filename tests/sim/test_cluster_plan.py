"""What a plan shows of gpunode's objects in a cluster after other clients changed them."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from gpunode.cluster.api import Api, connect
from gpunode.cluster.api.kinds import KINDS, path
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.errors import Claim
from gpunode.links import node as nodes
from gpunode.links.node import labels
from gpunode.links.plugin import other_owners
from gpunode.links.plugin.deployment import Spec, all_objects
from gpunode.model import Cluster as Access
from gpunode.model import PluginConfig, PluginImage, PluginPublish
from gpunode.sim.cluster import Cluster

from .clusters import Client

NS = "gpunode"
NAME = "gpunode-device-plugin"
CONFIG = PluginConfig("version: v1\nflags:\n  migStrategy: none\n")
WANTED = Spec(NS, PluginImage("plugin:1"), CONFIG).manifests
DAEMONSET = f"/apis/apps/v1/namespaces/{NS}/daemonsets/{NAME}"
CONFIGMAP = f"/api/v1/namespaces/{NS}/configmaps/{NAME}"
CONTAINER = '.spec.template.spec.containers[name="device-plugin"]'
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


@pytest.fixture(scope="module")
def deployed(cluster: Cluster, client: Client) -> Iterator[Api]:
    """All objects are there."""
    api = connect(Access(kubeconfig=str(cluster.kubeconfig)))
    apply.apply(api, WANTED)
    yield api
    api.close()


def test_resource_slices_show_which_nodes_gpus_a_dra_driver_allocates(deployed: Api, client: Client):
    """As a DRA driver publishes them; another node has no other owner."""
    slices = "/apis/resource.k8s.io/v1/resourceslices"
    spec = {"driver": "gpu.nvidia.com", "nodeName": "dra-1", "devices": [{"name": "gpu-0"}]}
    spec |= {"pool": {"name": "dra-1", "generation": 1, "resourceSliceCount": 1}}
    meta = {"name": "dra-1-gpu.nvidia.com"}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": meta, "spec": spec}
    code, answer = client.apply(body, f"{slices}/{meta['name']}", force="true")
    assert code == 201, answer
    assert dict(other_owners.dra_owners(deployed).slices) == {
        "dra-1": ("ResourceSlice dra-1-gpu.nvidia.com",)
    }
    code, answer = client.ask("DELETE", f"{slices}/{meta['name']}")
    assert code == 200, answer
    assert other_owners.dra_owners(deployed) == other_owners.NONE


@dataclass(frozen=True)
class Edit:
    """Another client's edit and what the plan then shows: diff lines without context, and whose they are."""

    place: str
    body: Any
    content: str = STRATEGIC
    lines: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()


def container(**fields: Any) -> dict[str, Any]:
    return {"spec": {"template": {"spec": {"containers": [{"name": "device-plugin", **fields}]}}}}


EDITS = {
    "another image": Edit(
        DAEMONSET,
        container(image="theirs:2"),
        lines=("-        image: theirs:2", "+        image: plugin:1"),
        claims=(Claim(f"{CONTAINER}.image", "kubectl-edit"),),
    ),
    "two fields, one of them of a nested object": Edit(
        DAEMONSET,
        container(image="theirs:2", resources={"limits": {"memory": "1Gi"}}),
        lines=(
            "-        image: theirs:2",
            "+        image: plugin:1",
            "-            memory: 1Gi",
            "+            memory: 256Mi",
        ),
        claims=(
            Claim(f"{CONTAINER}.image", "kubectl-edit"),
            Claim(f"{CONTAINER}.resources.limits.memory", "kubectl-edit"),
        ),
    ),
    "a variable's value": Edit(
        DAEMONSET,
        container(env=[{"name": "PROBE_ADDRESS", "value": ":1"}]),
        lines=("-          value: :1", "+          value: :9401"),
        claims=(Claim(f'{CONTAINER}.env[name="PROBE_ADDRESS"].value', "kubectl-edit"),),
    ),
    "a field taken away": Edit(
        DAEMONSET,
        {"spec": {"template": {"spec": {"priorityClassName": None}}}},
        lines=("+      priorityClassName: system-node-critical",),
    ),
    "a text of several lines": Edit(
        CONFIGMAP,
        {"data": {"config.yaml": "version: v1\nflags:\n  migStrategy: mixed\n"}},
        MERGE,
        lines=("-      migStrategy: mixed", "+      migStrategy: none"),
        claims=(Claim(".data.config.yaml", "kubectl-edit"),),
    ),
    "a secret in our text": Edit(
        CONFIGMAP,
        {"data": {"config.yaml": "version: v1\nflags:\n  migStrategy: none\npassword: hunter2\n"}},
        MERGE,
        lines=("-    password: <secret, 7 characters>",),
        claims=(Claim(".data.config.yaml", "kubectl-edit"),),
    ),
    "a secret beside what is ours": Edit(
        DAEMONSET,
        container(image="theirs:2", env=[{"name": "DB_PASSWORD", "value": "hunter2"}]),
        lines=("-        image: theirs:2", "+        image: plugin:1"),
        claims=(Claim(f"{CONTAINER}.image", "kubectl-edit"),),
    ),
    "something that gpunode does not set": Edit(
        DAEMONSET, {"spec": {"template": {"metadata": {"annotations": {"restartedAt": "now"}}}}}
    ),
    "only the bookkeeping": Edit(DAEMONSET, {"status": {"numberReady": 1}}),
}


def plan(api: Api) -> list[Difference]:
    return [change for change in apply.diff(api, WANTED, all_objects(NS)) if change.action != "same"]


def own_lines(difference: Difference) -> tuple[str, ...]:
    return tuple(line for line in difference.lines if line[0] in "+-")


@pytest.mark.parametrize("what", EDITS)
def test_what_somebody_changed_is_shown_with_who_it_was_and_is_put_right(
    deployed: Api, client: Client, what: str
):
    """The diff is of what gpunode sets, from what is there; after it was applied there is none."""
    edit = EDITS[what]
    assert plan(deployed) == []
    assert client.ask("PATCH", edit.place, edit.body, edit.content, fieldManager="kubectl-edit")[0] == 200
    shown = plan(deployed)
    version = client.ask("GET", edit.place)[1]["metadata"]["resourceVersion"]
    assert [(own_lines(change), change.claims) for change in shown] == (
        [(edit.lines, edit.claims)] if edit.lines else []
    )
    assert "hunter2" not in str(shown)
    assert plan(deployed) == shown
    assert client.ask("GET", edit.place)[1]["metadata"]["resourceVersion"] == version
    apply.apply(deployed, WANTED)
    assert plan(deployed) == []


def test_what_somebody_deleted_is_new_again(deployed: Api, client: Client):
    """Whole; and the others are not told of."""
    client.ask("DELETE", CONFIGMAP)
    (gone,) = plan(deployed)
    assert (gone.what, gone.action) == (f"ConfigMap {NS}/{NAME}", "created")
    assert gone.lines[-2:] == ("+  name: gpunode-device-plugin", "+  namespace: gpunode")
    assert "+      migStrategy: none" in gone.lines
    apply.apply(deployed, WANTED)


def test_another_inventory_is_shown_as_what_it_changes(deployed: Api):
    """A field that gpunode sets no more goes, an object that it does not want any more too; nobody else has a part in it."""
    less = Spec(NS, PluginImage("plugin:2"), None, PluginPublish(events=False)).manifests
    would = {change.what: change for change in apply.diff(deployed, less, all_objects(NS)) if change.lines}
    assert {what: value.action for what, value in would.items()} == {
        f"DaemonSet {NS}/{NAME}": "changed",
        f"DaemonSet {NS}/{NAME}-class": "changed",
        f"ConfigMap {NS}/{NAME}": "removed",
        f"Role default/{NAME}": "removed",
        f"RoleBinding default/{NAME}": "removed",
    }
    assert {"-        - name: CONFIG_FILE", "+        image: plugin:2"} <= set(
        would[f"DaemonSet {NS}/{NAME}"].lines
    )
    assert not any(change.claims for change in would.values())


def test_a_cluster_without_the_namespace_is_told_that_it_could_not_try_what_goes_there(deployed: Api):
    """What the API server could be asked, it was: RBAC's objects are not in it."""
    would = {new.what: new for new in apply.diff(deployed, Spec("other", PluginImage("plugin:1")).manifests)}
    assert would["Namespace other"].action == "created"
    assert would["Namespace other"].untried == ""
    assert would[f"DaemonSet other/{NAME}"].untried == "namespace other does not exist yet"
    assert would[f"RoleBinding default/{NAME}"].untried == ""


def test_a_node_with_all_its_labels_is_not_asked_about(
    deployed: Api, cluster: Cluster, client: Client, monkeypatch
):
    """The list of nodes says who has applied which: of a fleet that is right nothing else is asked."""
    kind, wish = KINDS["Node"], {"gpunode.dev/gpu": "true", "pool": "ml"}
    client.ask("POST", path("Node"), {"kind": "Node", "apiVersion": kind.api, "metadata": {"name": "a"}})

    def current() -> nodes.Node:
        return next(node for node in nodes.fetch(deployed) if node.name == "a")

    assert labels.write(deployed, current(), wish) == {key: (None, value) for key, value in wish.items()}
    right = current()
    with monkeypatch.context() as patch:
        patch.setattr(Api, "apply", None)
        assert labels.write(deployed, right, wish, dry_run=True) == {}
    fewer = {"gpunode.dev/gpu": "true"}
    assert labels.write(deployed, right, fewer, dry_run=True) == {"pool": ("ml", None)}
    there = f"{path('Node')}/a"
    client.ask("PATCH", there, {"metadata": {"labels": {"pool": None}}}, MERGE, fieldManager="kubectl-label")
    assert labels.write(deployed, current(), wish, dry_run=True) == {"pool": (None, "ml")}
    client.ask("PATCH", there, {"metadata": {"labels": {"pool": "web"}}}, MERGE, fieldManager="kubectl-label")
    with pytest.raises(nodes.ClusterError, match=r"set pool=web \(field manager kubectl-label\)"):
        labels.write(deployed, current(), wish, dry_run=True)
