"""The bundled device plugin in the cluster: deploy it, see how it is, take it away."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpunode.cluster import apply, nodes, pods
from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object
from gpunode.cluster.manifests import rendered
from gpunode.cluster.nodes import GPU_LABEL, RUNTIME_LABEL, Node
from gpunode.cluster.watch import Tell, follow
from gpunode.errors import ClusterError
from gpunode.model import PluginImage

NAME = "gpunode-device-plugin"
CONTAINER = "device-plugin"
SELECTOR = f"app.kubernetes.io/name={NAME}"
POD_GENERATION = "pod-template-generation"  # the DaemonSet's GENERATION when the pod was made
LOOK = 2.0  # seconds between two searches for reasons
NAMED = 3  # nodes whose reasons one sentence holds


@dataclass(frozen=True, slots=True)
class Row:
    """The plugin on one node. `pod` is "" where there is none; `trouble` is "" where all is well."""

    node: str
    pod: str
    phase: str
    restarts: int
    capacity: int
    allocatable: int
    trouble: str
    last_line: str = ""


@dataclass(frozen=True, slots=True)
class Rollout:
    """What `deploy` did to the cluster's objects, and how the plugin then was on each node."""

    differences: tuple[apply.Difference, ...]
    rows: tuple[Row, ...]

    @property
    def good(self) -> bool:
        return not any(row.trouble for row in self.rows)


def manifests(namespace: str, image: PluginImage) -> list[Object]:
    """Namespace, service account, RuntimeClass and the two DaemonSets (see the template for why two)."""
    return rendered("plugin.yaml.j2", namespace=namespace, image=image.reference, image_id=image.image_id)


def plan(api: Api, namespace: str, image: PluginImage) -> tuple[apply.Difference, ...]:
    """What `deploy` would change."""
    return apply.diff(api, manifests(namespace, image))


def deploy(
    api: Api,
    namespace: str,
    image: PluginImage,
    *,
    seconds: float,
    tell: Tell,
    only: Collection[str] | None = None,
    renew: Collection[str] = (),
) -> Rollout:
    """Apply the plugin and wait until it runs, in the version wished, on every node with the GPU label (of `only`).

    Pods whose uid is in `renew` are replaced: a container keeps the driver's libraries it was started with.
    A node where it does not run in time is a row with its trouble, not an exception.
    """
    stuck = [
        pod
        for pod in api.find("Pod", namespace, labels=SELECTOR)[0]
        if pod["metadata"]["uid"] in renew or _in_back_off(pod)
    ]
    differences = apply.apply(api, manifests(namespace, image))
    for pod in stuck:  # what it failed on may just have been mended: a new pod tries at once, not in minutes
        api.delete("Pod", pod["metadata"]["name"], namespace, uid=pod["metadata"]["uid"])
    targets = {
        node.name: node
        for node in nodes.every(api, labels=f"{GPU_LABEL}=true")
        if only is None or node.name in only
    }
    if not targets:
        raise ClusterError(
            f"no node matches: none {'of ' + ', '.join(sorted(only)) + ' ' if only else ''}carries the label {GPU_LABEL}=true, so the plugin runs nowhere",
            hint="`gpunode provision` puts it on the nodes of the inventory.",
        )
    looked = 0.0
    by_node: dict[str, Object] = {}
    waiting = able = [name for name, node in targets.items() if node.ready]
    for found in follow(api, "Pod", namespace, seconds=seconds, labels=SELECTOR, tell=tell):
        by_node = _by_node(found.values())
        current = _generations(api, namespace)
        waiting = [name for name in able if not _up(by_node.get(name), current)]
        if not waiting:
            break
        if time.monotonic() - looked >= LOOK:
            looked = time.monotonic()
            done, all_ = len(able) - len(waiting), len(able)
            why = _grouped(api, namespace, [targets[name] for name in waiting[:NAMED]], by_node)
            tell(f"the plugin runs on {done} of {all_} Ready nodes; {why}")
    fresh = {node.name: node for node in nodes.every(api, labels=f"{GPU_LABEL}=true")}  # GPUs came meanwhile
    rows = tuple(
        _row(api, namespace, fresh.get(name, node), by_node.get(name), name in waiting)
        for name, node in targets.items()
    )
    return Rollout(differences, rows)


