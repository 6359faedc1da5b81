"""Objects without their owner or namespace are deleted; nodes without heartbeats become NotReady and are tainted."""

from __future__ import annotations

import contextlib
import time

from gpunode.sim.apiserver.admission import FOREGROUND
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import KINDS, Object, StatusError, Store, now, owned_by
from gpunode.sim.controllers.loop import record

GRACE = 10.0  # seconds without a heartbeat until a node is Unknown; a real cluster waits 50
SYSTEM = ("default", "kube-system", "kube-public")  # namespaces that every cluster has


def collect_garbage(store: Store) -> None:
    """Fill new namespaces, empty deleted ones, and delete objects whose owners are gone."""
    for namespace in store.all("Namespace"):
        if "deletionTimestamp" in namespace["metadata"]:
            _empty(store, namespace)
        else:
            _furnish(store, namespace["metadata"]["name"])
    everything = [item for kind in KINDS if kind != "Event" for item in store.all(kind)]
    uids = {item["metadata"]["uid"] for item in everything}
    for item in everything:
        owners = item["metadata"].get("ownerReferences") or []
        if owners and not any(owner["uid"] in uids for owner in owners):
            _delete(store, item)
        if FOREGROUND in item["metadata"].get("finalizers", ()):
            dependents = [one for one in everything if owned_by(one, item)]
            for dependent in dependents:
                _delete(store, dependent)
            if not dependents:
                store.drop(item)


def _furnish(store: Store, namespace: str) -> None:
    """Create the objects that every namespace has."""
    for kind, name in (("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt")):
        if store.get(kind, namespace, name) is None:
            meta = {"name": name, "namespace": namespace}
            store.put({"kind": kind, "apiVersion": "v1", "metadata": meta})


def _empty(store: Store, namespace: Object) -> None:
    inside = store.everything_in(namespace["metadata"]["name"])
    for item in inside:
        _delete(store, item)
    if not store.everything_in(namespace["metadata"]["name"]):
        store.drop(namespace)


def _delete(store: Store, item: Object) -> None:
    if "deletionTimestamp" in item["metadata"]:
        return
    of = Resources(store, item["kind"], item["metadata"].get("namespace", ""))
    with contextlib.suppress(StatusError):  # already gone
        of.delete(item["metadata"]["name"], {"preconditions": {"uid": item["metadata"]["uid"]}}, {})


class NodeHealth:
    """The heartbeats of kubelets. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heard: dict[str, float] = {}

    def beat(self, node: str) -> None:
        """Record a heartbeat of the node's kubelet."""
        self._heard[node] = time.monotonic()

    def check(self) -> None:
        """Set nodes without heartbeats to Unknown, and taint nodes that are not Ready."""
        for node in self._store.all("Node"):
            name = node["metadata"]["name"]
            if time.monotonic() - self._heard.setdefault(name, time.monotonic()) > GRACE:
                self._store.change(node, _unknown)
                self._unready(name)
        for node in self._store.all("Node"):
            self._store.change(node, _tainted)

    def _unready(self, node: str) -> None:
        for pod in self._store.all("Pod"):
            conditions = pod["status"].get("conditions") or []
            if pod["spec"].get("nodeName") == node and any(_ready(condition) for condition in conditions):
                self._store.change(pod, _pod_unready)
                record(self._store, pod, "node-controller", "Warning", "NodeNotReady", "Node is not ready")


def _unknown(node: Object) -> None:
    for condition in node["status"].get("conditions") or []:
        if condition["status"] != "Unknown":
            condition |= {
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": now(),
            }


def _tainted(node: Object) -> None:
    """The taints of `node.kubernetes.io` that follow from Ready and cordoning; other taints stay."""
    conditions = {
        condition["type"]: condition["status"] for condition in node["status"].get("conditions") or []
    }
    kind = {"True": "", "Unknown": "unreachable"}.get(conditions.get("Ready", "False"), "not-ready")
    ours = {f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable")}
    before = node["spec"].pop("taints", None) or []
    added = {(one["key"], one["effect"]): one.get("timeAdded") for one in before}
    wanted = [(kind, effect) for effect in ("NoSchedule", "NoExecute") if kind]
    if node["spec"].get("unschedulable"):
        wanted.append(("unschedulable", "NoSchedule"))
    taints = [one for one in before if one["key"] not in ours]
    for name, effect in wanted:
        key = f"node.kubernetes.io/{name}"
        taints.append({"key": key, "effect": effect, "timeAdded": added.get((key, effect)) or now()})
    if taints:
        node["spec"]["taints"] = taints


def _ready(condition: Object) -> bool:
    return bool(condition["type"] == "Ready" and condition["status"] == "True")


def _pod_unready(pod: Object) -> None:
    for condition in pod["status"]["conditions"]:
        if _ready(condition):
            condition |= {"status": "False", "lastTransitionTime": now()}
