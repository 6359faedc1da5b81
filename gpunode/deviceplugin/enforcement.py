"""Checks for GPUs shared by memory whether the driver enforces each container's share."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping

from gpunode.contract.offer import Unit

from .cdi import CdiUnavailable, Specs
from .gpus import limits
from .gpus.handles import Handles
from .health.watch import DEADLINE
from .offer.state import NodeState
from .threads import Calls

log = logging.getLogger(__name__)


class MemoryLimits:
    """Publishes in `state` which GPUs' shares of memory the driver enforces."""

    def __init__(self, handles: Handles, state: NodeState, specs: Specs | None, calls: Calls) -> None:
        self._handles = handles
        self._state = state
        self._specs = specs
        self._calls = calls

    async def check(self, offered: Mapping[str, tuple[Unit, ...]]) -> None:
        """Check the offered GPUs; log and publish what has changed."""
        shared = {unit.device.uuid: unit.device for units in offered.values() for unit in units if unit.mib}
        asked = await asyncio.gather(*(self._obstacles(uuid) for uuid in shared))
        found = dict(zip(shared, asked, strict=True))
        if found == self._state.memory_limits:
            return
        self._state.set_memory_limits(found)
        for why in dict.fromkeys(found.values()):
            which = ",".join(shared[uuid].index for uuid in shared if found[uuid] == why)
            if why is None:
                log.info("the driver enforces memory limits", extra={"gpus": which})
            else:
                words = "the driver does not enforce memory limits, so containers may exceed their share: %s"
                log.warning(words, why, extra={"gpus": which})

    async def _obstacles(self, uuid: str) -> str | None:
        """Why the driver does not enforce shares of this GPU's memory; None if it does."""
        cgroup2 = limits.unified()
        try:
            own = limits.CGROUPS if cgroup2 else None
            driver = await self._calls.within(DEADLINE, limits.refusal, self._handles, uuid, own)
            hook = self._specs is not None and limits.hooked(await asyncio.to_thread(self._specs.edits, uuid))
        except (asyncio.TimeoutError, CdiUnavailable) as error:
            return str(error) or "NVML does not answer"
        return limits.obstacles(driver=driver, cgroup2=cgroup2, cdi=self._specs is not None, hook=hook)
