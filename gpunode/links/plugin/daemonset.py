"""The plugin's DaemonSets and their pods: what is deployed, on which nodes, and why a pod does not run."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpunode.cluster import obstacles, pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects.difference import GENERATION
from gpunode.errors import Problem
from gpunode.links.node import GPU_LABEL, RUNTIME_LABEL, Node, labels
from gpunode.links.plugin import published
from gpunode.links.plugin.published import CONTAINER
from gpunode.model import PluginConfig, PluginImage
from gpunode.wording import advise

NAME = "gpunode-device-plugin"
MPS = "gpunode-mps"
MPS_CONTAINER = "mps"
NAMES = (NAME, MPS)  # of DaemonSets; each also with the suffix -class
NAME_LABEL = "app.kubernetes.io/name"
SELECTOR = f"{NAME_LABEL}={NAME}"
NOT_READY = "node-not-ready"  # code
POD_GENERATION = "pod-template-generation"  # the DaemonSet's GENERATION when the pod was made


def every_pod(api: Api, namespace: str) -> list[Object]:
    """The pods of all the plugin's DaemonSets."""
    return [pod for name in NAMES for pod in api.find("Pod", namespace, labels=f"{NAME_LABEL}={name}")[0]]


def plugins(several: Iterable[Object]) -> list[Object]:
    """The pods among these that offer GPUs: no MPS control daemons."""
    return [pod for pod in several if (pod["metadata"].get("labels") or {}).get(NAME_LABEL) == NAME]


def is_in_back_off(pod: Object) -> bool:
    """True if the kubelet tries to start a container again later."""
    states = pod.get("status", {}).get("containerStatuses") or []
    reasons = [state.get("state", {}).get("waiting", {}).get("reason", "") for state in states]
    return any("BackOff" in reason or reason == "ErrImageNeverPull" for reason in reasons)


def by_node(several: Iterable[Object]) -> dict[str, Object]:
    """Node -> its youngest pod; one that is being deleted only where there is no other."""
    placed = [pod for pod in several if place(pod)]
    ages = sorted(placed, key=lambda pod: (not is_ending(pod), pod["metadata"]["creationTimestamp"]))
    return {place(pod): pod for pod in ages}


