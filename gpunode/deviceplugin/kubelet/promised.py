"""Which GPUs the scheduler extender promised the container that the kubelet asks for.

The kubelet names no container. Of equal ones that wait, any will do: each gets what one of them was promised.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Mapping

from ..cluster.follow import Follower, Reads
from ..offer.prefer import Place
from ..offer.resources import Unit
from ..promises.bound import BoundPods
from .podresources import PodResources

log = logging.getLogger(__name__)

LATE = 2.0  # seconds that the plugin may learn of a pod later than the kubelet


class Promised:
    """The promises of one resource on this node; follows the API server until `run` is cancelled."""

    def __init__(self, api: Reads, pods: PodResources, node: str, resource: str) -> None:
        self.resource = resource
        self._pods = pods
        self._bound = BoundPods(node, resource)
        self._stop = threading.Event()
        self._follower = Follower(api, self._bound.kind, self._stop)

    async def run(self) -> None:
        self._follower.start()
        try:
            await asyncio.Event().wait()
        finally:
            self._stop.set()

    async def places(self, size: int, offered: Mapping[str, Unit]) -> list[Place]:
        """Where a container that asks for `size` units may have been promised to be, the likeliest first; [] where no
        promise is known."""
        reported = await self._pods.ask()
        if reported is None:
            log.warning("the kubelet does not report which containers have GPUs: no promise is followed")
            return []
        held: dict[tuple[str, str], Place] = {}
        for one in reported:
            if one.resource == self.resource:
                gpus = Counter(offered[unit].device.uuid for unit in one.ids if unit in offered)
                held[one.pod.name, one.container] = frozenset(gpus.items())
        index = {unit.device.index: unit.device.uuid for unit in offered.values()}
        found = await asyncio.to_thread(self._bound.waiting, size, held, index, LATE)
        if not found:
            log.info("no promise is known for a container: the plugin chooses", extra={"units": size})
        return found
