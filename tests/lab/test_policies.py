"""What the tokens of the plugin's and the extender's pods can write, on a real API server with real tokens of theirs."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from gpunode.cluster.api import Api, connect
from gpunode.cluster.objects import apply
from gpunode.contract.promises import ALLOCATION, INDEX, MEMORY_ANNOTATION
from gpunode.contract.status import ANNOTATION
from gpunode.links.plugin import Spec
from gpunode.links.scheduler.deployment import Spec as ExtenderSpec
from gpunode.model import Cluster as Named
from gpunode.model import PluginImage, PluginPublish, Share
from gpunode.share.waiting import ROOM
from tests import tables

from .api_servers import NEW, TOKEN, running
from .progress import CannotRun, wait

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

NS, MEM = "gpunode", Share().resource
MERGE = "application/merge-patch+json"
CERTIFICATES = dict.fromkeys(("ca.crt", "tls.crt", "tls.key", "client.crt", "client.key"), "")
PLUGIN = Spec(NS, PluginImage("i:1"), publish=PluginPublish(annotation=True, condition=True, promises=True))
EXTENDER = ExtenderSpec(NS, PluginImage("i:1"), Share(), CERTIFICATES)
NODE = "/api/v1/nodes"
PODS = "/api/v1/namespaces/default/pods"


class Server:
    """An API server, asked with one token or another."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.tokens = {"admin": TOKEN}

    def ask(self, who: str, method: str, where: str, body: Any = None) -> tuple[int, Any]:
        """Status and answer."""
        headers = {"Authorization": f"Bearer {self.tokens[who]}"}
        headers["Content-Type"] = MERGE if method == "PATCH" else "application/json"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.api.access.server + where, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.api.access.tls, timeout=20) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def do(self, method: str, where: str, body: Any = None) -> Any:
        code, answer = self.ask("admin", method, where, body)
        assert code < 300, answer
        return answer

    def pod(self, name: str, namespace: str = "default", **spec: Any) -> str:
        """Its UID."""
        body = {
            "metadata": {"name": name, "labels": {"app": name}},
            "spec": {"containers": [{"name": "c", "image": "i"}], **spec},
        }
        made = self.do("POST", f"/api/v1/namespaces/{namespace}/pods", body)
        return str(made["metadata"]["uid"])

    def account(self, who: str, name: str, node: str) -> None:
        """The token of a pod with this account on the node, as its kubelet asks for it."""
        uid = self.pod(f"{name}-{node}", NS, serviceAccountName=name, nodeName=node)
        pod = {"kind": "Pod", "apiVersion": "v1", "name": f"{name}-{node}", "uid": uid}
        where = f"/api/v1/namespaces/{NS}/serviceaccounts/{name}/token"
        self.tokens[who] = self.do("POST", where, {"spec": {"boundObjectRef": pod}})["status"]["token"]

    def unbound(self, who: str, name: str) -> None:
        """A token of the account that is bound to no pod."""
        where = f"/api/v1/namespaces/{NS}/serviceaccounts/{name}/token"
        self.tokens[who] = self.do("POST", where, {"spec": {}})["status"]["token"]


@pytest.fixture(scope="module")
def server(tmp_path_factory) -> Iterator[Server]:
    """Nodes `a` and `b`, the accounts with their rights, and the policies in force."""
    folder = tmp_path_factory.mktemp("policies")
    try:
        with running(NEW, folder) as kubeconfig:
            api = connect(Named(kubeconfig=kubeconfig))
            made = Server(api)
            for name in ("a", "b"):
                made.do("POST", NODE, {"metadata": {"name": name, "annotations": {"theirs": "1"}}})
                made.do("PATCH", f"{NODE}/{name}", {"spec": {"taints": None}})
            for spec in (PLUGIN, EXTENDER):
                apply.apply(
                    api, [item for item in spec.manifests if item["kind"] not in ("DaemonSet", "Deployment")]
                )
            made.account("plugin", "gpunode-device-plugin", "a")
            made.account("extender", "gpunode-share", "a")
            made.unbound("loose", "gpunode-device-plugin")
            memory = {"resources": {"limits": {MEM: "4"}}}
            for name in ("mem", "mem2"):
                made.pod(name, containers=[{"name": "c", "image": "i", **memory}])
            made.pod("web")
            # A policy is in force some moments after it is written.
            wait("the policies", lambda: made.ask("plugin", "PATCH", f"{NODE}/b", noted())[0] == 422, 60)
            wait(
                "the policies",
                lambda: made.ask("extender", "PATCH", f"{PODS}/web/status", touch())[0] == 422,
                60,
            )
            bad = binding("web", annotations={"x": "y"})
            wait(
                "the policies",
                lambda: made.ask("extender", "POST", f"{PODS}/web/binding?dryRun=All", bad)[0] == 422,
                60,
            )
            yield made
            api.close()
    except CannotRun as error:
        pytest.skip(str(error))


def noted(**annotations: str | None) -> dict[str, Any]:
    return {"metadata": {"annotations": annotations or {ANNOTATION: "{}"}}}


def touch(**metadata: Any) -> dict[str, Any]:
    return {"metadata": {"annotations": {ROOM: "now"}, **metadata}}


def binding(name: str, **metadata: Any) -> dict[str, Any]:
    target = {"apiVersion": "v1", "kind": "Node", "name": "a"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}


