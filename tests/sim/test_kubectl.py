"""What kubectl (1.36) asks and sends: watches that begin with a list, protobuf, its patches."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.sim.apiserver.store import now

from .clusters import Client

PROTOBUF = "application/vnd.kubernetes.protobuf"
STRATEGIC = "application/strategic-merge-patch+json"
NODES, DEFAULT = "/api/v1/nodes", "/api/v1/namespaces/default"


def config(name: str, **data: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": data}


def pod(name: str, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "creationTimestamp": now()}
    containers = [{"name": "a", "image": "plugin:1"}, {"name": "b", "image": "plugin:1"}]
    return {"kind": "Pod", "metadata": meta, "spec": {"containers": containers}, **more}


def test_a_watch_that_begins_with_a_list_says_where_that_ends(client: Client) -> None:
    """`kubectl delete`, `wait` and `rollout status` wait for this bookmark."""
    query = {
        "sendInitialEvents": "true",
        "resourceVersionMatch": "NotOlderThan",
        "allowWatchBookmarks": "true",
    }
    where, chosen = (
        f"{DEFAULT}/serviceaccounts",
        {"watch": "true", "timeoutSeconds": "1", "resourceVersion": "1"},
    )
    (first, mark) = client.ask("GET", where, **query, **chosen)[1][:2]
    assert (first["type"], first["object"]["metadata"]["name"]) == ("ADDED", "default")
    assert mark["type"] == "BOOKMARK"
    assert mark["object"]["metadata"]["annotations"] == {"k8s.io/initial-events-end": "true"}


def test_a_watch_is_answered_before_anything_happens(client: Client) -> None:
    """`kubectl wait` before 1.36 goes on only then; what cannot be watched is refused all the same."""
    version = client.ask("GET", NODES)[1]["metadata"]["resourceVersion"]
    query = {
        "watch": "true",
        "resourceVersion": version,
        "timeoutSeconds": "600",
    }  # longer than the client waits
    with client.begin("GET", NODES, **query) as answer:
        assert answer.status == 200
    with client.begin("GET", NODES, fieldSelector="spec.foo=x", **query) as answer:
        assert answer.status == 400


# As kubectl 1.36 sent them: `create configmap x --from-literal=a=b`, `create secret generic x --from-literal=a=b`.
CONFIG = (
    "6b3873000a0f0a0276311209436f6e6669674d6170121b0a110a017812001a0022002a0032003800420012060a016112016"
    "21a002200"
)
SECRET = (
    "6b3873000a0c0a027631120653656372657412"
    "1d0a110a017812001a0022002a0032003800420012060a01611201621a001a002200"
)


@pytest.mark.parametrize(
    ("plural", "body", "data"),
    [("configmaps", CONFIG, "b"), ("secrets", SECRET, "Yg==")],
    ids=["config", "secret"],
)
def test_what_kubectl_makes_in_protobuf_is_understood(
    client: Client, plural: str, body: str, data: str
) -> None:
    """Text is text, bytes are in base64."""
    code, made = client.ask("POST", f"{DEFAULT}/{plural}", bytes.fromhex(body), PROTOBUF)
    assert (code, made["metadata"]["name"], made["data"]) == (201, "x", {"a": data})
    assert (
        client.ask(
            "DELETE",
            f"{DEFAULT}/{plural}/x",
            b"k8s\x00\n\x13\n\x02v1\x12\rDeleteOptions\x12\x02\x08\x00",
            PROTOBUF,
        )[0]
        == 200
    )


def test_a_strategic_patch_merges_lists_of_named_things(client: Client) -> None:
    """As `kubectl apply` makes it: items changed, added and deleted by name, in the order that is wished."""
    made = pod("strategic")
    made["spec"]["containers"][0]["env"] = [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}]
    template = {"metadata": {"labels": {"a": "b"}}, "spec": made["spec"]}
    wish = {"kind": "DaemonSet", "metadata": {"name": "d"},
            "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}  # fmt: skip
    where = "/apis/apps/v1/namespaces/default/daemonsets"
    assert client.ask("POST", where, wish)[0] == 201
    patch = {
        "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
        "containers": [
            {"name": "c", "image": "new:1"},
            {
                "name": "a",
                "image": "plugin:2",
                "env": [{"name": "X", "$patch": "delete"}, {"name": "Y", "value": "3"}],
            },
            {"name": "b", "$patch": "delete"},
        ],
        "tolerations": [{"key": "t", "operator": "Exists"}],
    }
    body = {"spec": {"template": {"spec": patch}}}
    code, after = client.ask("PATCH", f"{where}/d", body, STRATEGIC)
    spec = after["spec"]["template"]["spec"]
    assert code == 200
    assert [(one["name"], one["image"]) for one in spec["containers"]] == [("c", "new:1"), ("a", "plugin:2")]
    assert spec["containers"][1]["env"] == [{"name": "Y", "value": "3"}]
    assert spec["tolerations"] == [{"key": "t", "operator": "Exists"}]
    client.ask("DELETE", f"{where}/d")


def test_an_object_is_replaced_only_as_it_was_seen(client: Client) -> None:
    """PUT: with the version that was read; who was slower reads again."""
    made = client.ask("POST", f"{DEFAULT}/configmaps", config("put", a="1"))[1]
    path = f"{DEFAULT}/configmaps/put"
    code, after = client.ask("PUT", path, {**made, "data": {"b": "2"}})
    assert (code, after["data"], after["metadata"]["uid"]) == (200, {"b": "2"}, made["metadata"]["uid"])
    code, answer = client.ask("PUT", path, {**made, "data": {"c": "3"}})
    assert (code, answer["reason"]) == (409, "Conflict")
    assert answer["message"].endswith("please apply your changes to the latest version and try again")


def test_a_container_has_no_way_in_and_says_so(client: Client) -> None:
    """`kubectl exec`, which is answered before a stream is begun."""
    client.ask("POST", f"{DEFAULT}/pods", pod("closed"))
    code, answer = client.ask("POST", f"{DEFAULT}/pods/closed/exec", command="ls")
    assert (code, answer["reason"]) == (501, "NotImplemented")
    assert "processes of this computer" in answer["message"]
    assert client.ask("POST", f"{DEFAULT}/pods/none/exec")[0] == 404


def test_kubectl_finds_short_names_and_what_may_be_validated(client: Client) -> None:
    """`kubectl get all`, `kubectl get sa`, and the document that lets `kubectl apply` send a file."""
    found = {one["name"]: one for one in client.ask("GET", "/api/v1")[1]["resources"]}
    assert found["serviceaccounts"]["shortNames"] == ["sa"]
    assert found["pods"]["categories"] == ["all"]
    assert (found["pods/eviction"]["group"], found["pods/eviction"]["kind"]) == ("policy", "Eviction")
    assert (
        client.ask("GET", "/openapi/v3")[1]["paths"]["apis/apps/v1"]["serverRelativeURL"]
        == "/openapi/v3/apis/apps/v1"
    )
    paths = client.ask("GET", "/openapi/v3/apis/apps/v1")[1]["paths"].values()
    kinds = {path["patch"]["x-kubernetes-group-version-kind"]["kind"] for path in paths}
    assert kinds == {"DaemonSet", "Deployment"}
    assert client.ask("GET", "/openapi/v3/apis/autoscaling/v2")[0] == 404
    assert client.ask("GET", "/healthz") == (200, "ok")
