"""Which GPUs the scheduler extender promised the containers of this node's pods, and which of them still wait.

The kubelet names no container. Of equal ones that wait, any will do: each gets what one of them was promised.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias
from urllib.parse import quote

from gpunode.contract.offer import Unit
from gpunode.contract.promises import (
    Elsewhere,
    Malformed,
    Part,
    Place,
    bound_demand,
    has_ended,
    placement_of,
    pod_name,
)

from ..cluster.apiserver import ApiServer, Follower, Kind, Object
from ..state import ContainerDevices, NodeState
from .podresources import PodResources

Held: TypeAlias = Mapping[tuple[str, str], Place]  # by pod (namespace/name) and container


@dataclass(frozen=True, slots=True)
class Wanted:
    """One container's units. `parts`: those that it was promised; () where its pod was not placed."""

    pod: str  # namespace/name
    container: str
    units: int
    parts: tuple[Part, ...]
    alone: bool = True  # no init container of its pod asks, too, whose units the kubelet does not report


class BoundPods:
    """This node's pods that want the resource, as the API server has them. Safe to use from several threads."""

    def __init__(self, node: str, resource: str) -> None:
        self._node = node
        self._resource = resource
        self._pods: dict[str, tuple[Wanted, ...]] = {}  # by UID
        self._had: set[tuple[str, str]] = set()  # containers (by UID of the pod) that were seen to hold units
        self._changed = threading.Condition()
        self.version = 0  # grows with every change

    @property
    def kind(self) -> Kind:
        """What a Follower follows to keep this current."""
        path = f"/api/v1/pods?fieldSelector=spec.nodeName%3D{quote(self._node, safe='')}"
        return Kind(path, lambda pod: str(pod["metadata"]["uid"]), self._put, self._remove, self._uids)

    def wait_for_places(self, size: int, held: Held, index: Mapping[str, str], seconds: float) -> list[Place]:
        """Where containers of `size` units that wait were promised to be, the likeliest first; [] where none that waits was
        promised anything. `index`: UUIDs by GPU's index. Waits so long for one that waits: the kubelet may know of a pod
        first.

        Equal containers are interchangeable, so it is the places that count: those of all, without those that are taken.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._find(size, held, index) is not None, seconds)
            return self._find(size, held, index) or []

    def compare(self, held: Held, index: Mapping[str, str]) -> tuple[tuple[Elsewhere, ...], bool]:
        """The containers that hold other GPUs than are noted, all of a pod's where one does; and whether some still wait.

        `more`: a GPU gives it what was promised of none to a container of its size. Else two of a size have swapped.
        """
        elsewhere: list[Elsewhere] = []
        waits = False
        with self._changed:
            surplus = self._surplus(held, index)
            for uid, pod in self._pods.items():
                here = [(wanted, held.get((wanted.pod, wanted.container))) for wanted in pod]
                self._had |= {(uid, wanted.container) for wanted, place in here if place is not None}
                waits |= any(place is None and (uid, w.container) not in self._had for w, place in here)
                # Units of an earlier configuration are reserved, and count there.
                known = [
                    (w, place) for w, place in here if w.alone and w.units == sum(n for _, n in place or ())
                ]
                if not any(place != _place(wanted, index) for wanted, place in known):
                    continue
                for wanted, place in known:
                    more = bool(wanted.parts) and surplus[wanted.units, place or frozenset()] > 0
                    surplus[wanted.units, place or frozenset()] -= more
                    elsewhere.append(Elsewhere(uid, wanted.pod, wanted.container, place or frozenset(), more))
        return tuple(elsewhere), waits

    def _surplus(self, held: Held, index: Mapping[str, str]) -> Counter[tuple[int, Place]]:
        """By size and place: containers that hold it, less those that were promised it."""
        surplus = Counter[tuple[int, Place]]()
        for pod in self._pods.values():
            for wanted in pod:
                if wanted.parts:
                    surplus[wanted.units, _place(wanted, index)] -= 1
                    surplus[wanted.units, held.get((wanted.pod, wanted.container), frozenset())] += 1
        return surplus

    def _find(self, size: int, held: Held, index: Mapping[str, str]) -> list[Place] | None:
        """None where no container of this size waits."""
        waits, mine = False, list[Place]()
        promised, taken = Counter[Place](), Counter[Place]()
        for uid, pod in self._pods.items():
            for wanted in pod:
                if wanted.units != size:
                    continue
                place = _place(wanted, index)
                has = held.get((wanted.pod, wanted.container))
                if has is not None:
                    self._had.add((uid, wanted.container))
                    taken[has] += bool(place)
                elif (uid, wanted.container) in self._had:
                    continue  # it has ended, which the API server does not say yet
                else:
                    waits = True
                    mine += [place] if place else []
                promised[place] += bool(place)
        free = promised - taken
        if not waits:
            return None
        return list(dict.fromkeys([place for place in (*mine, *free) if free[place] > 0])) if mine else []

    def _put(self, pod: Object) -> None:
        wanted = () if has_ended(pod) else self._read(pod)
        with self._changed:
            self.version += self._pods.get(str(pod["metadata"]["uid"])) != wanted
            self._pods[str(pod["metadata"]["uid"])] = wanted
            self._changed.notify_all()

    def _remove(self, uid: str) -> None:
        with self._changed:
            self._pods.pop(uid, None)
            self.version += 1
            self._had = {known for known in self._had if known[0] != uid}

    def _uids(self) -> set[str]:
        with self._changed:
            return set(self._pods)

    def _read(self, pod: Object) -> tuple[Wanted, ...]:
        try:
            held = bound_demand(pod, self._resource)
        except Malformed:
            return ()
        parts = placement_of(pod, self._node, held) or ()
        return tuple(
            Wanted(
                pod_name(pod),
                ask.container,
                ask.units,
                tuple(part for part in parts if part.container == ask.container),
                alone=not held.init,
            )
            for ask in held.asks
        )


def _place(wanted: Wanted, index: Mapping[str, str]) -> Place:
    """Where it was promised to be; empty where its pod was not placed."""
    return frozenset((part.uuid or index.get(part.index, ""), part.units) for part in wanted.parts)


log = logging.getLogger(__name__)

LATE = 2.0  # seconds that the plugin may learn of a pod later than the kubelet
# Seconds between comparisons, doubled while pods do not change; none while all is as noted
TICK, LONGEST = (1.0, 30.0)


class Promised:
    """The promises of one resource on this node; follows the API server until `run` is cancelled, and keeps the state's
    containers that are elsewhere current."""

    def __init__(
        self, api: ApiServer, pods: PodResources, state: NodeState, node: str, resource: str
    ) -> None:
        self.resource = resource
        self._pods = pods
        self._state = state
        self._bound = BoundPods(node, resource)
        self._stop = threading.Event()
        self._follower = Follower(api, self._bound.kind, self._stop)

    async def run(self) -> None:
        self._follower.start()
        try:
            await self._compare()
        finally:
            self._stop.set()

    async def _compare(self) -> None:
        """Compare what pods have with what they were promised: when pods change, and until all is as noted."""
        version, pause, left = -1, TICK, 0.0
        while True:
            await asyncio.sleep(TICK)
            left -= TICK
            if self._bound.version != version:
                version, pause, left = self._bound.version, TICK, 0.0
            if left <= 0:
                left, pause = (float("inf") if await self._all_in_place() else pause), min(2 * pause, LONGEST)

    async def _all_in_place(self) -> bool:
        """Whether every container has its units, where they are noted; those that are elsewhere are recorded."""
        reported, units = await self._pods.ask(), self._state.units.get(self.resource)
        if reported is None or not units:
            return False
        elsewhere, waits = self._bound.compare(self._places_held(reported, units), _index(units))
        self._state.set_elsewhere(elsewhere)
        return not elsewhere and not waits

    async def places(self, size: int, offered: Mapping[str, Unit]) -> list[Place]:
        """Where a container that asks for `size` units may have been promised to be, the likeliest first; [] where no
        promise is known."""
        reported = await self._pods.ask()
        if reported is None:
            log.warning("the kubelet does not report which containers have GPUs: no promise is followed")
            return []
        held = self._places_held(reported, offered)
        promised = await asyncio.to_thread(self._bound.wait_for_places, size, held, _index(offered), LATE)
        if not promised:
            log.info("no promise is known for a container: the plugin chooses", extra={"units": size})
        return promised

    def _places_held(
        self, reported: Iterable[ContainerDevices], offered: Mapping[str, Unit]
    ) -> dict[tuple[str, str], Place]:
        held: dict[tuple[str, str], Place] = {}
        for container in reported:
            if container.resource == self.resource:
                gpus = Counter(offered[unit].device.uuid for unit in container.ids if unit in offered)
                held[container.pod.name, container.container] = frozenset(gpus.items())
        return held


def _index(offered: Mapping[str, Unit]) -> dict[str, str]:
    """UUIDs by GPU's index."""
    return {unit.device.index: unit.device.uuid for unit in offered.values()}