def test_the_plugin_publishes_on_its_own_node(server: Server):
    """Status and memory, also of a node that others annotate; and takes them back."""
    for text in ("one", "two", None):
        body = noted(**{ANNOTATION: text, "gpunode.dev/gpu-memory": text})
        code, answer = server.ask("plugin", "PATCH", f"{NODE}/a", body)
        assert code == 200, answer
        assert answer["metadata"]["annotations"].get(ANNOTATION) == text
        assert answer["metadata"]["annotations"]["theirs"] == "1"


OWNER = {"apiVersion": "v1", "kind": "Node", "name": "gone", "uid": "u"}


@tables.rows("refused-changes")
def test_the_plugin_changes_nothing_else(server: Server, who: str, node: str, body: Any, why: str):
    code, answer = server.ask(who, "PATCH", f"{NODE}/{node}", body)
    assert (code, why in answer["message"]) == (422, True), answer


def test_the_plugin_writes_its_condition_and_nothing_else_of_a_status(server: Server):
    """The right to the status of nodes is narrowed as that to nodes is."""
    own = {"type": "GpuReady", "status": "True"}
    code, answer = server.ask("plugin", "PATCH", f"{NODE}/a/status", {"status": {"conditions": [own]}})
    assert code == 200, answer
    why = "nothing of a node's status but the condition GpuReady"
    for body, words in (
        ({"status": {"conditions": [own, {"type": "Ready", "status": "True"}]}}, why),
        ({"status": {"capacity": {"nvidia.com/gpu": "9"}}}, why),
        ({"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.9"}]}}, why),
        ({"status": {"phase": "Terminated"}}, why),
        ({"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 4444}}}}, why),
        ({"status": {"features": {"supplementalGroupsPolicy": True}}}, why),
        ({"status": {"runtimeHandlers": [{"name": "x"}]}}, why),
        ({"metadata": {"labels": {"pool": "x"}}}, "no metadata but annotations"),
    ):
        code, answer = server.ask("plugin", "PATCH", f"{NODE}/a/status", body)
        assert (code, words in answer["message"]) == (422, True), (body, answer)
    code, answer = server.ask("plugin", "PATCH", f"{NODE}/b/status", {"status": {"conditions": [own]}})
    assert (code, "no node but its own" in answer["message"]) == (422, True), answer


def test_the_extender_binds_and_notes_what_asks_for_gpu_memory(server: Server):
    """A waiting pod is touched, bound with its note, and noted again where it has another GPU."""
    code, answer = server.ask("extender", "PATCH", f"{PODS}/mem/status", touch())
    assert code == 200, answer
    own = dict.fromkeys((MEMORY_ANNOTATION, INDEX, ALLOCATION), "x")
    code, answer = server.ask("extender", "POST", f"{PODS}/mem/binding", binding("mem", annotations=own))
    assert code == 201, answer
    live = server.do("GET", f"{PODS}/mem")
    assert (live["spec"]["nodeName"], live["metadata"]["annotations"][MEMORY_ANNOTATION]) == ("a", "x")
    again = {
        "metadata": {
            "annotations": {MEMORY_ANNOTATION: "y"},
            "resourceVersion": live["metadata"]["resourceVersion"],
        }
    }
    code, answer = server.ask("extender", "PATCH", f"{PODS}/mem/status", again)
    assert code == 200, answer
    code, answer = server.ask("extender", "POST", f"{PODS}/mem2/binding", binding("mem2"))
    assert code == 201, answer  # one that asks for none of its units


READY = {"conditions": [{"type": "Ready", "status": "True"}], "podIP": "10.0.0.1"}


@pytest.mark.parametrize(
    ("pod", "body", "why"),
    [
        ("web", touch(), "no pod that asks for no GPU memory"),
        ("web", {"status": READY}, "no status"),
        ("mem", {"status": READY}, "no status"),
        ("mem", touch(labels={"app": "web"}), "no metadata but annotations"),
        ("mem", touch(finalizers=["x.io/x"]), "no metadata but annotations"),
        ("mem", {"metadata": {"annotations": {"theirs": "2"}}}, "no annotations but its own"),
    ],
    ids=["another's pod", "its status", "a pod's status", "labels", "finalizers", "other annotations"],
)
def test_the_extender_changes_nothing_else_of_pods(server: Server, pod: str, body: Any, why: str):
    code, answer = server.ask("extender", "PATCH", f"{PODS}/{pod}/status", body)
    assert (code, why in answer["message"]) == (422, True), answer


@pytest.mark.parametrize(
    ("metadata", "why"),
    [
        ({"annotations": {"theirs": "2"}}, "no annotations but its own"),
        ({"labels": {"app": "web"}}, "no labels but"),
    ],
)
def test_a_binding_brings_nothing_else_to_its_pod(server: Server, metadata: Any, why: str):
    code, answer = server.ask("extender", "POST", f"{PODS}/web/binding", binding("web", **metadata))
    assert (code, why in answer["message"]) == (422, True), answer


def test_the_policies_are_kept_as_they_are_written(server: Server):
    """A second apply changes nothing; the API server finds no mistake of types in them."""
    policies = [item for spec in (PLUGIN, EXTENDER) for item in spec.manifests if "Policy" in item["kind"]]
    assert {change.action for change in apply.diff(server.api, policies)} == {"same"}
    for policy in policies:
        live = server.api.get(policy["kind"], policy["metadata"]["name"])
        assert not ((live.get("status") or {}).get("typeChecking") or {}).get("expressionWarnings")
