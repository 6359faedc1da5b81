"""The controllers that tidy up: what lost its owner or its namespace goes, nodes that say nothing are not Ready."""

from __future__ import annotations

import contextlib
import time

from gpunode.sim.apiserver.admit import FOREGROUND
from gpunode.sim.apiserver.refuse import Refusal
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import KINDS, Object, Store, now, owned_by
from gpunode.sim.controllers.events import tell

GRACE = 10.0  # seconds that a kubelet may be silent; a real cluster waits 50
SYSTEM = ("default", "kube-system", "kube-public")  # namespaces that every cluster has


def concerns(item: Object) -> bool:
    """Whether a change of this object may leave something to tidy up."""
    return bool(item["kind"] != "Event")


def tidy(store: Store) -> None:
    """Bring every namespace and every ownership to its end."""
    for namespace in store.all("Namespace"):
        if "deletionTimestamp" in namespace["metadata"]:
            _empty(store, namespace)
        else:
            _furnish(store, namespace["metadata"]["name"])
    everything = [item for kind in KINDS if kind != "Event" for item in store.all(kind)]
    uids = {item["metadata"]["uid"] for item in everything}
    for item in everything:
        owners = item["metadata"].get("ownerReferences") or []
        if owners and not any(one["uid"] in uids for one in owners):
            _delete(store, item)
        if FOREGROUND in item["metadata"].get("finalizers", ()):
            dependents = [one for one in everything if owned_by(one, item)]
            for one in dependents:
                _delete(store, one)
            if not dependents:
                store.drop(item)


class NodeHealth:
    """Which kubelets are heard of. Safe to use from several threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._heard: dict[str, float] = {}

    def beat(self, node: str) -> None:
        """The node's kubelet is alive."""
        self._heard[node] = time.monotonic()

    def look(self) -> None:
        """Say of nodes whose kubelet is silent that nothing is known of them, and keep pods off what is not Ready."""
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
            if pod["spec"].get("nodeName") == node and any(_ready(one) for one in conditions):
                self._store.change(pod, _pod_unready)
                tell(self._store, pod, "node-controller", "Warning", "NodeNotReady", "Node is not ready")


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
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions") or []}
    kind = {"True": "", "Unknown": "unreachable"}.get(conditions.get("Ready", "False"), "not-ready")
    ours = {"not-ready", "unreachable", "unschedulable"}
    others = [
        one
        for one in node["spec"].get("taints") or []
        if one["key"] not in {f"node.kubernetes.io/{name}" for name in ours}
    ]
    effects = ("NoSchedule", "NoExecute") if kind else ()
    taints = [{"key": f"node.kubernetes.io/{kind}", "effect": effect} for effect in effects]
    if node["spec"].get("unschedulable"):
        taints.append({"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"})
    node["spec"].pop("taints", None)
    if others or taints:
        node["spec"]["taints"] = [*others, *taints]


def _ready(condition: Object) -> bool:
    return bool(condition["type"] == "Ready" and condition["status"] == "True")


def _pod_unready(pod: Object) -> None:
    for condition in pod["status"]["conditions"]:
        if _ready(condition):
            condition |= {"status": "False", "lastTransitionTime": now()}


def _furnish(store: Store, namespace: str) -> None:
    """What every namespace has of its own accord."""
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
    with contextlib.suppress(Refusal):  # it has gone by itself
        of.delete(item["metadata"]["name"], {"preconditions": {"uid": item["metadata"]["uid"]}}, {})
