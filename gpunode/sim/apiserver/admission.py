"""Who may do what, and what objects become before they are stored: RBAC, defaults, validation, disruption budgets.

Complete for gpunode's kinds of objects only; the values are those of kube-apiserver 1.36.
"""

import base64
import copy
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from gpunode.sim.apiserver.queries import matches
from gpunode.sim.apiserver.store import KINDS, Object, Store, not_found, status_error

CLASSES = {"system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
GENERATION = "deprecated.daemonset.template.generation"
FOREGROUND = "foregroundDeletion"
RBAC = "rbac.authorization.k8s.io"
ACCOUNT = "system:serviceaccount:"


def admit(store: Store, item: Object, before: Object | None) -> Object:
    """The object as it is stored; `before` is the current one. Raises StatusError."""
    meta = item["metadata"]
    if before is None and meta.get("namespace"):
        _place(store, item)
    done = {"kind": item["kind"], "apiVersion": KINDS[item["kind"]].api, **copy.deepcopy(item)}
    fill = FILL.get(item["kind"])
    if fill:
        fill(store, done, before)
    return done


def _place(store: Store, item: Object) -> None:
    """Raises StatusError if the namespace is missing or terminating."""
    name, plural = item["metadata"]["namespace"], KINDS[item["kind"]].plural
    namespace = store.get("Namespace", "", name)
    if namespace is None:
        raise status_error(404, "NotFound", f'namespaces "{name}" not found', name=name, kind="namespaces")
    if "deletionTimestamp" in namespace["metadata"]:
        called = item["metadata"]["name"]
        why = f"unable to create new content in namespace {name} because it is being terminated"
        raise status_error(
            403, "Forbidden", f'{plural} "{called}" is forbidden: {why}', name=called, kind=plural
        )


def _namespace(_store: Store, item: Object, before: Object | None) -> None:
    item["metadata"].setdefault("labels", {})["kubernetes.io/metadata.name"] = item["metadata"]["name"]
    item["spec"] = before["spec"] if before else {"finalizers": ["kubernetes"]}  # no update changes them
    if before is None:
        item["status"] = {"phase": "Active"}


def _node(_store: Store, item: Object, before: Object | None) -> None:
    spec = item.setdefault("spec", {})
    if before is None:
        spec["taints"] = [
            *spec.get("taints", []),
            {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"},
        ]
    item.setdefault("status", {})


def _pod(store: Store, item: Object, before: Object | None) -> None:
    spec = item["spec"]
    _pod_spec(spec)
    for toleration in ("not-ready", "unreachable"):
        key = f"node.kubernetes.io/{toleration}"
        tolerations = spec.setdefault("tolerations", [])
        if not any(
            tolerated.get("key") in {key, None} and tolerated.get("operator") == "Exists"
            for tolerated in tolerations
        ):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            )
    spec.setdefault("enableServiceLinks", True)
    spec.setdefault("preemptionPolicy", "PreemptLowerPriority")
    spec["priority"] = CLASSES.get(spec.get("priorityClassName", ""), 0)
    if before is None:
        runtime = spec.get("runtimeClassName")
        if runtime and store.get("RuntimeClass", "", runtime) is None:
            name = item["metadata"]["name"]
            why = f'pod rejected: RuntimeClass "{runtime}" not found'
            raise status_error(403, "Forbidden", f'pods "{name}" is forbidden: {why}', name=name, kind="pods")
        item["metadata"]["generation"] = 1
        item["status"] = {"phase": "Pending", "qosClass": _quality(spec)}


def _daemonset(_store: Store, item: Object, before: Object | None) -> None:
    meta, spec = item["metadata"], item["spec"]
    _pod_spec(spec["template"]["spec"])
    spec.setdefault("updateStrategy", {}).setdefault("type", "RollingUpdate")
    rolling = spec["updateStrategy"].setdefault("rollingUpdate", {})
    rolling.setdefault("maxUnavailable", 1)
    rolling.setdefault("maxSurge", 0)
    spec.setdefault("revisionHistoryLimit", 10)
    number = before["metadata"]["generation"] if before else 0
    meta["generation"] = number + (before is None or spec != before["spec"])
    notes = meta.setdefault("annotations", {})
    template = int((before or item)["metadata"].get("annotations", {}).get(GENERATION, 0))
    new = before is None or spec["template"] != before["spec"]["template"]
    notes[GENERATION] = str(template + new)
    counts = ("currentNumberScheduled", "numberMisscheduled", "desiredNumberScheduled", "numberReady")
    item.setdefault("status", dict.fromkeys(counts, 0))


def _job(_store: Store, item: Object, before: Object | None) -> None:
    meta, spec = item["metadata"], item["spec"]
    pod = spec["template"]["spec"]
    if pod.get("restartPolicy") not in {"OnFailure", "Never"}:
        field, why = "spec.template.spec.restartPolicy", 'Required value: valid values: "OnFailure", "Never"'
        cause = {"reason": "FieldValueRequired", "message": why, "field": field}
        message = f'Job.batch "{meta["name"]}" is invalid: {field}: {why}'
        raise status_error(422, "Invalid", message, name=meta["name"], kind="Job.batch", causes=[cause])
    _pod_spec(pod)
    if before is None:
        meta["uid"] = str(uuid.uuid4())
        group = "batch.kubernetes.io/"
        own = {f"{group}controller-uid": meta["uid"], f"{group}job-name": meta["name"]}
        spec["template"].setdefault("metadata", {}).setdefault("labels", {}).update(own)
        spec["selector"] = {"matchLabels": {f"{group}controller-uid": meta["uid"]}}
        item["status"] = {}
    for name, value in (("parallelism", 1), ("completions", 1), ("backoffLimit", 6)):
        spec.setdefault(name, value)


def _claim(_store: Store, item: Object, _before: Object | None) -> None:
    item.setdefault("status", {"phase": "Pending"})
    item.setdefault("spec", {}).setdefault("volumeMode", "Filesystem")


def _secret(_store: Store, item: Object, _before: Object | None) -> None:
    plain = item.pop("stringData", {})
    coded = {name: base64.b64encode(text.encode()).decode() for name, text in plain.items()}
    item["data"] = {**item.get("data", {}), **coded}
    item.setdefault("type", "Opaque")


def _pod_spec(spec: Object) -> None:
    account = spec.get("serviceAccountName", "default")
    defaults: dict[str, Any] = {
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": account,
        "serviceAccount": account,
        "securityContext": {},
        "schedulerName": "default-scheduler",
    }
    for name, value in defaults.items():
        spec.setdefault(name, value)
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            volume["hostPath"].setdefault("type", "")
        if "configMap" in volume:
            volume["configMap"].setdefault("defaultMode", 0o644)
    for container in [*spec.get("initContainers", []), *spec["containers"]]:
        container.setdefault("terminationMessagePath", "/dev/termination-log")
        container.setdefault("terminationMessagePolicy", "File")
        container.setdefault(
            "imagePullPolicy", "IfNotPresent" if ":" in container["image"].split("/")[-1] else "Always"
        )
        if "readinessProbe" in container:
            _probe(container["readinessProbe"])
        for variable in container.get("env", []):
            if "fieldRef" in variable.get("valueFrom", {}):
                variable["valueFrom"]["fieldRef"].setdefault("apiVersion", "v1")
        resources = container.setdefault("resources", {})
        for part in resources.values():  # quantities may be written as numbers
            part |= {name: str(amount) for name, amount in part.items()}
        if "limits" in resources:  # limits are the default of requests
            resources["requests"] = {**resources["limits"], **resources.get("requests", {})}


def _probe(probe: Object) -> None:
    for name, value in {
        "timeoutSeconds": 1,
        "periodSeconds": 10,
        "successThreshold": 1,
        "failureThreshold": 3,
    }.items():
        probe.setdefault(name, value)
    if "httpGet" in probe:
        probe["httpGet"].setdefault("scheme", "HTTP")


def _quality(spec: Object) -> str:
    asked = [container["resources"] for container in spec["containers"]]
    plain = [
        name
        for resources in asked
        for part in resources.values()
        for name in part
        if name in {"cpu", "memory"}
    ]
    return "Burstable" if plain else "BestEffort"


FILL: Mapping[str, Callable[[Store, Object, Object | None], None]] = {
    "Namespace": _namespace,
    "Node": _node,
    "Pod": _pod,
    "DaemonSet": _daemonset,
    "Job": _job,
    "Secret": _secret,
    "PersistentVolumeClaim": _claim,
}


def allows(store: Store, user: str, verb: str, group: str, plural: str, namespace: str) -> bool:
    """True if a user, or a service account (`system:serviceaccount:NAMESPACE:NAME`), may."""
    subject = {"kind": "User", "name": user}
    if user.startswith(ACCOUNT):
        home, _, name = user.removeprefix(ACCOUNT).partition(":")
        subject = {"kind": "ServiceAccount", "namespace": home, "name": name}
    bindings = store.all("ClusterRoleBinding") + (store.all("RoleBinding", namespace) if namespace else [])
    for binding in bindings:
        if not any(subject.items() <= other.items() for other in binding.get("subjects", [])):
            continue
        ref = binding["roleRef"]
        place = binding["metadata"].get("namespace", "") if ref["kind"] == "Role" else ""
        role = store.get(ref["kind"], place, ref["name"])
        if role is not None and any(
            group in rule["apiGroups"] and plural in rule["resources"] and verb in rule["verbs"]
            for rule in role.get("rules") or []
        ):
            return True
    return False


def check_grant(store: Store, full: str, namespace: str, user: str, item: Object) -> None:
    """Raises StatusError for a user who would give rights that he does not have, or bind a role that does not exist."""
    rules = item.get("rules") or []
    if ref := item.get("roleRef"):
        role = store.get(ref["kind"], namespace if ref["kind"] == "Role" else "", ref["name"])
        if role is None:
            # As kube-apiserver 1.36 has it: the role's name, the binding's kind
            raise not_found(full, ref["name"])
        rules = role.get("rules") or []
    asked = [
        (verb, group, plural)
        for rule in rules
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    ]
    missing = [
        f"{{APIGroups:[{group!r}], Resources:[{plural!r}], Verbs:[{verb!r}]}}".replace("'", '"')
        for verb, group, plural in asked
        if not allows(store, user, verb, group, plural, namespace)
    ]
    if missing:
        name, lines = item["metadata"]["name"], "\n".join(missing)
        why = f'user "{user}" is attempting to grant RBAC permissions not currently held:\n{lines}'
        raise status_error(403, "Forbidden", f'{full} "{name}" is forbidden: {why}', name=name, kind=full)


def check_eviction(store: Store, pod: Object) -> None:
    """Raises StatusError, in the words of Kubernetes' eviction, where a budget does not allow the pod's eviction now."""
    namespace = pod["metadata"]["namespace"]
    for budget in store.all("PodDisruptionBudget", namespace):
        chosen = [other for other in store.all("Pod", namespace) if _budget_covers(budget, other)]
        healthy = [other for other in chosen if other["status"].get("phase") == "Running"]
        needed = int(budget["spec"].get("minAvailable", 0))
        if _budget_covers(budget, pod) and len(healthy) <= needed:
            name = budget["metadata"]["name"]
            why = f"The disruption budget {name} needs {needed} healthy pods and has {len(healthy)} currently"
            cause = {"reason": "DisruptionBudget", "message": why}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise status_error(429, "TooManyRequests", message, causes=[cause])


def _budget_covers(budget: Object, pod: Object) -> bool:
    selector = budget["spec"].get("selector") or {}
    labels = pod["metadata"].get("labels") or {}
    wanted = (selector.get("matchLabels") or {}).items()
    return bool(wanted <= labels.items() and matches(labels, selector.get("matchExpressions") or []))
