"""The node lifecycle controller: nodes without heartbeats become NotReady and are tainted."""

from __future__ import annotations

import time

from gpunode.sim.apiserver.store import Object, Store, now
from gpunode.sim.controllers.events import record

GRACE = 10.0  # seconds without a heartbeat until a node is Unknown; a real cluster waits 50


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
            if pod["spec"].get("nodeName") == node and any(_ready(one) for one in conditions):
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
    conditions = {one["type"]: one["status"] for one in node["status"].get("conditions") or []}
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
