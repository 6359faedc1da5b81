"""What gpunode does in a cluster, on real API servers of several releases, with and without server-side apply.

Each runs with an etcd and nothing else: nodes are objects, and what kubelets and controllers would do, `Cluster` does.
"""

import json
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpunode.cluster import control_plane, lease, rights
from gpunode.cluster.api import Api, connect, notes
from gpunode.cluster.api.kinds import OURS, Object, title
from gpunode.cluster.api.notes import covers
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.contract.status import MARK, Configuration, Status, dumps
from gpunode.errors import ClusterError
from gpunode.links import node as nodes
from gpunode.links import plugin
from gpunode.links.capacity.link import judge_offer
from gpunode.links.node import GPU_LABEL, cordon, drain, labels
from gpunode.links.node.link import judge_node
from gpunode.links.plugin import Spec, other_owners
from gpunode.links.plugin.daemonset import NAME, NAME_LABEL, POD_GENERATION
from gpunode.links.plugin.deployment import all_objects
from gpunode.links.plugin.link import judge_plugin
from gpunode.links.pod import vectoradd
from gpunode.links.pod.link import judge_pod
from gpunode.links.pod.requests import Target
from gpunode.links.pod.run_pod import PodRun
from gpunode.model import Cluster as Named
from gpunode.model import PluginConfig, PluginImage, PluginPublish
from gpunode.sim.apiserver import tls

from .api_servers import NEW, OLD, TOKEN, running
from .progress import CannotRun, wait

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

NS = "gpunode"
IMAGE, NEXT = PluginImage("gpunode/device-plugin:0.1.0"), PluginImage("gpunode/device-plugin:0.2.0")
FULL = PluginPublish(events=True, annotation=True, metrics=True)
SPEC = Spec(NS, IMAGE, PluginConfig("version: v1"), FULL)
LATER = Spec(NS, NEXT)
UUIDS = ("GPU-1", "GPU-2")
MADE = {item["kind"] for item in all_objects(NS)} - {"Namespace"}
POLICIES = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
MERGE = "application/merge-patch+json"


