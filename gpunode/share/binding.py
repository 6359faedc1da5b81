"""Binds a pod to a node with its place in it: one write, so there is nothing halfway to undo.

The API server merges a Binding's annotations into its pod in the transaction that sets the pod's node
(pkg/registry/core/pod/storage/storage.go, setPodHostAndAnnotations, later setPodNodeAndMetadata), and has since before 1.0.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from gpunode.contract.promises import Malformed, demand_of
from gpunode.deviceplugin.cluster.apiserver import ApiError, Object

from . import notes
from .api import Api
from .fit import Refused
from .lease import ANSWER
from .ledger import Ledger


class NotBound(Exception):
    """The pod is not bound, or that is unknown; the message says why."""


class NotLeading(Exception):
    """Another replica may lead: only its ledger knows what is promised."""

    def __init__(self) -> None:
        super().__init__("this replica of the extender does not lead; the scheduler asks again")


def bind(
    ledger: Ledger,
    api: Api,
    namespace: str,
    name: str,
    uid: str,
    node: str,
    *,
    packed: bool,
    leads: Callable[[], bool] = lambda: True,
) -> None:
    """Bind the pod to the node with its place in it, while this replica `leads`. Raises NotBound, NotLeading.

    After a refusal nothing is reserved. Where the answer is lost and the pod is not bound yet, its memory stays reserved
    until an event of the pod, or the scheduler's next try, shows what became of it.
    """
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
    try:
        pod = api.get(path)
        if uid and pod["metadata"]["uid"] != uid:
            raise NotBound(f"{namespace}/{name} is another pod by now")
        if bound := (pod.get("spec") or {}).get("nodeName"):
            ledger.pod_seen(pod)
            raise NotBound(f"{namespace}/{name} is bound to {bound} already")
        wanted, written = demand_of(pod, ledger.resource), {}
        if wanted.units:
            gpus, parts = ledger.reserve(pod, wanted, node, packed=packed)
            written = notes.of(node, wanted, parts, gpus, time.time_ns())
    except (ApiError, Malformed, Refused) as error:
        raise NotBound(f"{namespace}/{name} cannot be bound to {node}: {error}") from None
    if not leads():
        ledger.release(pod["metadata"]["uid"])
        raise NotLeading
    try:
        # The API server drops a request that it has not finished by then, so it is over before another replica lists.
        api.send("POST", f"{path}/binding?timeout={ANSWER:.0f}s", _binding(pod["metadata"], node, written))
    except ApiError as error:
        if _bound_after(ledger, api, path, pod, error) != node:
            raise NotBound(f"{namespace}/{name} is not bound to {node}: {error}") from None


def _binding(meta: Mapping[str, Any], node: str, notes: Mapping[str, str]) -> Object:
    same = {key: meta[key] for key in ("name", "namespace", "uid") if key in meta}
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {**same, "annotations": dict(notes)},
        "target": target,
    }


def _bound_after(ledger: Ledger, api: Api, path: str, pod: Object, error: ApiError) -> str:
    """The node that the pod is bound to after this error, "" for none; what is known by it is recorded."""
    uid = pod["metadata"]["uid"]
    if 400 <= error.code < 500 and error.code != 409:
        ledger.release(uid)
        return ""
    try:
        now = api.get(path)
    except ApiError as lost:
        if lost.code == 404:
            ledger.release(uid)
        return ""
    if now["metadata"]["uid"] != uid:
        ledger.pod_gone(uid)
        return ""
    ledger.pod_seen(now)
    node = str((now.get("spec") or {}).get("nodeName") or "")
    if not node and error.code == 409:
        ledger.release(uid)
    return node
