"""What kubectl (1.36) asks and sends: tables, watches that begin with a list, protobuf, its patches."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.sim.apiserver import columns
from gpunode.sim.apiserver.store import now

from .clusters import Client

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json;as=Table;v=v1beta1;g=meta.k8s.io,application/json"
PROTOBUF = "application/vnd.kubernetes.protobuf"
STRATEGIC, JSON = "application/strategic-merge-patch+json", "application/json-patch+json"
NODES, DEFAULT = "/api/v1/nodes", "/api/v1/namespaces/default"


def config(name: str, **data: str) -> dict[str, Any]:
    return {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": name}, "data": data}


def pod(name: str, **more: Any) -> dict[str, Any]:
    meta = {"name": name, "creationTimestamp": now()}
    containers = [{"name": "a", "image": "plugin:1"}, {"name": "b", "image": "plugin:1"}]
    return {"kind": "Pod", "metadata": meta, "spec": {"containers": containers}, **more}


def container(state: dict[str, Any], restarts: int = 0, **more: Any) -> dict[str, Any]:
    return {"ready": "running" in state, "state": state, "restartCount": restarts, **more}


RUNS: dict[str, Any] = {"running": {}}
DONE: dict[str, Any] = {"terminated": {"exitCode": 0, "reason": "Completed"}}
FAILED: dict[str, Any] = {"terminated": {"exitCode": 1, "reason": "Error"}}
CRASHES: dict[str, Any] = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({"phase": "Pending"}, ["0/2", "Pending", "0"]),
        (
            {"phase": "Running", "containerStatuses": [container(RUNS), container(RUNS)]},
            ["2/2", "Running", "0"],
        ),
        (
            {"phase": "Running", "containerStatuses": [container(RUNS), container(CRASHES, 3)]},
            ["1/2", "CrashLoopBackOff", "3"],
        ),
        (
            {"phase": "Running", "conditions": [], "containerStatuses": [container(DONE), container(RUNS)]},
            ["1/2", "NotReady", "0"],
        ),
        (
            {"phase": "Failed", "containerStatuses": [container(DONE), container(FAILED)]},
            ["0/2", "Error", "0"],
        ),
        (
            {"phase": "Succeeded", "containerStatuses": [container(DONE), container(DONE)]},
            ["0/2", "Completed", "0"],
        ),
        ({"phase": "Failed", "reason": "UnexpectedAdmissionError"}, ["0/2", "UnexpectedAdmissionError", "0"]),
    ],
    ids=["new", "running", "crashing", "half done", "failed", "done", "refused"],
)
def test_a_pod_shows_how_it_is(status: dict[str, Any], shown: list[str]) -> None:
    """READY, STATUS and RESTARTS."""
    _, make = columns.SHOWN["Pod"]
    assert make(pod("p", status=status))[1:4] == shown


def test_a_list_comes_as_a_table_for_who_asks_for_one(client: Client) -> None:
    """Columns, of which some are for `-o wide`, and rows with the objects' metadata, all of the object or nothing."""
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {"node-role.kubernetes.io/worker": ""}},
        "spec": {"unschedulable": True},
    }
    client.ask("POST", NODES, node)
    code, table = client.ask("GET", NODES, accept=TABLE)
    assert (code, table["kind"], table["apiVersion"]) == (200, "Table", "meta.k8s.io/v1")
    narrow = [one["name"] for one in table["columnDefinitions"] if not one["priority"]]
    assert narrow == ["Name", "Status", "Roles", "Age", "Version"]
    (row,) = table["rows"]
    assert row["cells"][:3] == ["n", "Unknown,SchedulingDisabled", "worker"]
    assert len(row["cells"]) == len(table["columnDefinitions"])
    assert (row["object"]["kind"], row["object"]["metadata"]["name"]) == ("PartialObjectMetadata", "n")
    whole = client.ask("GET", f"{NODES}/n", accept=TABLE, includeObject="Object")[1]["rows"][0]["object"]
    assert whole == client.ask("GET", f"{NODES}/n")[1]
    assert client.ask("GET", NODES, accept=TABLE, includeObject="None")[1]["rows"][0]["object"] is None
    assert client.ask("GET", NODES, accept=TABLE, includeObject="Half")[0] == 400
    assert client.ask("GET", f"{NODES}/none", accept=TABLE)[1]["kind"] == "Status"


