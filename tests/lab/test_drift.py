"""What a plan shows of the real cluster after somebody has been at it, and to whom."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from gpunode.cluster.api import connect
from gpunode.model import Cluster

from .api import Lab
from .conftest import Ran

pytestmark = [pytest.mark.lab, pytest.mark.usefixtures("provisioned")]

NAME = "gpunode-device-plugin"
DAEMONSETS = "/apis/apps/v1/namespaces/gpunode/daemonsets"
BINDINGS = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
ROLES = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
MERGE, STRATEGIC = "application/merge-patch+json", "application/strategic-merge-patch+json"


@pytest.fixture
def edit(lab: Lab) -> Callable[..., None]:
    """A client's patch of an object, under the name that kubectl would give."""
    api = connect(Cluster(kubeconfig=str(lab.kubeconfig)))

    def patch(path: str, body: Any, content: str = STRATEGIC, manager: str = "kubectl-edit") -> None:
        answer, _ = api._connection.send("PATCH", path, {"fieldManager": manager}, body, content, 20)
        assert answer.status == 200

    return patch


@pytest.fixture
def reader(lab: Lab) -> Iterator[Path]:
    """The inventory with a user who may read the cluster, and change nothing."""
    role = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRole",
        "metadata": {"name": "test-reader"},
    }
    rule = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["get", "list"]}
    subject = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "nobody"}
    ref = {"kind": "ClusterRole", "apiGroup": "rbac.authorization.k8s.io", "name": "test-reader"}
    lab.request("POST", ROLES, role | {"rules": [rule]})
    lab.request(
        "POST", BINDINGS, role | {"kind": "ClusterRoleBinding", "subjects": [subject], "roleRef": ref}
    )
    file = lab.inventory.with_name("reader.yaml")
    text = lab.inventory.read_text()
    file.write_text(text.replace("kubeconfig: kubeconfig ", "kubeconfig: kubeconfig-nobody "))
    assert file.read_text() != text
    yield file
    lab.request("DELETE", f"{BINDINGS}/test-reader")
    lab.request("DELETE", f"{ROLES}/test-reader")


def drifted(edit: Callable[..., None]) -> None:
    """A DaemonSet's image, a secret beside it, rights, and a node's label."""
    container = {
        "name": "device-plugin",
        "image": "theirs:2",
        "env": [{"name": "DB_PASSWORD", "value": "hunter2"}],
    }
    edit(f"{DAEMONSETS}/{NAME}-class", {"spec": {"template": {"spec": {"containers": [container]}}}})
    more = {"apiGroups": [""], "resources": ["events"], "verbs": ["create", "patch", "delete"]}
    where = f"/apis/rbac.authorization.k8s.io/v1/namespaces/default/roles/{NAME}"
    edit(where, {"rules": [more]}, MERGE, "someone")
    edit("/api/v1/nodes/legacy", {"metadata": {"labels": {"gpunode.dev/gpu": None}}}, MERGE, "kubectl-label")


CLASS, ROLE = f"DaemonSet gpunode/{NAME}-class", f"Role default/{NAME}"
CLAIMS = {
    CLASS: [
        {
            "field": '.spec.template.spec.containers[name="device-plugin"].image',
            "manager": "kubectl-edit",
            "writer": "administrator",
        }
    ],
    ROLE: [{"field": ".rules", "manager": "someone"}],
    "Node legacy": None,
}


def changed_lines(line: dict[str, Any]) -> list[str]:
    return [text.strip() for text in line["diff"] if text[0] in "+-"]


