"""The controllers: DaemonSets, Jobs, what has no owner or namespace any more, nodes without heartbeats; and their loop.

A Deployment gets no pods here, and its status says so. source of the Job controller: kubernetes/kubernetes
pkg/controller/job/job_controller.go (syncJob, manageJob).
"""

import contextlib
import copy
import hashlib
import json
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable

from gpunode.contract.times import utc
from gpunode.sim.apiserver.admission import FOREGROUND, GENERATION
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import KINDS, Object, StatusError, Store, is_owned_by, is_ready, record
from gpunode.sim.scheduler import selects_node, tolerates


class Loop:
    """Calls `reconcile` in a thread, from `start` to `close`: after changes, and at least `every` so many seconds."""

    def __init__(
        self,
        store: Store,
        name: str,
        concerns: Callable[[Object], bool],
        reconcile: Callable[[], None],
        every: float,
    ) -> None:
        self._reconcile, self._every = reconcile, every
        self.stirred = store.listen(concerns)
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """End after the running call."""
        self._closed.set()
        self.stirred.set()
        self._thread.join()

    def _run(self) -> None:
        logged = ""
        while not self._closed.is_set():
            self.stirred.clear()
            try:
                self._reconcile()
            except Exception:  # noqa: BLE001 (as in every controller: errors are logged and retried)
                trace = traceback.format_exc()
                if trace != logged:
                    sys.stderr.write(trace)
                logged = trace
            self.stirred.wait(self._every)


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
            dependents = [other for other in everything if is_owned_by(other, item)]
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
        self._heard[node] = time.monotonic()

    def check(self) -> None:
        """Set nodes without heartbeats to Unknown, and taint nodes that are not Ready."""
        for node in self._store.all("Node"):
            name = node["metadata"]["name"]
            if time.monotonic() - self._heard.setdefault(name, time.monotonic()) > GRACE:
                self._store.change(node, _set_unknown)
                self._set_pods_unready(name)
        for node in self._store.all("Node"):
            self._store.change(node, _taint)

    def _set_pods_unready(self, node: str) -> None:
        for pod in self._store.all("Pod"):
            if pod["spec"].get("nodeName") == node and is_ready(pod):
                self._store.change(pod, _set_unready)
                record(self._store, pod, "node-controller", "Warning", "NodeNotReady", "Node is not ready")


def _set_unknown(node: Object) -> None:
    for condition in node["status"].get("conditions") or []:
        if condition["status"] != "Unknown":
            condition |= {
                "status": "Unknown",
                "reason": "NodeStatusUnknown",
                "message": "Kubelet stopped posting node status.",
                "lastTransitionTime": utc(),
            }


def _taint(node: Object) -> None:
    """The taints of `node.kubernetes.io` that follow from Ready and cordoning; other taints stay."""
    conditions = {
        condition["type"]: condition["status"] for condition in node["status"].get("conditions") or []
    }
    kind = {"True": "", "Unknown": "unreachable"}.get(conditions.get("Ready", "False"), "not-ready")
    ours = {f"node.kubernetes.io/{name}" for name in ("not-ready", "unreachable", "unschedulable")}
    before = node["spec"].pop("taints", None) or []
    added = {(taint["key"], taint["effect"]): taint.get("timeAdded") for taint in before}
    wanted = [(kind, effect) for effect in ("NoSchedule", "NoExecute") if kind]
    if node["spec"].get("unschedulable"):
        wanted.append(("unschedulable", "NoSchedule"))
    taints = [taint for taint in before if taint["key"] not in ours]
    for name, effect in wanted:
        key = f"node.kubernetes.io/{name}"
        taints.append({"key": key, "effect": effect, "timeAdded": added.get((key, effect)) or utc()})
    if taints:
        node["spec"]["taints"] = taints


def _set_unready(pod: Object) -> None:
    for condition in pod["status"]["conditions"]:
        if condition["type"] == "Ready":
            condition |= {"status": "False", "lastTransitionTime": utc()}


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
    "this simulated cluster creates no pods of Deployments. "
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
    pods = [pod for pod in store.all("Pod", namespace) if is_owned_by(pod, daemonset)]
    by_node: dict[str, list[Object]] = {}
    for pod in pods:
        by_node.setdefault(_node_of(pod), []).append(pod)
    names = [node["metadata"]["name"] for node in nodes if _wants(template["spec"], node)]
    ready = new = 0
    least = len(names) - _unavailable(daemonset, len(names))  # pods that stay ready while others are replaced
    serving = sum(any(_pod_ready(pod) for pod in by_node.get(name, [])) for name in names)
    for name in names:
        current_pods = by_node.pop(name, [])
        if not current_pods:
            _make_daemon(store, daemonset, name, newest)
        for pod in current_pods:
            current = pod["metadata"]["labels"].get(HASH) == newest
            over = pod["status"].get("phase") in {"Succeeded", "Failed"}
            if over or (not current and (not _pod_ready(pod) or serving > least)):
                serving -= _pod_ready(pod)
                _delete_pod(store, pod)
            new += current
            ready += _pod_ready(pod)
    misplaced = [pod for pods_of_node in by_node.values() for pod in pods_of_node]
    for pod in misplaced:
        _delete_pod(store, pod)
    _count(store, daemonset, len(names), len(pods) - len(misplaced), len(misplaced), ready, new)