def test_a_watch_of_tables_has_its_headers_once(client: Client) -> None:
    """A row for every event."""
    for name in ("w1", "w2"):
        client.ask("POST", f"{DEFAULT}/configmaps", config(name, a="1"))
    chosen = {"fieldSelector": "metadata.name!=kube-root-ca.crt", "watch": "true", "timeoutSeconds": "1"}
    events = client.ask("GET", f"{DEFAULT}/configmaps", accept=TABLE, **chosen)[1]
    assert [one["object"]["rows"][0]["cells"][:2] for one in events] == [["w1", 1], ["w2", 1]]
    assert [bool(one["object"]["columnDefinitions"]) for one in events] == [True, False]


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
    with client.begin("GET", NODES, accept=TABLE, includeObject="Half", **query) as answer:
        assert answer.status == 400
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


def test_a_json_patch_goes_step_by_step(client: Client) -> None:
    """`kubectl patch --type=json`; a test that fails, or a place that is not there, changes nothing."""
    client.ask("POST", f"{DEFAULT}/configmaps", config("json", a="1", b="2"))
    path = f"{DEFAULT}/configmaps/json"
    steps = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "replace", "path": "/data/a", "value": "3"},
        {"op": "remove", "path": "/data/b"},
        {"op": "add", "path": "/data/x~1y", "value": "4"},
    ]
    assert client.ask("PATCH", path, steps, JSON)[1]["data"] == {"a": "3", "x/y": "4"}
    code, answer = client.ask("PATCH", path, steps, JSON)
    assert (code, answer["reason"]) == (422, "Invalid")
    assert client.ask("PATCH", path, {}, JSON)[0] == 400
    assert client.ask("GET", path)[1]["data"] == {"a": "3", "x/y": "4"}


def test_an_object_is_replaced_only_as_it_was_seen(client: Client) -> None:
    """PUT: with the version that was read; who was slower reads again."""
    made = client.ask("POST", f"{DEFAULT}/configmaps", config("put", a="1"))[1]
    path = f"{DEFAULT}/configmaps/put"
    code, after = client.ask("PUT", path, {**made, "data": {"b": "2"}})
    assert (code, after["data"], after["metadata"]["uid"]) == (200, {"b": "2"}, made["metadata"]["uid"])
    code, answer = client.ask("PUT", path, {**made, "data": {"c": "3"}})
    assert (code, answer["reason"]) == (409, "Conflict")
    assert answer["message"].endswith("please apply your changes to the latest version and try again")


def test_a_pods_containers_cannot_be_changed(client: Client) -> None:
    """But their images, as on a real cluster: else it would look as if they were."""
    wish = pod("fixed")
    assert client.ask("POST", f"{DEFAULT}/pods", wish)[0] == 201
    path = f"{DEFAULT}/pods/fixed"
    code, answer = client.ask(
        "PATCH", path, {"spec": {"containers": [{"name": "a", "command": ["x"]}]}}, STRATEGIC
    )
    assert (code, answer["reason"]) == (422, "Invalid")
    assert answer["message"].startswith(
        'Pod "fixed" is invalid: spec: Forbidden: pod updates may not change fields'
    )
    image = {"spec": {"containers": [{"name": "a", "image": "plugin:2"}]}}
    assert client.ask("PATCH", path, image, STRATEGIC)[0] == 200
    eviction = {"kind": "Eviction", "metadata": {"name": "fixed"}, "deleteOptions": {"gracePeriodSeconds": 0}}
    assert client.ask("POST", f"{path}/eviction", eviction)[1]["status"] == "Success"
    assert client.ask("GET", path)[0] == 404


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
