"""The controllers of DaemonSets, Jobs and Deployments. A Deployment gets no pods here, and its status says so.

source of the Job controller: kubernetes/kubernetes pkg/controller/job/job_controller.go (syncJob, manageJob).
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Iterable
from functools import partial

from gpunode.sim.apiserver.admission import GENERATION
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import KINDS, Object, StatusError, Store, now, owned_by
from gpunode.sim.controllers.loop import record
from gpunode.sim.controllers.scheduler import selects_node, tolerates

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
LOST = "Job has reached the specified backoff limit"
WHY = (
    "this cluster is simulated, and nothing in it makes pods of Deployments. "
    "`make try`, in a checkout of gpunode, has a real cluster"
)


def run_daemonsets(store: Store) -> None:
    """Create missing pods, delete old and misplaced ones, and write the status."""
    nodes = store.all("Node")
    for daemonset in store.all("DaemonSet"):
        if "deletionTimestamp" not in daemonset["metadata"]:
            _tend_daemonset(store, daemonset, nodes)


def _tend_daemonset(store: Store, daemonset: Object, nodes: list[Object]) -> None:
    template = daemonset["spec"]["template"]
    newest = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]
    namespace = daemonset["metadata"]["namespace"]
    pods = [pod for pod in store.all("Pod", namespace) if owned_by(pod, daemonset)]
    by_node: dict[str, list[Object]] = {}
    for pod in pods:
        by_node.setdefault(_node_of(pod), []).append(pod)
    names = [node["metadata"]["name"] for node in nodes if _wants(template["spec"], node)]
    ready = new = 0
    least = len(names) - _unavailable(daemonset, len(names))  # pods that stay ready while others are replaced
    serving = sum(any(_ready(pod) for pod in by_node.get(name, [])) for name in names)
    for name in names:
        there = by_node.pop(name, [])
        if not there:
            _make_daemon(store, daemonset, name, newest)
        for pod in there:
            current = pod["metadata"]["labels"].get(HASH) == newest
            over = pod["status"].get("phase") in {"Succeeded", "Failed"}
            if over or (not current and (not _ready(pod) or serving > least)):
                serving -= _ready(pod)
                _delete_pod(store, pod)
            new += current
            ready += _ready(pod)
    misplaced = [pod for found in by_node.values() for pod in found]
    for pod in misplaced:
        _delete_pod(store, pod)
    _count(store, daemonset, len(names), len(pods) - len(misplaced), len(misplaced), ready, new)


def _wants(spec: Object, node: Object) -> bool:
    """True if the DaemonSet wants a pod on the node. Taints that Kubernetes sets itself do not matter."""
    tolerations = [*(spec.get("tolerations") or []), *TOLERATED]
    taints = [taint for taint in node["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
    own = [taint for taint in taints if taint["key"] != "node.kubernetes.io/not-ready"]
    return selects_node(spec, node) and all(tolerates(one, tolerations) for one in own)


def _make_daemon(store: Store, daemonset: Object, node: str, revision: str) -> None:
    meta, template = daemonset["metadata"], copy.deepcopy(daemonset["spec"]["template"])
    spec = template["spec"]
    # The scheduler binds it to this node; the template's own affinity was checked before.
    only = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    affinity = spec.setdefault("affinity", {}).setdefault("nodeAffinity", {})
    affinity["requiredDuringSchedulingIgnoredDuringExecution"] = {"nodeSelectorTerms": [only]}
    spec["tolerations"] = [*(spec.get("tolerations") or []), *TOLERATED]
    generation = {HASH: revision, "pod-template-generation": meta["annotations"][GENERATION]}
    pod = {
        "metadata": {
            "labels": {**(template["metadata"].get("labels") or {}), **generation},
        },
        "spec": spec,
    }
    if notes := template["metadata"].get("annotations"):
        pod["metadata"]["annotations"] = notes
    _create_pod(store, daemonset, pod)


def _ready(pod: Object) -> bool:
    conditions = pod["status"].get("conditions") or []
    ready = any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def _unavailable(daemonset: Object, nodes: int) -> int:
    """How many pods may be unavailable during an update; all if this controller does not replace them."""
    most = daemonset["spec"]["updateStrategy"].get("rollingUpdate", {}).get("maxUnavailable", "100%")
    return int(most) if isinstance(most, int) else -(-int(most.removesuffix("%")) * nodes // 100)


def _node_of(pod: Object) -> str:
    if pod["spec"].get("nodeName"):
        return str(pod["spec"]["nodeName"])
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    return str(required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0])


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


def run_jobs(store: Store) -> None:
    """Create the pods that are due, and write the status."""
    for job in store.all("Job"):
        over = any(
            condition["type"] in {"Complete", "Failed"} for condition in job["status"].get("conditions") or []
        )
        if not over and "deletionTimestamp" not in job["metadata"]:
            _tend_job(store, job)


def _tend_job(store: Store, job: Object) -> None:
    spec, status = job["spec"], job["status"]
    pods = [pod for pod in store.all("Pod", job["metadata"]["namespace"]) if owned_by(pod, job)]
    phases = [pod["status"].get("phase") for pod in pods]
    succeeded, failed = phases.count("Succeeded"), phases.count("Failed")
    again = sum(
        statuse.get("restartCount", 0)
        for pod in pods
        for statuse in pod["status"].get("containerStatuses", [])
    )
    status = {**status, "active": len(pods) - succeeded - failed, "succeeded": succeeded, "failed": failed}
    others = status.get("conditions") or []
    if succeeded >= spec["completions"]:
        words = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
        status |= {"completionTime": now(), "conditions": [_condition("Complete", words), *others]}
        record(store, job, "job-controller", "Normal", "Completed", "Job completed")
    elif failed + again > spec["backoffLimit"]:
        words = {"reason": "BackoffLimitExceeded", "message": LOST}
        status["conditions"] = [_condition("Failed", words), *others]
        record(store, job, "job-controller", "Warning", "BackoffLimitExceeded", LOST)
        _end_pods(store, pods)
    else:
        status.setdefault("startTime", now())
        for _ in range(min(spec["parallelism"], spec["completions"] - succeeded) - status["active"]):
            _create_pod(store, job, copy.deepcopy(job["spec"]["template"]))
    store.change(job, lambda item: item.update(status=status))


def _end_pods(store: Store, pods: Iterable[Object]) -> None:
    """Delete those that have not ended."""
    for pod in pods:
        if pod["status"].get("phase") not in {"Succeeded", "Failed"}:
            _delete_pod(store, pod)


def _condition(kind: str, words: Object) -> Object:
    return {"type": kind, "status": "True", "lastProbeTime": now(), "lastTransitionTime": now(), **words}


def run_deployments(store: Store) -> None:
    """Write why there are no pods, as the controller does where they are refused; once, and over nothing. The reason is none
    of the controller's, which tries again."""
    for one in store.all("Deployment"):
        if not one.get("status"):
            reason = {"type": "ReplicaFailure", "status": "True", "reason": "Simulated", "message": WHY}
            condition = {**reason, "lastUpdateTime": now(), "lastTransitionTime": now()}
            store.change(one, partial(_set_conditions, [condition]))