def _wants(spec: Object, node: Object) -> bool:
    """True if the DaemonSet wants a pod on the node. Taints that Kubernetes sets itself do not matter."""
    tolerations = [*(spec.get("tolerations") or []), *TOLERATED]
    taints = [taint for taint in node["spec"].get("taints") or [] if taint["effect"] != "PreferNoSchedule"]
    own = [taint for taint in taints if taint["key"] != "node.kubernetes.io/not-ready"]
    return selects_node(spec, node) and all(tolerates(taint, tolerations) for taint in own)


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
        "metadata": {"labels": {**(template["metadata"].get("labels") or {}), **generation}},
        "spec": spec,
    }
    if notes := template["metadata"].get("annotations"):
        pod["metadata"]["annotations"] = notes
    _create_pod(store, daemonset, pod)


def _pod_ready(pod: Object) -> bool:
    return is_ready(pod) and "deletionTimestamp" not in pod["metadata"]


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
    store: Store, daemonset: Object, desired: int, scheduled: int, misplaced: int, ready: int, new: int
) -> None:
    counts = {
        "currentNumberScheduled": scheduled,
        "numberMisscheduled": misplaced,
        "desiredNumberScheduled": desired,
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
    pods = [pod for pod in store.all("Pod", job["metadata"]["namespace"]) if is_owned_by(pod, job)]
    phases = [pod["status"].get("phase") for pod in pods]
    succeeded, failed = phases.count("Succeeded"), phases.count("Failed")
    again = sum(
        container.get("restartCount", 0)
        for pod in pods
        for container in pod["status"].get("containerStatuses", [])
    )
    status = {**status, "active": len(pods) - succeeded - failed, "succeeded": succeeded, "failed": failed}
    others = status.get("conditions") or []
    if succeeded >= spec["completions"]:
        why = {"reason": "CompletionsReached", "message": "Reached expected number of succeeded pods"}
        status |= {"completionTime": utc(), "conditions": [_condition("Complete", why), *others]}
        record(store, job, "job-controller", "Normal", "Completed", "Job completed")
    elif failed + again > spec["backoffLimit"]:
        why = {"reason": "BackoffLimitExceeded", "message": LOST}
        status["conditions"] = [_condition("Failed", why), *others]
        record(store, job, "job-controller", "Warning", "BackoffLimitExceeded", LOST)
        _end_pods(store, pods)
    else:
        status.setdefault("startTime", utc())
        for _ in range(min(spec["parallelism"], spec["completions"] - succeeded) - status["active"]):
            _create_pod(store, job, copy.deepcopy(job["spec"]["template"]))
    store.change(job, lambda item: item.update(status=status))


def _end_pods(store: Store, pods: Iterable[Object]) -> None:
    for pod in pods:
        if pod["status"].get("phase") not in {"Succeeded", "Failed"}:
            _delete_pod(store, pod)


def _condition(kind: str, reason: Object) -> Object:
    return {"type": kind, "status": "True", "lastProbeTime": utc(), "lastTransitionTime": utc(), **reason}


def run_deployments(store: Store) -> None:
    """Write why there are no pods, as the controller does where they are refused; once, and over nothing. The reason is none
    of the controller's, which tries again."""
    reason = {"type": "ReplicaFailure", "status": "True", "reason": "Simulated", "message": WHY}
    condition = {**reason, "lastUpdateTime": utc(), "lastTransitionTime": utc()}
    for deployment in store.all("Deployment"):
        if not deployment.get("status"):
            store.change(deployment, lambda item: item.update(status={"conditions": [condition]}))


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
        message = f"Created pod: {made['metadata']['name']}"
        record(store, owner, component, "Normal", "SuccessfulCreate", message)
    except StatusError as no:
        record(store, owner, component, "Warning", "FailedCreate", f"Error creating: {no}")


def _delete_pod(store: Store, pod: Object) -> None:
    """Delete a pod that is not being deleted."""
    meta = pod["metadata"]
    if "deletionTimestamp" not in meta:
        Resources(store, "Pod", meta["namespace"]).delete(meta["name"], {}, {})