def is_ending(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def place(pod: Object) -> str:
    """The node of a DaemonSet pod: named in its affinity until the scheduler has bound it."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms") or []
    for field in [field for term in terms for field in term.get("matchFields") or []]:
        if field["key"] == "metadata.name":
            return str(field["values"][0])
    return ""


def generations(api: Api, namespace: str) -> Mapping[str, str]:
    """DaemonSet -> the current generation of its pod template."""
    return {
        item["metadata"]["name"]: (item["metadata"].get("annotations") or {}).get(GENERATION, "")
        for item in api.find("DaemonSet", namespace, labels=SELECTOR)[0]
    }


def is_up(pod: Object | None, current: Mapping[str, str]) -> bool:
    if pod is None or is_ending(pod) or not pods.is_ready(pod):
        return False
    owners = [reference["name"] for reference in pod["metadata"].get("ownerReferences") or []]
    generation = pod["metadata"]["labels"].get(POD_GENERATION, "")
    return any(current.get(owner) in {generation, ""} for owner in owners)


@dataclass(frozen=True, slots=True)
class State:
    """The plugin on one node: its pod there, and why it does not run; None where it does."""

    node: Node
    pod: Object | None
    reason: Problem | None = None

    @property
    def name(self) -> str:
        """Of its pod; "" where there is none."""
        return str(self.pod["metadata"]["name"]) if self.pod else ""


def read_state(api: Api, namespace: str, node: Node, pod: Object | None, *, late: bool = False) -> State:
    """`late`: the pod is not of the version that was deployed."""
    if not node.ready:
        return State(node, pod, Problem(NOT_READY, f"the node is not Ready: {node.why_not_ready}"))
    runs = pod is not None and not is_ending(pod) and pods.is_ready(pod) and not late
    return State(node, pod, None if runs else why(api, namespace, node, pod))


def why(api: Api, namespace: str, node: Node, pod: Object | None) -> Problem:
    """Why the plugin does not run on the node."""
    label = node.labels.get(GPU_LABEL)
    if label == PAUSED:
        return why_paused(node)
    if label != "true":
        what = f"the node has no label {GPU_LABEL}=true, so no plugin runs there"
        return Problem("no-label", what)
    if pod is None:
        what = _no_pod(api, namespace, node)
        return obstacles.match_admission(what) or Problem("no-pod", what)
    if is_ending(pod):
        return Problem("pod-ending", "its old pod is still ending")
    problem = pods.problem(pod, pods.events(api, pod))
    if not problem and pods.is_ready(pod):
        return Problem(
            "pod-replaced",
            "its pod waits for its replacement: a new version rolls out to a tenth of the nodes at a time",
        )
    if not problem and not pods.is_running(pod):
        return Problem("pod-starting", "its pod is starting")
    if not problem:  # it runs and offers nothing yet
        if waiting := mps_problem(api, namespace, node):
            return Problem("mps", waiting)
        why = published.why_not_ready(published.read(api, node, pod))
        return why or Problem("not-ready", "it is not ready yet")
    if "CrashLoopBackOff" in pods.waiting_reasons(pod) and (lines := pods.last_lines(api, pod, CONTAINER)):
        problem += f"; its log: {' / '.join(lines.splitlines())}"
    obstacle = pods.obstacle(pod)
    return Problem(
        obstacle.code if obstacle else "pod-trouble", problem, fix=obstacle.fix if obstacle else ""
    )


def _no_pod(api: Api, namespace: str, node: Node) -> str:
    name = f"{NAME}-class" if node.labels.get(RUNTIME_LABEL) == "class" else NAME
    live = api.get("DaemonSet", name, namespace)
    if live is None:
        return f"the plugin is not deployed in namespace {namespace}"
    warnings = [event["message"] for event in pods.events(api, live) if event.get("type") == "Warning"]
    if not warnings:
        return f"DaemonSet {name} has no pod there yet"
    return str(warnings[-1]).removeprefix("(combined from similar events): ")


def why_on(api: Api, namespace: str, waiting: Sequence[Node], pods_by_node: Mapping[str, Object]) -> Problem:
    """The reasons of these nodes in one, each with its nodes."""
    reasons: dict[str, list[str]] = {}
    for node in waiting:
        reasons.setdefault(why(api, namespace, node, pods_by_node.get(node.name)).what, []).append(node.name)
    what = "; ".join(f"{', '.join(names)}: {reason}" for reason, names in reasons.items())
    return Problem("plugin-waiting", what)


def mps_problem(api: Api, namespace: str, node: Node) -> str:
    """Why the node's pod of control daemons does not run; "" where it does, and where there is none."""
    of = f"app.kubernetes.io/name={MPS}"
    for pod in api.find("Pod", namespace, labels=of, fields=f"spec.nodeName={node.name}")[0]:
        if pods.is_ready(pod):
            continue
        why = pods.problem(pod, pods.events(api, pod)) or "it is starting"
        lines = ""
        if "CrashLoopBackOff" in pods.waiting_reasons(pod):
            lines = pods.last_lines(api, pod, MPS_CONTAINER)
        log = f"; its log: {' / '.join(lines.splitlines())}" if lines else ""
        return f"{pod['metadata']['name']}, the pod of the MPS control daemons, does not run: {why}{log}"
    return ""


# In the ConfigMap, where there is but one configuration (templates/cluster/plugin.yaml.j2)
CONFIG_FILE = "config.yaml"


def image(api: Api, namespace: str) -> PluginImage | None:
    """The image that the plugin's DaemonSet names, pulled as it says; None where there is no DaemonSet."""
    container = _container(api, namespace)
    if container is None:
        return None
    # It was loaded from an archive, whose name is not known
    never = container.get("imagePullPolicy") == "Never"
    return PluginImage(container["image"], archive="" if never else None)


def config(api: Api, namespace: str) -> PluginConfig | None:
    """The configuration that was deployed with it; None where it has none."""
    live = api.get("ConfigMap", NAME, namespace)
    data = (live or {}).get("data") or {}
    if not data:
        return None
    several = any(
        variable["name"] == "CONFIG_DIR" for variable in (_container(api, namespace) or {}).get("env") or []
    )
    return PluginConfig("", files=data) if several else PluginConfig(data.get(CONFIG_FILE, ""))


def _container(api: Api, namespace: str) -> Object | None:
    live = api.get("DaemonSet", NAME, namespace)
    several: list[Object] = live["spec"]["template"]["spec"]["containers"] if live else []
    return next((container for container in several if container["name"] == CONTAINER), None)


PAUSED = "paused"  # the reason's code, and of GPU_LABEL: the DaemonSets' affinity wants "true"
OWNER = "gpunode.dev/plugin-paused-by"
PAUSE_SECONDS = 60.0  # for the pods to end
LOOK = 0.5


def uids_by_node(api: Api, namespace: str) -> dict[str, set[str]]:
    """UIDs of the plugin's pods by node, those of MPS control daemons among them."""
    uids: dict[str, set[str]] = {}
    for pod in every_pod(api, namespace):
        uids.setdefault(place(pod), set()).add(pod["metadata"]["uid"])
    return uids


def pause(
    api: Api, namespace: str, node: Node, desired: Mapping[str, str], owner: str, notify: OnProgress
) -> bool:
    """Take the plugin off the node, since it uses the GPUs itself and no driver is unloaded under it. Waits until its pods are gone;
    False if they are not in time.

    `desired`: the labels that gpunode has on the node. To write them again brings the plugin back. Raises ClusterError where
    the label is another's.
    """
    labels.write(api, node, {**desired, GPU_LABEL: PAUSED}, annotations={OWNER: owner})
    notify("waiting for the device plugin to leave the node")
    end = time.monotonic() + PAUSE_SECONDS
    while node.name in uids_by_node(api, namespace):
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK)
    return True


def why_paused(node: Node) -> Problem:
    what = f"a run took the plugin off {node.name} for another driver, and has not brought it back"
    fix = "`gpunode top` shows a running run. If the run has ended, `gpunode provision` restores the plugin."
    return Problem(PAUSED, what, fix=advise(fix))


def paused_nodes(api: Api) -> dict[str, str]:
    """Nodes from which the plugin is away → by which owner: those of runs that died are among them."""
    nodes, _ = api.find("Node", labels=f"{GPU_LABEL}={PAUSED}")
    return {
        node["metadata"]["name"]: str((node["metadata"].get("annotations") or {}).get(OWNER, ""))
        for node in nodes
    }
