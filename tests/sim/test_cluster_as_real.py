"""The simulated API and the lab's kube-apiserver are asked the same, and answer the same. Nothing of theirs is changed there."""

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from gpunode.cluster.api import Api, connect
from gpunode.cluster.api.kinds import path
from gpunode.links.plugin.deployment import Spec
from gpunode.model import Cluster as Access
from gpunode.model import PluginConfig, PluginImage
from gpunode.sim.apiserver.store import Object
from gpunode.sim.cluster import Cluster

from ..lab import api as lab_api
from ..lab.conftest import lab  # noqa: F401 (a fixture)
from .clusters import until

pytestmark = pytest.mark.lab

APPLY, MERGE = "application/apply-patch+yaml", "application/merge-patch+json"
DRY = {"fieldManager": "gpunode", "dryRun": "All"}
# What differs by nature: identities, times, counts, and where a token is mounted.
PASSING = {"uid", "resourceVersion", "creationTimestamp", "time"}


@pytest.fixture(scope="module")
def running(lab: lab_api.Lab, tmp_path_factory) -> Iterator[tuple[Api, Api, Cluster]]:  # noqa: F811
    """The real API, and the simulated one with its cluster."""
    real = connect(Access(kubeconfig=str(lab.kubeconfig)))
    cluster = Cluster(tmp_path_factory.mktemp("sim"), [])
    simulated = connect(Access(kubeconfig=str(cluster.kubeconfig)))
    until(lambda: simulated.get("ServiceAccount", "default", "default"))
    yield real, simulated, cluster
    simulated.close()
    real.close()
    cluster.close()


@pytest.fixture
def both(running: tuple[Api, Api, Cluster]) -> tuple[Api, Api]:
    """The two APIs, with the same nodes in both."""
    real, simulated, _ = running
    mirror(running)
    return real, simulated


def mirror(running: tuple[Api, Api, Cluster]) -> dict[str, str]:
    """Make the simulated nodes the same as the real ones; returns their versions."""
    real, _, cluster = running
    nodes = real.find("Node")[0]
    for node in nodes:
        there = cluster.store.get("Node", "", node["metadata"]["name"])
        if there:
            cluster.store.drop(there)
        cluster.store.put({"kind": "Node", "apiVersion": "v1", **node})
    return {node["metadata"]["name"]: node["metadata"]["resourceVersion"] for node in nodes}


def ask(api: Api, method: str, where: str, query: dict[str, str], body: Object | None, content: str) -> Any:
    response, data = api._connection.send(method, where, query, body, content, 20)
    text = data.decode()
    events = [json.loads(line) for line in text.splitlines()] if query.get("watch") else None
    answer = events or (json.loads(text) if text.startswith("{") else text)
    return response.status, lasting(answer)


def lasting(answer: Any) -> Any:
    """The answer without what differs by nature."""
    if isinstance(answer, dict):
        return {name: lasting(value) for name, value in answer.items() if name not in PASSING}
    return [lasting(each) for each in answer] if isinstance(answer, list) else answer


def labelled(**labels: str) -> Object:
    return {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "legacy", "labels": labels}}


LEGACY, NONE = "/api/v1/nodes/legacy", "/api/v1/nodes/none"
REQUESTS: dict[str, tuple[str, str, dict[str, str], Object | None, str]] = {
    "an object that is not there": ("GET", NONE, {}, None, ""),
    "an object of a group": ("GET", "/apis/apps/v1/namespaces/x/daemonsets/y", {}, None, ""),
    "a group that is not there": ("GET", "/apis/foo/v1/x", {}, None, ""),
    "a log of no pod": ("GET", "/api/v1/namespaces/default/pods/x/log", {}, None, ""),
    "a list in no namespace": ("GET", "/api/v1/namespaces/nope/pods", {}, None, ""),
    "a label in use": ("PATCH", LEGACY, DRY, labelled(pool="b"), APPLY),
    "labels taken over": ("PATCH", LEGACY, {**DRY, "force": "true"}, labelled(pool="b"), APPLY),
    "labels shared": ("PATCH", LEGACY, DRY, labelled(pool="lab"), APPLY),
    "labels merged": ("PATCH", LEGACY, DRY, {"metadata": {"labels": {"gpu": None, "x": "y"}}}, MERGE),
    "a deletion": ("DELETE", LEGACY, {"dryRun": "All"}, None, ""),
    "a deletion of nothing": ("DELETE", NONE, {}, None, ""),
    "a deletion tried by its body": (
        "DELETE",
        LEGACY,
        {},
        {"dryRun": ["All"], "propagationPolicy": "Foreground"},
        "application/json",
    ),
    "something in no namespace": (
        "PATCH",
        "/api/v1/namespaces/nope/serviceaccounts/x",
        DRY,
        {"kind": "ServiceAccount", "apiVersion": "v1", "metadata": {"name": "x", "namespace": "nope"}},
        APPLY,
    ),
    "a pod of no class": (
        "POST",
        "/api/v1/namespaces/default/pods",
        DRY,
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {"name": "x"},
            "spec": {"runtimeClassName": "none", "containers": [{"name": "c", "image": "x:1"}]},
        },
        "application/json",
    ),
}

