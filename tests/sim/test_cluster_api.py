"""What a real kube-apiserver is not asked beside the simulated one (test_cluster_as_real): dry runs, pages, watches."""

import threading
from typing import Any

import pytest

from .clusters import APPLY, Client, until

NODES = "/api/v1/nodes"


def node(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}}


def config(name: str, **labels: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name, "labels": labels}}


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
def test_a_dry_run_answers_and_stores_nothing(client: Client, what: str):
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
    node = client.ask("GET", f"{NODES}/{name}")[1]
    return node if len(node["spec"].get("taints", [])) == 2 else None


def test_an_update_leaves_a_namespaces_finalizers(client: Client):
    """A real one does so, too; else an object that an undo made again would differ from its manifest for ever."""
    made = {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "n"}}
    for item in (made | {"spec": {"finalizers": ["kubernetes"]}}, made):
        _, answer = client.apply(item, "/api/v1/namespaces/n")
        assert answer["spec"] == {"finalizers": ["kubernetes"]}


def test_a_watch_tells_what_came_and_went_for_its_selector(client: Client):
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
    assert [event["type"] for event in seen] == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]
    versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in seen]
    assert versions == sorted(versions)
    assert seen[-1]["object"]["kind"] == "ConfigMap"