def test_drift_of_the_cluster_is_shown_with_who_it_was_and_put_right(
    gpunode: Callable[..., Ran], edit: Callable[..., None]
):
    """A cluster as gpunode left it has no diff; an edited one has that of the edit, which changes nothing, and goes away."""
    right = gpunode("plan", "--exit-code", "--json")
    assert (right.code, right.of("cluster")) == (0, []), right
    drifted(edit)

    planned = gpunode("plan", "--exit-code", "--json")
    assert planned.code == 5, planned
    assert "hunter2" not in planned.stdout
    objects = {line["object"]: line for line in planned.of("cluster")}
    assert {what: line.get("claims") for what, line in objects.items()} == CLAIMS
    assert changed_lines(objects[ROLE]) == ["-  - delete"]
    assert changed_lines(objects["Node legacy"]) == ["+gpunode.dev/gpu=true"]
    gone, come = changed_lines(objects[CLASS])
    assert gone == "-        image: theirs:2"
    assert come.startswith("+        image: gpunode-deviceplugin:")

    declined = gpunode("plugin deploy", "--json")
    assert declined.code == 4, declined
    assert [line["object"] for line in declined.of("cluster")] == list(objects)
    assert gpunode("plan", "--json").of("cluster") == planned.of("cluster")

    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran
    assert {(line["action"], line["object"]) for line in ran.of("object")} == {
        ("changed", CLASS),
        ("changed", ROLE),
    }
    assert gpunode("plan", "--exit-code", "--json").of("cluster") == []


def test_who_may_only_read_the_cluster_sees_its_drift_and_can_cause_none(
    gpunode: Callable[..., Ran], edit: Callable[..., None], reader: Path
):
    """Without a dry run: what gpunode sets is compared with what is there, defaults of the API server left aside."""
    right = gpunode("plan", "--exit-code", "--json", inventory=reader)
    assert (right.code, right.of("cluster")) == (0, []), right
    assert "user `nobody` may not patch daemonsets.apps in namespace gpunode" in right.stdout
    drifted(edit)

    planned = gpunode("plan", "--exit-code", "--json", inventory=reader)
    assert planned.code == 5, planned
    assert {line["object"] for line in planned.of("cluster")} == CLAIMS.keys()
    assert all("may not patch" in line["untried"] for line in planned.of("cluster"))
    assert "hunter2" not in planned.stdout

    refused = gpunode("provision", "--yes", "--json", inventory=reader)
    assert refused.code == 4, refused
    first = refused.stderr.partition("\n")[0]
    assert "nothing was changed" in first
    assert "patch" in refused.stderr
    assert gpunode("plugin deploy", "--yes", "--json").code == 0


def test_a_default_runtime_that_was_taken_away_comes_back_and_the_plugins_pod_is_a_new_one(
    lab: Lab, gpunode: Callable[..., Ran]
):
    """Without it NVML cannot be loaded in a container: verify names the runtime, and the plan the pod that goes."""
    node, limited = lab.node("legacy"), ("--json", "--limit", "legacy")

    def pods() -> dict[str, str]:
        query = urlencode({"labelSelector": f"app.kubernetes.io/name={NAME}"})
        items = lab.request("GET", f"/api/v1/namespaces/gpunode/pods?{query}")["items"]
        return {item["spec"]["nodeName"]: item["metadata"]["name"] for item in items}

    ready = gpunode("provision", "--yes", "--no-run", *limited)
    assert ready.code == 0, ready
    before, text = pods(), node.read("/etc/docker/daemon.json")
    without = {name: value for name, value in json.loads(text).items() if name != "default-runtime"}
    node.write("/etc/docker/daemon.json", json.dumps(without, indent=2))
    node.exec(["systemctl", "restart", "docker"])
    node.wait_ready()
    verified = gpunode("verify", "--no-run", *limited)
    assert verified.code == 1, verified
    broken = [link["layer"] for link in verified.of("link", "legacy") if link["status"] == "broken"]
    assert broken == ["runtime"], verified

    ran = gpunode("provision", "--yes", *limited)
    assert ran.code == 0, ran
    pod = {"change": "replace", "object": f"Pod gpunode/{before['legacy']}", "node": "legacy"}
    assert pod.items() <= ran.of("cluster")[0].items(), ran
    assert json.loads(node.read("/etc/docker/daemon.json")) == json.loads(text)
    after = pods()
    assert (after["modern"], after["legacy"] == before["legacy"]) == (before["modern"], False)
