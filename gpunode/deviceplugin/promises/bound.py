"""The pods bound to this node, and which of their containers still wait for memory of its GPUs."""

from __future__ import annotations

import threading
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import quote

from ..cluster.apiserver import Object
from ..cluster.follow import Kind
from . import demand, placement
from .demand import Malformed
from .placement import Part

ENDED = ("Succeeded", "Failed")  # phases in which the kubelet has freed a pod's devices


@dataclass(frozen=True, slots=True)
class Wanted:
    """One container's units. `parts`: those that it was promised; () where nobody placed its pod."""

    pod: str  # namespace/name
    container: str
    units: int
    parts: tuple[Part, ...]


class BoundPods:
    """This node's pods that want the resource, as the API server has them. Safe to use from several threads."""

    def __init__(self, node: str, resource: str) -> None:
        self._node = node
        self._resource = resource
        self._pods: dict[str, tuple[Wanted, ...]] = {}  # by UID
        self._changed = threading.Condition()

    @property
    def kind(self) -> Kind:
        """What a Follower follows to keep this current."""
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(self._node, safe='')}"
        return Kind(path, lambda pod: str(pod["metadata"]["uid"]), self._seen, self._gone, self._known)

    def waiting(self, size: int, held: Collection[tuple[str, str]], seconds: float) -> Wanted | None:
        """A container that wants `size` units and is not among those that hold some (pod, container), at best one that was
        promised a GPU. Waits so long for one: the kubelet may know of a pod first."""
        with self._changed:
            self._changed.wait_for(lambda: self._find(size, held), seconds)
            return self._find(size, held)

    def _find(self, size: int, held: Collection[tuple[str, str]]) -> Wanted | None:
        found = [
            one
            for wanted in self._pods.values()
            for one in wanted
            if one.units == size and (one.pod, one.container) not in held
        ]
        return next((one for one in found if one.parts), found[0] if found else None)

    def _seen(self, pod: Object) -> None:
        ended = (pod.get("status") or {}).get("phase") in ENDED
        wanted = () if ended else self._read(pod)
        with self._changed:
            self._pods[str(pod["metadata"]["uid"])] = wanted
            self._changed.notify_all()

    def _gone(self, uid: str) -> None:
        with self._changed:
            self._pods.pop(uid, None)

    def _known(self) -> set[str]:
        with self._changed:
            return set(self._pods)

    def _read(self, pod: Object) -> tuple[Wanted, ...]:
        try:
            held = demand.held(pod, self._resource)
        except Malformed:
            return ()
        parts = placement.read(pod, self._node, held) or ()
        name = f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"
        return tuple(
            Wanted(
                name,
                ask.container,
                ask.units,
                tuple(part for part in parts if part.container == ask.container),
            )
            for ask in held.asks
        )
