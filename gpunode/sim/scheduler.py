"""The scheduler: binds each new pod to a node, or reports with kube-scheduler's messages why none fits."""

from collections import Counter
from collections.abc import Mapping, Sequence

from gpunode.contract.times import utc
from gpunode.sim.apiserver.queries import matches
from gpunode.sim.apiserver.store import Object, Store, record

UNITS = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "k": 10**3, "M": 10**6, "G": 10**9, "m": 1e-3}
# Every node has them; others are 0 if not offered
COUNTED = {"cpu", "memory", "ephemeral-storage", "pods"}


def schedule(store: Store) -> None:
    """Place every pod that can be placed, oldest first."""
    pods = store.all("Pod")
    waiting = [
        pod for pod in pods if not pod["spec"].get("nodeName") and "deletionTimestamp" not in pod["metadata"]
    ]
    if not waiting:
        return
    nodes = store.all("Node")
    used: dict[str, Counter[str]] = {node["metadata"]["name"]: Counter() for node in nodes}
    for pod in pods:
        if pod["spec"].get("nodeName") in used and pod["status"].get("phase") not in {"Succeeded", "Failed"}:
            used[pod["spec"]["nodeName"]] += requests(pod)
    for pod in sorted(waiting, key=lambda pod: int(pod["metadata"]["resourceVersion"])):
        why = {
            node["metadata"]["name"]: _reasons_against(pod, node, used[node["metadata"]["name"]])
            for node in nodes
        }
        fitting = [name for name, reasons in why.items() if not reasons]
        if fitting:
            name = min(fitting, key=lambda name: (used[name]["pods"], name))
            used[name] += requests(pod)
            _bind(store, pod, name)
        else:
            _refuse(store, pod, why)


def requests(pod: Object) -> Counter[str]:
    """A pod's requests, in units: {"nvidia.com/gpu": 1, "cpu": 0.01, "pods": 1}."""
    requests: Counter[str] = Counter(pods=1)
    for container in pod["spec"]["containers"]:
        for name, amount in (container["resources"].get("requests") or {}).items():
            requests[name] += quantity(amount)  # type: ignore[assignment]
    return requests


def quantity(text: str) -> float:
    """A Kubernetes quantity: 250m, 64Mi, 2."""
    for unit, factor in UNITS.items():
        if text.endswith(unit):
            return float(text.removesuffix(unit)) * factor
    return float(text)


def tolerates(taint: Mapping[str, str], tolerations: Sequence[Object]) -> bool:
    return any(
        toleration.get("effect", taint["effect"]) in {taint["effect"], ""}
        and toleration.get("key", taint["key"]) in {taint["key"], ""}
        and (toleration.get("operator") == "Exists" or toleration.get("value", "") == taint.get("value", ""))
        for toleration in tolerations
    )


def selects_node(spec: Object, node: Object) -> bool:
    """True if the pod's node selector and required node affinity match the node."""
    labels = node["metadata"].get("labels") or {}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    fields = {"metadata.name": node["metadata"]["name"]}
    return required is None or any(
        matches(labels, term.get("matchExpressions") or []) and matches(fields, term.get("matchFields") or [])
        for term in required["nodeSelectorTerms"]
    )


def _reasons_against(pod: Object, node: Object, used: Counter[str]) -> list[str]:
    """Why the pod does not fit the node: all missing resources, else one reason."""
    spec = pod["spec"]
    tolerations = spec.get("tolerations") or []
    if node["spec"].get("unschedulable"):
        cordon = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
        if not tolerates(cordon, tolerations):
            return ["node(s) were unschedulable"]
    taints = node["spec"].get("taints") or []
    if any(taint["effect"] != "PreferNoSchedule" and not tolerates(taint, tolerations) for taint in taints):
        return ["node(s) had untolerated taint(s)"]
    if not selects_node(spec, node):
        return ["node(s) didn't match Pod's node affinity/selector"]
    allocatable = node["status"].get("allocatable") or {}
    return [
        "Too many pods" if name == "pods" else f"Insufficient {name}"
        for name, amount in requests(pod).items()
        if (name in allocatable or name not in COUNTED)
        and used[name] + amount > quantity(allocatable.get(name, "0"))
    ]


def _bind(store: Store, pod: Object, node: str) -> None:
    def set_node(item: Object) -> None:
        item["spec"]["nodeName"] = node
        item["status"]["conditions"] = [
            {"type": "PodScheduled", "status": "True", "lastProbeTime": None, "lastTransitionTime": utc()}
        ]

    if store.change(pod, set_node):
        meta = pod["metadata"]
        message = f"Successfully assigned {meta['namespace']}/{meta['name']} to {node}"
        record(store, pod, "default-scheduler", "Normal", "Scheduled", message)


def _refuse(store: Store, pod: Object, why: Mapping[str, Sequence[str]]) -> None:
    """Record why no node fits."""
    message = "no nodes available to schedule pods"
    if why:
        reasons = Counter(reason for reasons_of_node in why.values() for reason in reasons_of_node)
        counted = ", ".join(sorted(f"{number} {reason}" for reason, number in reasons.items()))
        message = f"0/{len(why)} nodes are available: {counted}."
    if any(condition.get("message") == message for condition in pod["status"].get("conditions") or []):
        return
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}

    def set_condition(item: Object) -> None:
        item["status"]["conditions"] = [{**condition, "lastProbeTime": None, "lastTransitionTime": utc()}]

    store.change(pod, set_condition)
    record(store, pod, "default-scheduler", "Warning", "FailedScheduling", message)
