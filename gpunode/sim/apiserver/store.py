"""The objects of the simulated cluster, their changes by version for watches, and the API's refusals as Status objects.

Objects in the store are never changed in place, only replaced. An object from the store may be kept and compared, but
must be copied before it is changed.
"""

import copy
import re
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from gpunode.contract.times import utc

Object: TypeAlias = dict[str, Any]
Key: TypeAlias = tuple[str, str, str]  # kind, namespace ("" for the cluster's own), name
REMEMBERED = 20_000  # changes; a watch from an earlier version gets TooOld


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object: its apiVersion, its name in paths, and whether it lives in namespaces."""

    api: str
    plural: str
    namespaced: bool


# By apiVersion; a star: the cluster's own. Deployments are controlled by nothing, nothing counts by quotas, no policy judges.
SERVED = {
    "v1": "Namespace* Node* Pod Event ConfigMap Secret ServiceAccount PersistentVolumeClaim Service ResourceQuota",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding ClusterRole* ClusterRoleBinding*",
    "apps/v1": "DaemonSet Deployment",
    "batch/v1": "Job",
    "node.k8s.io/v1": "RuntimeClass*",
    "admissionregistration.k8s.io/v1": "ValidatingAdmissionPolicy* ValidatingAdmissionPolicyBinding*",
    "policy/v1": "PodDisruptionBudget",
    "coordination.k8s.io/v1": "Lease",
    "resource.k8s.io/v1": "ResourceSlice* DeviceClass*",
}
KINDS = {
    name.strip("*"): Kind(
        api, re.sub("y$", "ie", re.sub("s$", "se", name.strip("*").lower())) + "s", "*" not in name
    )
    for api, names in SERVED.items()
    for name in names.split()
}


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one object. `before` is None for a new one; a DELETED one has its last state."""

    version: int
    type: str  # ADDED | MODIFIED | DELETED
    item: Object
    before: Object | None


class TooOld(Exception):
    """The changes after this version are no longer remembered."""


