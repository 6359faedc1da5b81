"""The pods bound to this node, and which of their containers still wait for memory of its GPUs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

from ..cluster.apiserver import Object
from ..cluster.follow import Kind
from ..offer.prefer import Place
from . import demand, placement
from .demand import Malformed
from .placement import Part

ENDED = ("Succeeded", "Failed")  # phases in which the kubelet has freed a pod's devices


Held: TypeAlias = Mapping[tuple[str, str], Place]  # by pod (namespace/name) and container


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
        self._had: set[tuple[str, str]] = set()  # containers (by UID of the pod) that were seen to hold units
        self._changed = threading.Condition()

    @property
    def kind(self) -> Kind:
        """What a Follower follows to keep this current."""
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(self._node, safe='')}"
        return Kind(path, lambda pod: str(pod["metadata"]["uid"]), self._seen, self._gone, self._known)

    def waiting(self, size: int, held: Held, index: Mapping[str, str], seconds: float) -> list[Place]:
        """Where containers of `size` units that wait were promised to be, the likeliest first; [] where none that waits was
        promised anything. `index`: UUIDs by GPU's index. Waits so long for one that waits: the kubelet may know of a pod
        first.

        Equal containers are interchangeable, so it is the places that count: those of all, without those that are taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._find(size, held, index) is not None, seconds)
            return self._find(size, held, index) or []

    def _find(self, size: int, held: Held, index: Mapping[str, str]) -> list[Place] | None:
        """None where no container of this size waits."""
        waits, mine = False, list[Place]()
        promised, taken = Counter[Place](), Counter[Place]()
        for uid, pod in self._pods.items():
            for one in pod:
                if one.units != size:
                    continue
                place = frozenset((part.uuid or index.get(part.index, ""), part.units) for part in one.parts)
                has = held.get((one.pod, one.container))
                if has is not None:
                    self._had.add((uid, one.container))
                    taken[has] += bool(place)
                elif (uid, one.container) in self._had:
                    continue  # it has ended, which the API server does not say yet
                else:
                    waits = True
                    mine += [place] if place else []
                promised[place] += bool(place)
        free = promised - taken
        if not waits:
            return None
        return list(dict.fromkeys([one for one in (*mine, *free) if free[one] > 0])) if mine else []

    def _seen(self, pod: Object) -> None:
        ended = (pod.get("status") or {}).get("phase") in ENDED
        wanted = () if ended else self._read(pod)
        with self._changed:
            self._pods[str(pod["metadata"]["uid"])] = wanted
            self._changed.notify_all()

    def _gone(self, uid: str) -> None:
        with self._changed:
            self._pods.pop(uid, None)
            self._had = {one for one in self._had if one[0] != uid}

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