def uids(api: Api, namespace: str, on: Collection[str]) -> set[str]:
    """The uids of the plugin's pods on these nodes."""
    found = api.find("Pod", namespace, labels=SELECTOR)[0]
    return {pod["metadata"]["uid"] for pod in found if _place(pod) in on}


def status(api: Api, namespace: str) -> tuple[Row, ...]:
    """One row per node that has the GPU label or a plugin pod, with the last line the pod logged."""
    by_node = _by_node(api.find("Pod", namespace, labels=SELECTOR)[0])
    known = [
        node for node in nodes.every(api) if node.labels.get(GPU_LABEL) == "true" or node.name in by_node
    ]

    def row(node: Node) -> Row:
        pod = by_node.get(node.name)
        return _row(api, namespace, node, pod, pod is None or _ending(pod) or not pods.ready(pod), log=True)

    with ThreadPoolExecutor(8) as pool:
        return tuple(pool.map(row, known))


def remove(api: Api, namespace: str, *, seconds: float, tell: Tell) -> tuple[str, ...]:
    """Delete all that `deploy` made, and pods left over from vectoradd. Labels of nodes stay. Returns titles."""
    for pod in api.find("Pod", namespace, labels=f"{apply.OURS}=gpunode,app.kubernetes.io/name!={NAME}")[0]:
        api.delete("Pod", pod["metadata"]["name"], namespace)
    return apply.remove(api, manifests(namespace, PluginImage("any")), seconds=seconds, tell=tell)


def why_not(api: Api, node: Node, expected: int, namespace: str) -> str:
    """Why the node does not offer `expected` GPUs, in one line. Asks the API for pods, events and logs."""
    if not node.ready:
        return f"the node is not Ready: {node.why_not_ready}"
    if node.labels.get(GPU_LABEL) != "true":
        return f"the node has no label {GPU_LABEL}=true, so no plugin runs there"
    found = api.find("Pod", namespace, labels=SELECTOR, fields=f"spec.nodeName={node.name}")[0]
    pod = _by_node(found).get(node.name)
    if pod is None or not pods.ready(pod):
        return _why(api, namespace, node, pod)
    said = pods.last_words(api, pod, CONTAINER)
    log = f"; the plugin's log: {said.splitlines()[-1]}" if said else ""
    if node.capacity == 0:
        return f"the plugin runs, but the kubelet does not count its GPUs yet{log}"
    if node.allocatable == 0:
        return f"the kubelet offers none of its {node.capacity} GPUs yet{log}"
    if node.allocatable < node.capacity:
        return f"{node.capacity - node.allocatable} of {node.capacity} GPUs are unhealthy{log}"
    return f"the kubelet counts {node.capacity} GPUs, the host has {expected}{log}"


def wait_allocatable(
    api: Api, name: str, expected: int, *, namespace: str, seconds: float, tell: Tell
) -> Node:
    """Wait until the node offers exactly `expected` GPUs; a ClusterError with the reason when it does not in time."""
    node, why, looked = None, "there is no such node", 0.0
    for found in follow(api, "Node", seconds=seconds, fields=f"metadata.name={name}", tell=tell):
        if name not in found:
            continue
        node = nodes.parse(found[name])
        if node.ready and node.allocatable == expected:
            return node
        if time.monotonic() - looked >= LOOK:
            looked = time.monotonic()
            why = why_not(api, node, expected, namespace)
            tell(f"{name} offers {node.allocatable} of {expected} GPUs: {why}")
    raise ClusterError(
        f"{name} offers {node.allocatable if node else 0} of {expected} GPUs after {seconds:.0f} s: {why}",
        hint=f"See `kubectl describe node {name}` and `kubectl -n {namespace} logs -l {SELECTOR}`.",
    )


