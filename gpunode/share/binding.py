"""Binds a pod to a node with its placement, and corrects the annotations of pods whose node publishes other GPUs.

The API server merges a Binding's annotations into its pod in the transaction that sets the pod's node
(pkg/registry/core/pod/storage/storage.go, setPodHostAndAnnotations, later setPodNodeAndMetadata), and has since before 1.0.
So there is one write, and nothing halfway to undo.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from gpunode.contract.promises import Demand, Malformed, Part, bound_demand, demand_of, placement_of
from gpunode.deviceplugin.cluster.apiserver import ApiError, ApiServer, Object

from .fit import Refused, notes_of
from .lease import ANSWER
from .ledger import Ledger, Moved


class NotBound(Exception):
    """The pod is not bound, or that is unknown; the message has the cause."""


class NotLeading(Exception):
    """Another replica may lead: only its ledger has the promises."""

    def __init__(self) -> None:
        super().__init__("this replica of the extender does not lead; the scheduler asks again")


def bind(
    ledger: Ledger,
    api: ApiServer,
    namespace: str,
    name: str,
    uid: str,
    node: str,
    *,
    packed: bool,
    leads: Callable[[], bool] = lambda: True,
) -> None:
    """Bind the pod to the node with its placement, while this replica `leads`. Raises NotBound, NotLeading.

    After a refusal nothing is reserved. If the answer is lost and the pod is not bound yet, its memory stays reserved until an
    event of the pod, or the scheduler's next try, shows its state.
    """
    path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
    try:
        pod = api.get(path)
        if uid and pod["metadata"]["uid"] != uid:
            raise NotBound(f"{namespace}/{name} is another pod by now")
        if bound := (pod.get("spec") or {}).get("nodeName"):
            ledger.put_pod(pod)
            raise NotBound(f"{namespace}/{name} is bound to {bound} already")
        wanted, written = demand_of(pod, ledger.resource), {}
        if wanted.units:
            gpus, parts = ledger.reserve(pod, wanted, node, packed=packed)
            written = notes_of(node, wanted, parts, gpus, time.time_ns())
    except (ApiError, Malformed, Refused) as error:
        raise NotBound(f"{namespace}/{name} cannot be bound to {node}: {error}") from None
    if not leads():
        ledger.release(pod["metadata"]["uid"])
        raise NotLeading
    try:
        # The API server drops a request that it has not finished by then, so it is over before another replica lists.
        api.send("POST", f"{path}/binding?timeout={ANSWER:.0f}s", _binding(pod["metadata"], node, written))
    except ApiError as error:
        if _resolve(ledger, api, path, pod, error) != node:
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


def _resolve(ledger: Ledger, api: ApiServer, path: str, pod: Object, error: ApiError) -> str:
    """The node that the pod is bound to after this error, "" for none. Updates the ledger."""
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
        ledger.drop_pod(uid)
        return ""
    ledger.put_pod(now)
    node = str((now.get("spec") or {}).get("nodeName") or "")
    if not node and error.code == 409:
        ledger.release(uid)
    return node


log = logging.getLogger(__name__)

MOST_NOTES = 20  # pods noted in a round
PASSED = (404, 409)  # statuses: the pod is gone, or has changed; the next round sees it as it is


class Noting:
    """Corrects the annotations of pods that have other GPUs than noted. Until an event shows the new ones both count."""

    def __init__(self, ledger: Ledger, api: ApiServer) -> None:
        self._ledger = ledger
        self._api = api
        self._tries: Counter[str] = Counter()  # by UID

    def tend(self) -> None:
        """Note those tried least, up to a failure, which is logged: one that is always refused delays the others for a round."""
        waiting = self._ledger.moved_pods()
        self._tries = Counter({moved.uid: self._tries[moved.uid] for moved in waiting})
        for moved in sorted(waiting, key=lambda moved: self._tries[moved.uid])[:MOST_NOTES]:
            self._tries[moved.uid] += 1
            try:
                self._note(moved)
            except ApiError as error:
                if error.code not in PASSED:
                    log.warning(
                        "%s has other GPUs than noted, which cannot be written: %s", moved.promise.pod, error
                    )
                    return

    def _note(self, moved: Moved) -> None:
        namespace, _, name = moved.promise.pod.partition("/")
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(name, safe='')}"
        pod = self._api.get(path)
        meta = pod["metadata"]
        if meta["uid"] != moved.uid or (pod.get("spec") or {}).get("nodeName") != moved.node:
            return
        written = corrected_notes(pod, moved, self._ledger.resource, time.time_ns())
        if written:
            log.info("%s is noted on the GPUs that it has", moved.promise.pod)
            same = {key: meta[key] for key in ("uid", "resourceVersion") if key in meta}
            self._api.send("PATCH", f"{path}/status", {"metadata": {**same, "annotations": written}})


def corrected_notes(pod: Mapping[str, Any], moved: Moved, resource: str, now: int) -> dict[str, str]:
    """The annotations with the pod's real GPUs; {} if annotations cannot express them, or some are unknown."""
    try:
        held = bound_demand(pod, resource)
    except Malformed:
        return {}
    parts = _parts(held, moved)
    if parts is None:
        return {}
    annotations = notes_of(moved.node, held, parts, moved.gpus, now)
    read = placement_of({"metadata": {"annotations": annotations}}, moved.node, held)
    return annotations if read is not None and set(read) == set(parts) else {}


def _parts(held: Demand, moved: Moved) -> tuple[Part, ...] | None:
    known = {gpu.uuid for gpu in moved.gpus}
    parts = tuple(part for ask in held.asks for part in moved.promise.has if part.container == ask.container)
    complete = all(
        sum(part.units for part in parts if part.container == ask.container) == ask.units for ask in held.asks
    )
    return parts if parts and complete and not held.init and {part.uuid for part in parts} <= known else None
