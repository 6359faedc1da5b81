"""The namespace and garbage collection controllers: they delete objects without their owner or namespace."""

from __future__ import annotations

import contextlib

from gpunode.sim.apiserver.admission import FOREGROUND
from gpunode.sim.apiserver.errors import StatusError
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import KINDS, Object, Store, owned_by

SYSTEM = ("default", "kube-system", "kube-public")  # namespaces that every cluster has


def concerns(item: Object) -> bool:
    """True if a change of this object can leave garbage."""
    return bool(item["kind"] != "Event")


def collect(store: Store) -> None:
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
        if owners and not any(one["uid"] in uids for one in owners):
            _delete(store, item)
        if FOREGROUND in item["metadata"].get("finalizers", ()):
            dependents = [one for one in everything if owned_by(one, item)]
            for one in dependents:
                _delete(store, one)
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
