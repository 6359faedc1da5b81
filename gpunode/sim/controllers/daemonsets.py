"""The DaemonSet controller: a pod of the newest template on every node that a DaemonSet wants."""

from __future__ import annotations

import copy
import hashlib
import json

from gpunode.sim.apiserver.admission import GENERATION
from gpunode.sim.apiserver.errors import StatusError
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import Object, Store, owned_by
from gpunode.sim.controllers.events import record
from gpunode.sim.controllers.scheduler import tolerated, wanted

HASH = "controller-revision-hash"
# Tolerations of every pod of a DaemonSet, in addition to its template's.
TOLERATED = [
    {"key": f"node.kubernetes.io/{name}", "operator": "Exists", "effect": effect}
    for name, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]


def concerns(item: Object) -> bool:
    """True if a change of this object may need a pod to be created or deleted."""
    return item["kind"] in {"DaemonSet", "Node", "Pod"}


def look(store: Store) -> None:
    """Create missing pods, delete old and misplaced ones, and write the status."""
    nodes = store.all("Node")
    for daemonset in store.all("DaemonSet"):
        if "deletionTimestamp" not in daemonset["metadata"]:
            _tend(store, daemonset, nodes)


def _tend(store: Store, daemonset: Object, nodes: list[Object]) -> None:
    template = daemonset["spec"]["template"]
    newest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
    namespace = daemonset["metadata"]["namespace"]
    pods = [pod for pod in store.all("Pod", namespace) if owned_by(pod, daemonset)]
    by_node: dict[str, list[Object]] = {}
    for pod in pods:
        by_node.setdefault(_place(pod), []).append(pod)
    names = [node["metadata"]["name"] for node in nodes if _wants(template["spec"], node)]
    ready = new = 0
    least = len(names) - _unavailable(daemonset, len(names))  # pods that stay ready while others are replaced
    serving = sum(any(_ready(pod) for pod in by_node.get(name, [])) for name in names)
    for name in names:
        there = by_node.pop(name, [])
        if not there:
            _make(store, daemonset, name, newest)
        for pod in there:
            current = pod["metadata"]["labels"].get(HASH) == newest
            over = pod["status"].get("phase") in {"Succeeded", "Failed"}
            if over or (not current and (not _ready(pod) or serving > least)):
                serving -= _ready(pod)
                _delete(store, pod)
            new += current
            ready += _ready(pod)
    misplaced = [pod for found in by_node.values() for pod in found]
    for pod in misplaced:
        _delete(store, pod)
    _count(store, daemonset, len(names), len(pods) - len(misplaced), len(misplaced), ready, new)


def _wants(spec: Object, node: Object) -> bool:
    """True if the DaemonSet wants a pod on the node. Taints that Kubernetes sets itself do not matter."""
    tolerations = [*(spec.get("tolerations") or []), *TOLERATED]
    taints = [one for one in node["spec"].get("taints") or [] if one["effect"] != "PreferNoSchedule"]
    own = [one for one in taints if one["key"] != "node.kubernetes.io/not-ready"]
    return wanted(spec, node) and all(tolerated(one, tolerations) for one in own)


def _make(store: Store, daemonset: Object, node: str, revision: str) -> None:
    meta, template = daemonset["metadata"], copy.deepcopy(daemonset["spec"]["template"])
    spec = template["spec"]
    # The scheduler binds it to this node; the template's own affinity was checked before.
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [only]}
    spec["tolerations"] = [*(spec.get("tolerations") or []), *TOLERATED]
    owner = {"apiVersion": "apps/v1", "kind": "DaemonSet", "name": meta["name"], "uid": meta["uid"]}
    generation = {HASH: revision, "pod-template-generation": meta["annotations"][GENERATION]}
    pod = {
        "metadata": {
            "generateName": f"{meta['name']}-",
            "labels": {**(template["metadata"].get("labels") or {}), **generation},
            "ownerReferences": [{**owner, "controller": True, "blockOwnerDeletion": True}],
        },
        "spec": spec,
    }
    if notes := template["metadata"].get("annotations"):
        pod["metadata"]["annotations"] = notes
    of = Resources(store, "Pod", meta["namespace"])
    try:
        made = of.create(pod, {"fieldManager": "kube-controller-manager"})
        words = f"Created pod: {made['metadata']['name']}"
        record(store, daemonset, "daemonset-controller", "Normal", "SuccessfulCreate", words)
    except StatusError as no:
        record(store, daemonset, "daemonset-controller", "Warning", "FailedCreate", f"Error creating: {no}")


def _ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _unavailable(daemonset: Object, nodes: int) -> int:
    """How many pods may be unavailable during an update; all if this controller does not replace them."""
    most = daemonset["spec"]["updateStrategy"].get("rollingUpdate", {}).get("maxUnavailable", "100%")
    return int(most) if isinstance(most, int) else -(-int(most.removesuffix("%")) * nodes // 100)


def _place(pod: Object) -> str:
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


def _delete(store: Store, pod: Object) -> None:
    if "deletionTimestamp" not in pod["metadata"]:
        Resources(store, "Pod", pod["metadata"]["namespace"]).delete(pod["metadata"]["name"], {}, {})


def _count(
    store: Store, daemonset: Object, wished: int, there: int, misplaced: int, ready: int, new: int
) -> None:
    counts = {
        "currentNumberScheduled": there,
        "numberMisscheduled": misplaced,
        "desiredNumberScheduled": wished,
        "numberReady": ready,
        "observedGeneration": daemonset["metadata"]["generation"],
        "updatedNumberScheduled": new,
        "numberAvailable": ready,
    }
    store.change(daemonset, lambda item: item.update(status=counts))