def _in_back_off(pod: Object) -> bool:
    states = pod.get("status", {}).get("containerStatuses") or []
    return any("BackOff" in one.get("state", {}).get("waiting", {}).get("reason", "") for one in states)


def _by_node(found: Iterable[Object]) -> dict[str, Object]:
    """The youngest pod for each node; one that is being deleted only where there is no other."""
    placed = [pod for pod in found if _place(pod)]
    ages = sorted(placed, key=lambda pod: (not _ending(pod), pod["metadata"]["creationTimestamp"]))
    return {_place(pod): pod for pod in ages}


def _ending(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp"))


def _place(pod: Object) -> str:
    """The node a DaemonSet pod is for: it is named in its affinity until the scheduler has bound it."""
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms") or []
    for field in [field for term in terms for field in term.get("matchFields") or []]:
        if field["key"] == "metadata.name":
            return str(field["values"][0])
    return ""


def _generations(api: Api, namespace: str) -> Mapping[str, str]:
    """The generation of its pod template that each DaemonSet is at, by name."""
    return {
        item["metadata"]["name"]: (item["metadata"].get("annotations") or {}).get(apply.GENERATION, "")
        for item in api.find("DaemonSet", namespace, labels=SELECTOR)[0]
    }


def _up(pod: Object | None, current: Mapping[str, str]) -> bool:
    if pod is None or _ending(pod) or not pods.ready(pod):
        return False
    owners = [one["name"] for one in pod["metadata"].get("ownerReferences") or []]
    generation = pod["metadata"]["labels"].get(POD_GENERATION, "")
    return any(current.get(owner) in {generation, ""} for owner in owners)


def _row(
    api: Api, namespace: str, node: Node, pod: Object | None, waiting: bool, *, log: bool = False
) -> Row:
    trouble = "" if node.ready else f"the node is not Ready: {node.why_not_ready}"
    if node.ready and waiting:
        trouble = _why(api, namespace, node, pod)
    said = pods.last_words(api, pod, CONTAINER, lines=1) if pod and log else ""
    return Row(
        node=node.name,
        pod=pod["metadata"]["name"] if pod else "",
        phase=pod.get("status", {}).get("phase", "") if pod else "",
        restarts=pods.restarts(pod) if pod else 0,
        capacity=node.capacity,
        allocatable=node.allocatable,
        trouble=trouble,
        last_line=said,
    )


def _why(api: Api, namespace: str, node: Node, pod: Object | None) -> str:
    """Why the plugin does not run on a node that it should run on."""
    if pod is None:
        return _no_pod(api, namespace, node)
    if _ending(pod):
        return "its old pod is still ending"
    trouble = pods.trouble(pod, pods.events(api, pod))
    if not trouble:
        return "its pod is starting" if not pods.ready(pod) else "its pod is being replaced"
    if "keeps ending" in trouble and (said := pods.last_words(api, pod, CONTAINER)):
        return f"{trouble}; its log: {' / '.join(said.splitlines())}"
    return trouble


def _no_pod(api: Api, namespace: str, node: Node) -> str:
    name = f"{NAME}-class" if node.labels.get(RUNTIME_LABEL) == "class" else NAME
    found = api.get("DaemonSet", name, namespace)
    if found is None:
        return f"the plugin is not deployed in namespace {namespace}"
    warnings = [event["message"] for event in pods.events(api, found) if event.get("type") == "Warning"]
    if not warnings:
        return f"DaemonSet {name} has no pod there yet"
    return str(warnings[-1]).removeprefix("(combined from similar events): ")


def _grouped(api: Api, namespace: str, waiting: Sequence[Node], by_node: Mapping[str, Object]) -> str:
    """The reasons of some nodes, each reason once."""
    reasons: dict[str, list[str]] = {}
    for node in waiting:
        reasons.setdefault(_why(api, namespace, node, by_node.get(node.name)), []).append(node.name)
    return "; ".join(f"{', '.join(names)}: {why}" for why, names in reasons.items())