def _set_conditions(conditions: list[Object], item: Object) -> None:
    item["status"] = {"conditions": conditions}


def _create_pod(store: Store, owner: Object, pod: Object) -> None:
    """Create a pod that its owner controls; an event tells how that ended."""
    kind, meta = owner["kind"], owner["metadata"]
    reference = {"apiVersion": KINDS[kind].api, "kind": kind, "name": meta["name"], "uid": meta["uid"]}
    pod["metadata"] |= {
        "generateName": f"{meta['name']}-",
        "ownerReferences": [{**reference, "controller": True, "blockOwnerDeletion": True}],
    }
    component, pods = f"{kind.lower()}-controller", Resources(store, "Pod", meta["namespace"])
    try:
        made = pods.create(pod, {"fieldManager": "kube-controller-manager"})
        words = f"Created pod: {made['metadata']['name']}"
        record(store, owner, component, "Normal", "SuccessfulCreate", words)
    except StatusError as no:
        record(store, owner, component, "Warning", "FailedCreate", f"Error creating: {no}")


def _delete_pod(store: Store, pod: Object) -> None:
    """Delete a pod that is not being deleted."""
    meta = pod["metadata"]
    if "deletionTimestamp" not in meta:
        Resources(store, "Pod", meta["namespace"]).delete(meta["name"], {}, {})