class Store:
    """All objects. Thread-safe; `changed` may be waited on."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self.version = 1
        self.events: dict[tuple[str, ...], str] = {}  # identity of an Event -> its name
        self._objects: dict[Key, Object] = {}
        self._history: deque[Change] = deque(maxlen=REMEMBERED)
        self._listeners: list[tuple[Callable[[Object], bool], threading.Event]] = []

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        with self.changed:
            return self._objects.get((kind, namespace, name))

    def all(self, kind: str, namespace: str = "") -> list[Object]:
        """The objects of a kind (of all namespaces, or of one), by namespace and name."""
        with self.changed:
            keys = [k for k in self._objects if k[0] == kind and namespace in {"", k[1]}]
            return [self._objects[place] for place in sorted(keys)]

    def everything_in(self, namespace: str) -> list[Object]:
        with self.changed:
            return [item for where, item in self._objects.items() if where[1] == namespace]

    def put(self, item: Object) -> Object:
        """Store a new object or replace one; an equal one changes nothing."""
        with self.changed:
            before = self._objects.get(key(item))
            meta = item["metadata"]
            if before is None:
                meta = {"uid": str(uuid.uuid4()), "creationTimestamp": utc(), **meta}
            elif before == item:
                return before
            self.version += 1
            stored = {**item, "metadata": {**meta, "resourceVersion": str(self.version)}}
            self._objects[key(item)] = stored
            self._notify(Change(self.version, "MODIFIED" if before else "ADDED", stored, before))
            return stored

    def change(self, item: Object, edit: Callable[[Object], object]) -> Object | None:
        """Let `edit` change a copy of the current object, and store that. None if it is gone or was replaced."""
        with self.changed:
            current = self._objects.get(key(item))
            if current is None or current["metadata"]["uid"] != item["metadata"]["uid"]:
                return None
            new = copy.deepcopy(current)
            edit(new)
            return self.put(new)

    def drop(self, item: Object) -> None:
        """Remove an object that may be gone already."""
        with self.changed:
            current = self._objects.get(key(item))
            if current is None or current["metadata"]["uid"] != item["metadata"]["uid"]:
                return
            del self._objects[key(item)]
            self.version += 1
            last = {**current, "metadata": {**current["metadata"], "resourceVersion": str(self.version)}}
            self._notify(Change(self.version, "DELETED", last, current))

    def since(self, version: int) -> list[Change]:
        """The changes after `version`. Raises TooOld."""
        with self.changed:
            if version < self.version and (not self._history or self._history[0].version > version + 1):
                raise TooOld
            changes: list[Change] = []
            for change in reversed(self._history):
                if change.version <= version:
                    break
                changes.append(change)
            return changes[::-1]

    def listen(self, concerns: Callable[[Object], bool]) -> threading.Event:
        """An event that is set at every change of an object that `concerns` selects."""
        event = threading.Event()
        with self.changed:
            self._listeners.append((concerns, event))
        return event

    def _notify(self, change: Change) -> None:
        self._history.append(change)
        for concerns, event in self._listeners:
            if concerns(change.item):
                event.set()
        self.changed.notify_all()


def key(item: Object) -> Key:
    return item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]


def record(
    store: Store, about: Object, component: str, kind: str, reason: str, message: str, host: str = ""
) -> None:
    """Record an event of `kind` Normal or Warning about an object."""
    meta = about["metadata"]
    namespace = meta.get("namespace", "default")
    identity = (namespace, meta.get("uid", meta["name"]), component, reason, message)
    with store.changed:
        # named by time: lists show them in their order
        name = store.events.setdefault(identity, f"{meta['name']}.{time.time_ns():x}")
        event = store.get("Event", namespace, name)
        if event is not None:
            store.put({**event, "count": event["count"] + 1, "lastTimestamp": utc()})
            return
        place = store.get("Namespace", "", namespace)
        if place is None or "deletionTimestamp" in place["metadata"]:
            return  # no new object is allowed in it
        about_kind, _, about_name = key(about)
        store.put(
            {
                "kind": "Event",
                "apiVersion": "v1",
                "metadata": {"name": name, "namespace": namespace},
                "involvedObject": {
                    "kind": about_kind,
                    "name": about_name,
                    # the kubelet knows its node by name only
                    "uid": about_name if about_kind == "Node" else meta.get("uid", ""),
                    **({"namespace": namespace} if meta.get("namespace") else {}),
                },
                "reason": reason,
                "message": message,
                "source": {"component": component, **({"host": host} if host else {})},
                "firstTimestamp": utc(),
                "lastTimestamp": utc(),
                "count": 1,
                "type": kind,
                "eventTime": None,
                "reportingComponent": component,
                "reportingInstance": host,
            }
        )


def is_ready(item: Object) -> bool:
    conditions = item["status"].get("conditions") or []
    return any(each["type"] == "Ready" and each["status"] == "True" for each in conditions)


def with_times(conditions: list[Object], before: Object, *names: str) -> list[Object]:
    """The conditions with times of these names: those in the status `before` where a condition's status is the same."""
    known = {(old["type"], old["status"]): old for old in before.get("conditions") or []}
    for condition in conditions:
        old = known.get((condition["type"], condition["status"]), {})
        condition |= {name: old.get(name) or utc() for name in names}
    return conditions


def is_owned_by(item: Object, owner: Object) -> bool:
    references = item["metadata"].get("ownerReferences") or []
    return any(reference["uid"] == owner["metadata"]["uid"] for reference in references)


class StatusError(Exception):
    """An answer with this HTTP code and Status object."""

    def __init__(self, code: int, status: Object) -> None:
        super().__init__(status["message"])
        self.code = code
        self.status = status


def status_error(
    code: int, reason: str, message: str, *, name: str = "", kind: str = "", causes: Sequence[Object] = ()
) -> StatusError:
    """`kind` is that of `details`, with its group: `nodes`, `daemonsets.apps`. In most answers it is the plural."""
    details: Object = {"name": name} if name else {}
    short, _, group = kind.partition(".")
    details |= ({"group": group} if group else {}) | ({"kind": short} if kind else {})
    details |= {"causes": list(causes)} if causes else {}
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **({"details": details} if details else {}),
        "code": code,
    }
    return StatusError(code, status)


def not_found(kind: str, name: str) -> StatusError:
    """`kind` is the plural, with its group."""
    return status_error(404, "NotFound", f'{kind} "{name}" not found', name=name, kind=kind)