APPLIED: tuple[tuple[str, dict[str, str]], ...] = (
    ("them", {"theirs": "1"}),
    ("me", {}),
    ("third", {}),
    ("me", {"mine": "2"}),
    ("me", {}),
    ("me", {"mine": "3"}),
    ("them", {}),
    ("me", {"other": "4"}),
)

OBJECTS = Spec(
    "default", PluginImage("plugin:1", image_id="sha256:abc"), PluginConfig("version: v1\n")
).manifests


@pytest.mark.parametrize("what", REQUESTS)
def test_the_simulated_api_answers_as_the_real_one(running: tuple[Api, Api, Cluster], what: str):
    """Status code and body are the same, but for identities and times."""
    before = mirror(running)
    for _ in range(10):
        real, simulated = (ask(api, *REQUESTS[what]) for api in running[:2])
        after = mirror(running)
        if after == before:
            break
        before = after  # a kubelet has told of itself in between: the two were not asked about the same
    assert simulated == real


def test_labels_come_and_go_alike(both: tuple[Api, Api]):
    """Two managers apply in turns, one of them no label at all now and then; a ConfigMap of the test's own bears it."""
    name = f"gpunode-test-{uuid.uuid4().hex[:8]}"
    where = path("ConfigMap", "default", name)

    def after(api: Api, manager: str, labels: dict[str, str]) -> Any:
        meta = {"name": name, "namespace": "default", "labels": labels}
        wish = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": meta}
        status, answer = ask(api, "PATCH", where, {"fieldManager": manager}, wish, APPLY)
        fields = answer["metadata"].get("managedFields", [])
        answer["metadata"]["managedFields"] = sorted(fields, key=json.dumps)  # their order goes by times
        return status, answer

    real, simulated = both
    try:
        for manager, labels in APPLIED:
            assert after(simulated, manager, labels) == after(real, manager, labels)
    finally:
        for api in both:
            ask(api, "DELETE", where, {}, None, "")


@pytest.mark.parametrize("number", range(len(OBJECTS)))
def test_the_plugins_objects_are_completed_alike(both: tuple[Api, Api], number: int):
    """Defaults, owners of fields and generations of what gpunode applies."""
    manifest = OBJECTS[number]
    name = f"{manifest['metadata']['name']}-unused"
    manifest = {**manifest, "metadata": {**manifest["metadata"], "name": name}}
    where = path(manifest["kind"], manifest["metadata"].get("namespace"), name)
    real, simulated = (ask(api, "PATCH", where, DRY, manifest, APPLY) for api in both)
    assert simulated == real


def test_vectoradds_pod_is_completed_alike(both: tuple[Api, Api]):
    """Defaults and tolerations of a pod that asks for a GPU; managedFields of a create are not compared."""
    from gpunode.cluster.objects.manifests import render

    (pod,) = render(
        "vectoradd.yaml.j2", name="unused", namespace="default", run="1", holder="", hostname="legacy", taints=(),
        image="plugin:1", pull="IfNotPresent", args=("-m", "x"), resource="nvidia.com/gpu", amount=1,
        scheduler="", claims="", runtime_class=None, seconds=60,
    )  # fmt: skip
    answers = [ask(api, "POST", path("Pod", "default"), DRY, pod, "application/json") for api in both]
    for _, answer in answers:
        del answer["metadata"]["managedFields"]
    assert answers[1] == answers[0]


def test_nobody_is_refused_alike(lab: lab_api.Lab, tmp_path):  # noqa: F811
    """The words that gpunode takes verb and resource from."""
    cluster = Cluster(tmp_path, [])
    folders = (lab.inventory.parent, tmp_path)
    apis = [connect(Access(kubeconfig=str(folder / "kubeconfig-nobody"))) for folder in folders]
    try:
        for where in ("/api/v1/nodes", "/apis/apps/v1/namespaces/x/daemonsets", NONE):
            real, simulated = (ask(api, "GET", where, {}, None, "") for api in apis)
            assert simulated == real
    finally:
        for api in apis:
            api.close()
        cluster.close()
