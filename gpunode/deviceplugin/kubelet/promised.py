"""Which GPUs the scheduler extender promised the container that the kubelet asks for.

The kubelet names no container. Of equal ones that wait, any will do: each gets what one of them was promised.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Iterable, Mapping

from gpunode.contract.offer import Unit
from gpunode.contract.promises import Place

from ..cluster.follow import Follower, Reads
from ..offer.reservations import ContainerDevices
from ..offer.state import NodeState
from ..promises.bound import BoundPods
from .podresources import PodResources

log = logging.getLogger(__name__)

LATE = 2.0  # seconds that the plugin may learn of a pod later than the kubelet
TICK, LONGEST = (
    1.0,
    30.0,
)  # seconds between comparisons, doubled while pods do not change; none while all is as noted


class Promised:
    """The promises of one resource on this node; follows the API server until `run` is cancelled, and keeps the state's
    containers that are elsewhere current."""

    def __init__(self, api: Reads, pods: PodResources, state: NodeState, node: str, resource: str) -> None:
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
                left, pause = (float("inf") if await self._settled() else pause), min(2 * pause, LONGEST)

    async def _settled(self) -> bool:
        """Whether every container has its units, where they are noted; those that are elsewhere are recorded."""
        reported, units = await self._pods.ask(), self._state.units.get(self.resource)
        if reported is None or not units:
            return False
        found, waits = self._bound.compared(self._held(reported, units), _index(units))
        self._state.set_elsewhere(found)
        return not found and not waits

    async def places(self, size: int, offered: Mapping[str, Unit]) -> list[Place]:
        """Where a container that asks for `size` units may have been promised to be, the likeliest first; [] where no
        promise is known."""
        reported = await self._pods.ask()
        if reported is None:
            log.warning("the kubelet does not report which containers have GPUs: no promise is followed")
            return []
        held = self._held(reported, offered)
        found = await asyncio.to_thread(self._bound.waiting, size, held, _index(offered), LATE)
        if not found:
            log.info("no promise is known for a container: the plugin chooses", extra={"units": size})
        return found

    def _held(
        self, reported: Iterable[ContainerDevices], offered: Mapping[str, Unit]
    ) -> dict[tuple[str, str], Place]:
        """By pod and container."""
        held: dict[tuple[str, str], Place] = {}
        for one in reported:
            if one.resource == self.resource:
                gpus = Counter(offered[unit].device.uuid for unit in one.ids if unit in offered)
                held[one.pod.name, one.container] = frozenset(gpus.items())
        return held


def _index(offered: Mapping[str, Unit]) -> dict[str, str]:
    """UUIDs by GPU's index."""
    return {unit.device.index: unit.device.uuid for unit in offered.values()}