class Cluster:
    """An API server, and whoever else a cluster has: their changes, and a kubelet that has logs."""

    def __init__(self, minor: str, kubeconfig: str, folder: Path) -> None:
        self.minor = minor
        self.api: Api = connect(Named(kubeconfig=kubeconfig))
        self._server = self.api.access.server
        self._tls = self.api.access.tls
        self.free = list(UUIDS)
        self.given: dict[str, str] = {}  # vectoradd's pod -> its GPU
        self._kubelet = ThreadingHTTPServer(("127.0.0.1", 0), _logs(self))
        context, _ = tls.server(folder / "kubelet.pem")
        self._kubelet.socket = context.wrap_socket(self._kubelet.socket, server_side=True)
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=self._kubelet.serve_forever, args=(0.05,), daemon=True),
            threading.Thread(target=self._acts, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    @property
    def applies(self) -> bool:
        """Whether this API server has the owners of fields, and names them."""
        return self.api.served.apply

    def close(self) -> None:
        self._ended.set()
        self._kubelet.shutdown()
        for thread in self._threads:
            thread.join()
        self._kubelet.server_close()
        self.api.close()

    def ask(self, method: str, where: str, body: Any = None, content: str = "application/json") -> Object:
        """As another client does."""
        headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": content}
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._server + where, data, headers, method=method)
        with urllib.request.urlopen(request, context=self._tls, timeout=20) as answer:
            document: Object = json.load(answer)
            return document

    def edit(self, kind: str, name: str, change: Object, namespace: str | None = None) -> None:
        """As `kubectl edit` and `kubectl label` do."""
        where = self.api.served.kind(kind).path(namespace, name)
        self.ask("PATCH", f"{where}?fieldManager=kubectl", change, MERGE)

    def add_node(self, name: str) -> None:
        """A Ready node with GPUs and this cluster's kubelet."""
        meta = {"name": name, "labels": {"kubernetes.io/hostname": name}}
        self.ask("POST", "/api/v1/nodes", {"kind": "Node", "apiVersion": "v1", "metadata": meta})
        # Without a controller manager, who would see that it is Ready, admission's taint would stay.
        self.ask("PATCH", f"/api/v1/nodes/{name}", {"spec": {"taints": None}}, MERGE)
        amounts = {"cpu": "8", "memory": "64Gi", "pods": "110", "nvidia.com/gpu": str(len(UUIDS))}
        status = {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ok"}],
            "addresses": [{"type": "InternalIP", "address": "127.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": self._kubelet.server_address[1]}},
        }
        self.ask("PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, MERGE)

    def node(self, name: str) -> nodes.Node:
        return next(entry for entry in nodes.fetch(self.api) if entry.name == name)

    def _acts(self) -> None:
        while not self._ended.wait(0.1):
            for act in (self._garbage, self._daemonsets, self._namespaces, self._kubelets):
                try:
                    act()
                except urllib.error.HTTPError as error:  # it has changed meanwhile: the next time
                    sys.stderr.write(f"{act.__name__}: {error.url}: {error.read()[:300]!r}\n")

    def _garbage(self) -> None:
        """Ends deletions in the foreground."""
        for kind in filter(self.api.served.has, MADE):
            of = self.api.served.kind(kind)
            for item in self.ask("GET", f"{of.path()}?labelSelector={OURS}%3Dgpunode")["items"]:
                meta = item["metadata"]
                if "deletionTimestamp" in meta:
                    for pod in self.ask("GET", f"/api/v1/namespaces/{NS}/pods")["items"]:
                        if meta["uid"] in [
                            owner["uid"] for owner in pod["metadata"].get("ownerReferences", [])
                        ]:
                            self._end(pod)
                    where = of.path(meta.get("namespace"), meta["name"])
                    self.ask("PATCH", where, {"metadata": {"finalizers": None}}, MERGE)

    def _daemonsets(self) -> None:
        for item in self.ask("GET", self.api.served.kind("DaemonSet").path())["items"]:
            if item["metadata"]["name"] == NAME and "deletionTimestamp" not in item["metadata"]:
                self._place(item)

    def _namespaces(self) -> None:
        for item in self.ask("GET", "/api/v1/namespaces")["items"]:
            if "deletionTimestamp" in item["metadata"]:
                where = f"/api/v1/namespaces/{item['metadata']['name']}"
                now = self.ask("PATCH", where, {"metadata": {"finalizers": None}}, MERGE)
                self.ask("PUT", f"{where}/finalize", {**now, "spec": {"finalizers": []}})

    def _place(self, of: Object) -> None:
        """The DaemonSet's pods of the current template, Running, on the nodes with its label."""
        meta, template = of["metadata"], of["spec"]["template"]
        generation = meta["annotations"]["deprecated.daemonset.template.generation"]
        where = f"/api/v1/namespaces/{meta['namespace']}/pods"
        for node in self.ask("GET", f"/api/v1/nodes?labelSelector={GPU_LABEL}%3Dtrue")["items"]:
            name = f"{meta['name']}-{node['metadata']['name']}"
            pods = {item["metadata"]["name"]: item for item in self.ask("GET", where)["items"]}
            if name in pods and pods[name]["metadata"]["labels"].get(POD_GENERATION) != generation:
                self._end(pods.pop(name))
            if name not in pods:
                owner = {"apiVersion": of.get("apiVersion", "apps/v1"), "kind": "DaemonSet"}
                owner |= {"name": meta["name"], "uid": meta["uid"], "controller": True}
                own = {**template["metadata"]["labels"], POD_GENERATION: generation}
                pod = {"name": name, "labels": own, "ownerReferences": [owner]}
                spec = {**template["spec"], "nodeName": node["metadata"]["name"]}
                self.ask("POST", where, {"metadata": pod, "spec": spec})
                ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
                self.ask("PATCH", f"{where}/{name}/status", {"status": ready}, MERGE)

    def _kubelets(self) -> None:
        """vectoradd's pods get a node, a GPU and an end; whatever is deleted goes."""
        for pod in self.ask("GET", "/api/v1/pods")["items"]:
            meta, spec = pod["metadata"], pod["spec"]
            where = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            if "deletionTimestamp" in meta:
                self._end(pod)
            elif not spec.get("nodeName"):
                target = {"kind": "Node", "name": spec["nodeSelector"]["kubernetes.io/hostname"]}
                binding = {"kind": "Binding", "apiVersion": "v1", "metadata": {"name": meta["name"]}}
                self.ask("POST", f"{where}/binding", {**binding, "target": target})
            elif meta["labels"].get(NAME_LABEL) == "gpunode-vectoradd" and meta["name"] not in self.given:
                self.given[meta["name"]] = self.free.pop(0)
                moment = "2026-01-01T00:00:00Z"
                ended = {"exitCode": 0, "startedAt": moment, "finishedAt": moment}
                common = {"image": "i", "imageID": "i", "ready": False, "restartCount": 0}
                states = [{"name": "vectoradd", "state": {"terminated": ended}, **common}]
                states += [{"name": "hold", "state": {"running": {"startedAt": moment}}, **common}]
                status = {"phase": "Running", "containerStatuses": states}
                self.ask("PATCH", f"{where}/status", {"status": status}, MERGE)

    def _end(self, pod: Object) -> None:
        meta = pod["metadata"]
        with suppress(urllib.error.HTTPError):  # it is gone
            at_once = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
            where = f"/api/v1/namespaces/{meta['namespace']}/pods/{meta['name']}"
            if meta.get("finalizers"):
                self.ask("PATCH", where, {"metadata": {"finalizers": None}}, MERGE)
            self.ask("DELETE", where, {"kind": "DeleteOptions", "apiVersion": "v1", **at_once})


def _logs(of: Cluster) -> type[BaseHTTPRequestHandler]:
    """The kubelet's server, which the API server asks for logs."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

        def do_GET(self) -> None:
            _, what, _, pod, container = self.path.partition("?")[0].split("/")
            assert what == "containerLogs"
            gpu = {"index": 0, "uuid": of.given.get(pod), "name": "P100", "passed": True, "error": None}
            text = json.dumps({"passed": True, "gpus": [gpu]})
            if container == "device-plugin":
                text = f"{MARK} {dumps(Status('2026-01-01T00:00:00Z', Configuration('none', 'none', ('envvar',))))}"
            self.send_response(200)
            self.end_headers()
            self.wfile.write(f"{text}\n".encode())

    return Handler


@pytest.fixture(scope="module", params=[*OLD, NEW])
def cluster(request, tmp_path_factory) -> Iterator[Cluster]:
    """A cluster of that release with node `a`."""
    folder = tmp_path_factory.mktemp(f"api-{request.param}")
    try:
        with running(request.param, folder) as kubeconfig:
            control_plane = Cluster(request.param, kubeconfig, folder)
            try:
                control_plane.add_node("a")
                yield control_plane
            finally:
                control_plane.close()
    except CannotRun as error:
        pytest.skip(str(error))


@contextmanager
def plugged(cluster: Cluster, spec: Spec = SPEC) -> Iterator[plugin.Rollout]:
    """The plugin, deployed on node `a`; afterwards it and its labels are removed."""
    labels.write(cluster.api, cluster.node("a"), {GPU_LABEL: "true", "pool": "ml"})
    try:
        yield plugin.deploy(cluster.api, spec, seconds=15, notify=lambda _: None)
    finally:
        plugin.remove(cluster.api, NS, seconds=15, notify=lambda _: None)
        labels.write(cluster.api, cluster.node("a"), {})


def actions(differences: tuple[Difference, ...]) -> set[str]:
    return {difference.action for difference in differences}


def signed(difference: Difference) -> list[str]:
    """The lines that change, without their surroundings, which are not the same in each release."""
    return [line for line in difference.lines if line[0] in "+-"]


def versions(cluster: Cluster) -> dict[str, str]:
    """Each of the plugin's objects and its resourceVersion; DaemonSets by their generation, as nobody writes a status."""
    every = [cluster.api.served.fit(manifest) for manifest in SPEC.manifests]
    releases = {}
    for item in every:
        if item is not None:
            meta = item["metadata"]
            live = cluster.api.get(item["kind"], meta["name"], meta.get("namespace"))
            releases[title(item)] = live["metadata"]["resourceVersion"] if live else ""
    return releases


def test_its_version_says_what_it_can_do(cluster: Cluster):
    """By discovery; and it is healthy, as are the rights of whoever may do anything."""
    served = cluster.api.served
    assert served.version.startswith(f"v{cluster.minor}.")
    assert (served.apply, served.dry_run) == (cluster.minor != "1.16", True)
    assert served.kind("RuntimeClass").api == f"node.k8s.io/{'v1' if served.apply else 'v1beta1'}"
    assert served.kind("PodDisruptionBudget").api == f"policy/{'v1' if cluster.minor == NEW else 'v1beta1'}"
    assert control_plane.problem(cluster.api) == ""
    rights.demand(cluster.api, (*rights.of_run(NS, proves=True), *rights.EVICTION))


def test_a_dra_driver_owns_the_gpus_that_its_resource_slices_list(cluster: Cluster):
    """Where the API server has slices; a DeviceClass makes another driver's devices GPUs under the same name."""
    if cluster.minor in OLD:
        assert other_owners.dra_owners(cluster.api) == other_owners.NONE
        return
    group = "/apis/resource.k8s.io/v1"
    made: list[str] = []

    def make(plural: str, name: str, spec: Object) -> None:
        cluster.ask("POST", f"{group}/{plural}", {"metadata": {"name": name}, "spec": spec})
        made.append(f"{group}/{plural}/{name}")

    try:
        for node, driver in (
            ("a", "gpu.example"),
            ("b", other_owners.DRA_DRIVER),
            ("c", "compute-domain.nvidia.com"),
        ):
            pool = {"name": node, "generation": 1, "resourceSliceCount": 1}
            spec = {"driver": driver, "nodeName": node, "pool": pool, "devices": [{"name": "gpu-0"}]}
            make("resourceslices", f"{node}-{driver}", spec)
        assert dict(other_owners.dra_owners(cluster.api).slices) == {"b": ("ResourceSlice b-gpu.nvidia.com",)}
        assert other_owners.dra_owners(cluster.api).reason(cluster.node("a")) is None
        cel = [{"cel": {"expression": "device.driver == 'gpu.example'"}}]
        make("deviceclasses", "fast", {"extendedResourceName": "nvidia.com/gpu", "selectors": cel})
        why = other_owners.dra_owners(cluster.api).reason(cluster.node("a"))
        assert "(ResourceSlice a-gpu.example, DeviceClass fast for nvidia.com/gpu)" in why.what
    finally:
        for where in made:
            cluster.ask("DELETE", where)


def test_the_plugin_is_planned_deployed_and_removed(cluster: Cluster):
    """Planned without a write; deployed; then nothing is to change, and nothing is written; then nothing is left."""
    before = [item["metadata"]["name"] for item in cluster.ask("GET", "/api/v1/namespaces")["items"]]
    assert actions(plugin.plan(cluster.api, SPEC)) == {"created"}
    assert not any(versions(cluster).values())
    with plugged(cluster) as rollout:
        assert rollout.good
        assert actions(rollout.differences) == {"created"}
        seen = versions(cluster)
        assert all(seen.values())
        assert actions(plugin.plan(cluster.api, SPEC)) == {"same"}
        assert actions(apply.apply(cluster.api, SPEC.manifests)) == {"same"}
        assert versions(cluster) == seen
        removable = plugin.find_removable(cluster.api, NS, notify=lambda _: None)
        removed = plugin.remove(cluster.api, NS, seconds=15, notify=lambda _: None)
        assert removed == removable
        assert "Namespace gpunode" in removed
        assert removed[-1] == f"Node a label {GPU_LABEL}"
    assert not any(versions(cluster).values())
    assert [item["metadata"]["name"] for item in cluster.ask("GET", "/api/v1/namespaces")["items"]] == before
    live = cluster.ask("GET", "/api/v1/nodes/a")["metadata"]
    assert not notes.read({"metadata": live})
    assert GPU_LABEL not in live["labels"]


def test_the_api_server_keeps_all_that_is_wished(cluster: Cluster):
    """No field is dropped: what an API server does not know is not wished of it."""
    with plugged(cluster):
        for manifest in filter(None, map(cluster.api.served.fit, SPEC.manifests)):
            meta = manifest["metadata"]
            live = cluster.api.get(manifest["kind"], meta["name"], meta.get("namespace"))
            assert covers(live, manifest), title(manifest)


def test_what_others_edit_is_shown_with_its_field_and_set_back(cluster: Cluster):
    """An image by hand, a label of another owner: the first goes, the second stays. The same lines in each release."""
    edit: Object = {
        "spec": {"template": {"spec": {"containers": [{"name": "device-plugin", "image": "evil:1"}]}}}
    }
    where = cluster.api.served.kind("DaemonSet").path(NS, NAME)
    with plugged(cluster):
        strategic = "application/strategic-merge-patch+json"
        cluster.ask("PATCH", f"{where}?fieldManager=kubectl", edit, strategic)
        cluster.edit("DaemonSet", NAME, {"metadata": {"labels": {"team": "theirs"}}}, NS)
        (would,) = [change for change in plugin.plan(cluster.api, SPEC) if change.action != "same"]
        assert (would.what, would.action) == (f"DaemonSet {NS}/{NAME}", "changed")
        assert signed(would) == ["-        image: evil:1", f"+        image: {IMAGE.reference}"]
        (claim,) = would.claims
        assert claim.field == '.spec.template.spec.containers[name="device-plugin"].image'
        assert claim.manager == ("kubectl" if cluster.applies else "")
        (done,) = [change for change in apply.apply(cluster.api, SPEC.manifests) if change.action != "same"]
        assert signed(done) == signed(would)
        live = cluster.ask("GET", where)
        assert live["metadata"]["labels"]["team"] == "theirs"
        assert actions(plugin.plan(cluster.api, SPEC)) == {"same"}


def test_another_version_is_shown_as_its_lines_and_what_it_lacks_goes(cluster: Cluster):
    """Image, configuration, rights, ports: the same lines in each release."""
    with plugged(cluster):
        would = {change.what: change for change in plugin.plan(cluster.api, LATER) if change.action != "same"}
        done = apply.apply(cluster.api, LATER.manifests)
        gone = apply.prune(cluster.api, LATER.manifests, all_objects(NS))
        shown = {change.what: change for change in (*done, *gone) if change.action != "same"}
        assert {what: signed(value) for what, value in shown.items()} == {
            what: signed(value) for what, value in would.items()
        }
        assert {what for what, value in would.items() if value.action == "removed"} == {
            f"ConfigMap {NS}/{NAME}",
            f"ClusterRole {NAME}",
            f"ClusterRoleBinding {NAME}",
            *(f"{policy} {NAME}" for policy in POLICIES if cluster.api.served.has(policy)),
        }
        lines = signed(would[f"DaemonSet {NS}/{NAME}"])
        assert [line.strip("+- ") for line in lines if line[0] == "+"] == [
            f"image: {NEXT.reference}",
        ]
        names = {line.strip("- ") for line in lines if line.startswith("-        - name:")}
        assert {"name: CONFIG_FILE", "name: NODE_ANNOTATION", "name: METRICS_ADDRESS"} <= names
        wait("the end of what was removed", lambda: actions(plugin.plan(cluster.api, LATER)) == {"same"})
        live = cluster.api.get("DaemonSet", NAME, NS)
        spec = live["spec"]["template"]["spec"]
        assert not spec["containers"][0].get("ports")
        assert [volume["name"] for volume in spec["volumes"]] == ["device-plugins", "pod-resources"]


def test_labels_of_several_writers_stay_apart(cluster: Cluster):
    """Another's value is refused and can be taken; what a writer leaves out goes; the accelerator label, too."""
    api = cluster.api
    cluster.add_node("b")
    try:
        cluster.edit("Node", "b", {"metadata": {"labels": {"zone": "x", "accelerator": "theirs"}}})
        with pytest.raises(ClusterError, match="b: another client set accelerator=theirs"):
            labels.write(api, cluster.node("b"), {"accelerator": "nvidia-l4"}, writer=labels.ACCELERATOR)
        wish = {"accelerator": "nvidia-l4"}
        taken = {"accelerator": ("theirs", "nvidia-l4")}
        would = labels.write(
            api, cluster.node("b"), wish, writer=labels.ACCELERATOR, overwrite=True, dry_run=True
        )
        assert would == taken
        assert cluster.node("b").labels["accelerator"] == "theirs"
        assert labels.write(api, cluster.node("b"), wish, writer=labels.ACCELERATOR, overwrite=True) == taken
        assert labels.write(api, cluster.node("b"), {"pool": "ml", "tier": "1"}).keys() == {"pool", "tier"}
        assert labels.holds(cluster.node("b"), {"pool": "ml", "tier": "1"})
        assert labels.write(api, cluster.node("b"), {"tier": "1"}) == {"pool": ("ml", None)}
        cluster.edit("Node", "b", {"metadata": {"labels": {"tier": "9"}}})
        with pytest.raises(ClusterError, match="another client set tier=9"):
            labels.write(api, cluster.node("b"), {"tier": "1"})
        gone = labels.write(api, cluster.node("b"), {}, writer=labels.ACCELERATOR)
        assert gone == {"accelerator": ("nvidia-l4", None)}
        assert labels.write(api, cluster.node("b"), {}) == {}
        kept = {key: value for key, value in cluster.node("b").labels.items() if "/" not in key}
        assert kept == {"zone": "x", "tier": "9"}
    finally:
        cluster.ask("DELETE", "/api/v1/nodes/b")
    node = nodes.parse({"metadata": {"name": "b", "uid": "gone"}})
    with pytest.raises(ClusterError):
        labels.write(api, node, {"pool": "ml"})
    assert cluster.api.get("Node", "b") is None


def test_a_cordon_is_its_owners(cluster: Cluster):
    """gpunode's is lifted; another's is not taken over, and stays."""
    api = cluster.api
    assert cordon.cordon(api, "a", "run 1")
    assert cordon.owners(api) == {"a": "run 1"}
    assert not cluster.node("a").schedulable
    assert cordon.uncordon(api, "a")
    assert cluster.node("a").schedulable
    cluster.edit("Node", "a", {"spec": {"unschedulable": True}})
    assert not cordon.cordon(api, "a", "run 1")
    assert not cordon.uncordon(api, "a")
    assert not cluster.node("a").schedulable
    cluster.edit("Node", "a", {"spec": {"unschedulable": None}})


def test_one_run_holds_the_lease(cluster: Cluster):
    """It is there, names its holder, is renewed, and is given back; a second run is refused by the first one's name."""
    told: list[str] = []
    where = cluster.api.served.kind("Lease").path(lease.NAMESPACE, lease.NAME)
    with lease.hold(cluster.api, "first", told.append):
        assert cluster.ask("GET", where)["spec"]["holderIdentity"] == "first"
        with (
            pytest.raises(ClusterError, match="first is changing"),
            lease.hold(cluster.api, "second", told.append),
        ):
            pass
    assert told == ["first holds the cluster's lease: waiting to see whether it still works"]
    assert not cluster.ask("GET", where)["spec"].get("holderIdentity")


def test_a_node_is_verified_up_to_a_finished_pod(cluster: Cluster):
    """Node, plugin, capacity, pods on both GPUs; afterwards no pod of the test is left."""
    cluster.free, cluster.given = list(UUIDS), {}
    with plugged(cluster) as rollout:
        (state,) = rollout.states.values()
        node = cluster.node("a")
        (result,) = vectoradd.run(cluster.api, [Target("a", UUIDS)], PodRun(NS, IMAGE, 15))
        chain = (judge_node(node), judge_plugin(state, ""), judge_offer(node, 2, None), judge_pod(result))
        assert [(link.layer, link.status) for link in chain] == [
            (layer, "ok") for layer in ("node", "plugin", "capacity", "pod")
        ], chain
        assert sorted(cluster.given.values()) == list(UUIDS)
        left = cluster.ask(
            "GET", f"/api/v1/namespaces/{NS}/pods?labelSelector={NAME_LABEL}%3Dgpunode-vectoradd"
        )
        assert left["items"] == []


def test_a_budget_stands_in_an_evictions_way(cluster: Cluster):
    """By the eviction's version of that release; without the budget the pod goes."""
    pods, budgets = "/api/v1/namespaces/default/pods", cluster.api.served.kind("PodDisruptionBudget")
    spec = {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}
    cluster.ask("POST", pods, {"metadata": {"name": "job", "labels": {"app": "job"}}, "spec": spec})
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    cluster.ask("PATCH", f"{pods}/job/status", {"status": ready}, MERGE)
    budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "job"}}}
    body = {"apiVersion": budgets.api, "kind": "PodDisruptionBudget", "metadata": {"name": "keep"}}
    cluster.ask("POST", budgets.path("default"), {**body, "spec": budget})

    def away(seconds: float) -> tuple[drain.Work, ...]:
        def job(pod: drain.Work) -> bool:
            return pod.name == "default/job"

        return drain.wait(cluster.api, "a", job, evict=True, seconds=seconds, notify=lambda _: None)

    (left,) = away(1)
    assert "budget" in left.obstacle
    cluster.ask("DELETE", budgets.path("default", "keep"))
    assert away(30) == ()
