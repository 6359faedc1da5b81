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

    async def units(self, size: int, offered: Mapping[str, Unit]) -> Counter[str]:
        """Units by GPU (UUID) for a container that asks for `size`; empty where no promise is known."""
        reported = await self._pods.ask()
        if reported is None:
            log.warning("the kubelet does not report which containers have GPUs: no promise is followed")
            return Counter()
        held = {(one.pod.name, one.container) for one in reported if one.resource == self.resource}
        found = await asyncio.to_thread(self._bound.waiting, size, held, LATE)
        if found is None or not found.parts:
            fields = {"units": size, "pod": found.pod if found else ""}
            log.info("no promise is known for a container: the plugin chooses", extra=fields)
            return Counter()
        by_index = {unit.device.index: unit.device.uuid for unit in offered.values()}
        units: Counter[str] = Counter()
        for part in found.parts:
            units[part.uuid or by_index.get(part.index, "")] += part.units
        return units
