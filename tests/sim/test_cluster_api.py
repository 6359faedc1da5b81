"""The simulated API answers as a kube-apiserver does; what is compared here was read off one of version 1.36."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpunode.sim.apiserver import queries
from gpunode.sim.apiserver import store as store_module
from gpunode.sim.cluster import Cluster

from .clusters import APPLY, Client, until

NODES, PODS = "/api/v1/nodes", "/api/v1/namespaces/default/pods"


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}}


def config(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}}


def pod(name: str) -> dict[str, Any]:
    containers = [{"name": "c", "image": "plugin:1"}]
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"name": name}, "spec": {"containers": containers}}


def test_who_may_not_is_told_what(client: Client, cluster: Cluster) -> None:
    """A wrong token, none, and a user without rights; the version is for everybody who is somebody."""
    nobody = Client(cluster.kubeconfig.with_name("kubeconfig-nobody"))
    words = (
        'nodes is forbidden: User "nobody" cannot list resource "nodes" in API group "" at the cluster scope'
    )
    assert nobody.ask("GET", NODES)[1]["message"] == words
    code, answer = nobody.ask("PATCH", "/apis/apps/v1/namespaces/x/daemonsets/d", {})
    assert code == 403
    assert answer["message"].endswith(
        'User "nobody" cannot patch resource "daemonsets" in API group "apps" in the namespace "x"'
    )
    assert nobody.ask("GET", "/version")[1]["gitVersion"] == "v1.36.3+simulated"
    assert Client(cluster.kubeconfig, token="wrong").ask("GET", NODES)[0] == 401
    assert "system:anonymous" in Client(cluster.kubeconfig, token="").ask("GET", NODES)[1]["message"]


def test_what_there_is_can_be_asked_for(client: Client) -> None:
    """As kubectl does before anything else: groups, and the resources of each."""
    groups = client.ask("GET", "/apis")[1]["groups"]
    assert [one["preferredVersion"]["groupVersion"] for one in groups] == [
        "admissionregistration.k8s.io/v1",
        "apps/v1",
        "batch/v1",
        "coordination.k8s.io/v1",
        "node.k8s.io/v1",
        "policy/v1",
        "rbac.authorization.k8s.io/v1",
        "resource.k8s.io/v1",
    ]
    resources = client.ask("GET", "/api/v1")[1]["resources"]
    assert {one["name"]: one["namespaced"] for one in resources}["nodes"] is False
    assert client.ask("GET", "/apis/apps/v1")[1]["resources"][0]["kind"] == "DaemonSet"
    assert client.ask("GET", "/apis/autoscaling/v2")[0] == 404


DRY = {"dryRun": "All"}
TRIED: dict[str, tuple[str, str, Any, str, dict[str, str]]] = {
    "create": ("POST", NODES, node("new", a="1"), "application/json", DRY),
    "replace": ("PUT", f"{NODES}/tried", node("tried", a="2"), "application/json", DRY),
    "apply": ("PATCH", f"{NODES}/tried", node("tried", a="2"), APPLY, {**DRY, "fieldManager": "x", "force": "true"}),
    "merge": ("PATCH", f"{NODES}/tried", node("tried", a="2"), "application/merge-patch+json", DRY),
    "delete": ("DELETE", f"{NODES}/tried", None, "", DRY),
    "delete by its body": ("DELETE", f"{NODES}/tried", {"dryRun": ["All"]}, "application/json", {}),
    "delete in the foreground": (
        "DELETE", f"{NODES}/tried", {"dryRun": ["All"], "propagationPolicy": "Foreground"}, "application/json", {},
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", TRIED)
def test_a_dry_run_answers_and_stores_nothing(client: Client, what: str) -> None:
    """Whatever it is."""
    method, path, body, content, query = TRIED[what]
    client.apply(node("tried", a="1"), f"{NODES}/tried")
    before = until(lambda: settled(client, "tried"))
    code, answer = client.ask(method, path, body, content, **query)
    assert code < 300, answer
    if method != "DELETE":
        assert answer["metadata"]["labels"] == body["metadata"]["labels"]
    assert client.ask("GET", f"{NODES}/tried")[1] == before
    assert client.ask("GET", f"{NODES}/new")[0] == 404


def settled(client: Client, name: str) -> Any:
    """The node once the node controller has put its taints on it."""
    found = client.ask("GET", f"{NODES}/{name}")[1]
    return found if len(found["spec"].get("taints", [])) == 2 else None


def test_a_field_that_its_manager_no_longer_wishes_goes(client: Client) -> None:
    """What others set stays, and what both set stays with the other."""
    client.apply(node("mine", a="1", both="x"), f"{NODES}/mine")
    client.apply(node("mine", b="2", both="x"), f"{NODES}/mine", "other")
    labels = client.apply(node("mine"), f"{NODES}/mine")[1]["metadata"]["labels"]
    assert labels == {"b": "2", "both": "x"}
    after = client.apply(node("mine"), f"{NODES}/mine", "other")[1]
    assert "labels" not in after["metadata"]


def test_a_merge_patch_takes_its_fields_over(client: Client) -> None:
    """As `kubectl label` does it: a later apply of another value conflicts with it; null takes a label off."""
    client.apply(node("patched", a="1"), f"{NODES}/patched")
    merge = {"content": "application/merge-patch+json", "fieldManager": "kubectl-label"}
    client.ask("PATCH", f"{NODES}/patched", {"metadata": {"labels": {"a": "2", "b": "3"}}}, **merge)
    assert '"kubectl-label"' in client.apply(node("patched", a="1"), f"{NODES}/patched")[1]["message"]
    code, after = client.ask("PATCH", f"{NODES}/patched", {"metadata": {"labels": {"b": None}}}, **merge)
    assert (code, after["metadata"]["labels"]) == (200, {"a": "2"})
    assert client.ask("PATCH", f"{NODES}/patched", {}, "application/apply-patch+cbor")[0] == 415


def test_long_lists_come_in_pages(client: Client) -> None:
    """Every object once, the last page without a token; items do not repeat their kind."""
    where = "/api/v1/namespaces/kube-public/configmaps"
    for number in range(5):
        client.ask("POST", where, config(f"c{number}"))
    first = client.ask("GET", where, limit="2")[1]
    assert first["metadata"]["remainingItemCount"] == 4  # one is the cluster's own
    second = client.ask("GET", where, limit="2", **{"continue": first["metadata"]["continue"]})[1]
    third = client.ask("GET", where, limit="2", **{"continue": second["metadata"]["continue"]})[1]
    found = [item["metadata"]["name"] for page in (first, second, third) for item in page["items"]]
    assert found == ["c0", "c1", "c2", "c3", "c4", "kube-root-ca.crt"]
    assert "continue" not in third["metadata"]
    assert "kind" not in first["items"][0]


@pytest.mark.parametrize(
    ("selector", "names"),
    [
        ("a=1", ["s1"]),
        ("a==1,b=x", []),
        ("a!=1,s", ["s2", "s3"]),
        ("a in (1, 2)", ["s1", "s2"]),
        ("a notin (1,2),s", ["s3"]),
        ("s,!a", ["s3"]),
    ],
)
def test_labels_select(client: Client, selector: str, names: list[str]) -> None:
    """Equality, sets, presence, and all of them together."""
    where = "/api/v1/namespaces/kube-system/configmaps"
    for item in (config("s1", a="1", s="y"), config("s2", a="2", s="y"), config("s3", s="y")):
        client.ask("POST", where, item)
    found = client.ask("GET", where, labelSelector=selector)[1]["items"]
    assert [item["metadata"]["name"] for item in found] == names


@pytest.mark.parametrize(
    ("selector", "count"),
    [
        ("metadata.name=f1", 1),
        ("metadata.name==f1,metadata.namespace=default", 1),
        ("metadata.name!=f1", 1),
        ("metadata.name=", 0),
        ("metadata.name!=", 2),
    ],
)
def test_fields_select(client: Client, selector: str, count: int) -> None:
    """Equal, not equal, and empty, which is how an unset field reads."""
    where = "/api/v1/namespaces/default/configmaps"
    for name in ("f1", "f2"):
        client.apply(config(name, of="fields"), f"{where}/{name}")
    found = client.ask("GET", where, fieldSelector=selector, labelSelector="of=fields")[1]["items"]
    assert len(found) == count


def test_a_watch_tells_what_came_and_went_for_its_selector(client: Client) -> None:
    """An object that comes to match is ADDED, one that no longer does is DELETED."""
    where = "/api/v1/namespaces/default/configmaps"
    start = client.ask("GET", where)[1]["metadata"]["resourceVersion"]

    def act() -> None:
        client.apply(config("w"), f"{where}/w")
        client.apply(config("w", seen="y"), f"{where}/w")
        client.apply(config("w", seen="y", more="z"), f"{where}/w")
        client.apply(config("w"), f"{where}/w")
        client.apply(config("w", seen="y"), f"{where}/w")
        client.ask("DELETE", f"{where}/w")

    timer = threading.Timer(0.1, act)
    timer.start()
    query = {"resourceVersion": start, "timeoutSeconds": "3", "allowWatchBookmarks": "true"}
    code, seen = client.ask("GET", where, watch="true", labelSelector="seen=y", **query)
    timer.join()
    assert code == 200
    assert [one["type"] for one in seen] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    versions = [int(one["object"]["metadata"]["resourceVersion"]) for one in seen]
    assert versions == sorted(versions)
    assert seen[-1]["object"]["kind"] == "ConfigMap"


def test_a_watch_without_a_version_begins_with_what_is_there(client: Client) -> None:
    """Every object as ADDED."""
    seen = client.ask("GET", "/api/v1/namespaces", watch="1", timeoutSeconds="1")[1]
    assert {"default", "kube-system"} <= {one["object"]["metadata"]["name"] for one in seen}
    assert {one["type"] for one in seen} == {"ADDED"}


def test_a_version_that_is_forgotten_is_said_to_be_too_old() -> None:
    """The watcher has to list again: an ERROR event that holds a Status of 410."""
    store = store_module.Store()
    store._history = store_module.deque(maxlen=2)
    for number in range(4):
        store.put({"kind": "Node", "apiVersion": "v1", "metadata": {"name": f"n{number}"}})
    (told,) = list(queries.watch(store, "Node", "", {"resourceVersion": "1", "timeoutSeconds": "5"}))
    assert told["type"] == "ERROR"
    assert (told["object"]["code"], told["object"]["reason"]) == (410, "Expired")
    assert told["object"]["message"] == "too old resource version: 1 (5)"


def test_only_the_object_that_was_meant_is_deleted(client: Client) -> None:
    """A precondition on the uid; and namespaces that every cluster needs."""
    client.apply(node("other"), f"{NODES}/other")
    code, answer = client.ask("DELETE", f"{NODES}/other", {"preconditions": {"uid": "abc"}})
    assert (code, answer["reason"]) == (409, "Conflict")
    code, answer = client.ask("DELETE", f"{NODES}/other")
    assert (code, answer["status"], answer["details"]["kind"]) == (200, "Success", "nodes")
    code, answer = client.ask("DELETE", "/api/v1/namespaces/default")
    assert answer["message"] == 'namespaces "default" is forbidden: this namespace may not be deleted'


def test_a_namespace_goes_with_all_that_is_in_it(client: Client) -> None:
    """And takes nothing new meanwhile."""
    space = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "ns"}}
    assert client.ask("POST", "/api/v1/namespaces", space)[1]["status"] == {"phase": "Active"}
    client.ask("POST", "/api/v1/namespaces/ns/configmaps", config("c"))
    assert client.ask("DELETE", "/api/v1/namespaces/ns")[1]["status"]["phase"] == "Terminating"
    until(lambda: client.ask("GET", "/api/v1/namespaces/ns")[0] == 404)
    assert client.ask("GET", "/api/v1/namespaces/ns/configmaps")[1]["items"] == []


def test_a_log_is_asked_for_in_vain_before_there_is_one(client: Client) -> None:
    """A pod that nothing was scheduled for, and a container that it has not."""
    client.ask("POST", PODS, pod("waits"))
    assert client.ask("GET", f"{PODS}/waits/log", container="c")[0] == 400
    words = "container no is not valid for pod waits"
    assert client.ask("GET", f"{PODS}/waits/log", container="no")[1]["message"] == words
    client.ask("DELETE", f"{PODS}/waits")
