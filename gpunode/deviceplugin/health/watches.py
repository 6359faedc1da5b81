"""One health watch per GPU; publishes which devices are faulty."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..gpus.devices import NVML_SILENT, Device
from ..metrics import Metrics
from ..offer.state import NodeState
from ..settings.config import Config
from ..status import Reason
from ..threads import Calls, post
from . import Health, XidPolicy
from .watch import DEADLINE, GpuWatch

log = logging.getLogger(__name__)


class GpuWatches:
    """The watches of this machine's GPUs. `health` has the devices' health, by UUID."""

    def __init__(
        self,
        nvml: Any,
        state: NodeState,
        config: Config,
        xid_policy: XidPolicy,
        metrics: Metrics,
        before: Mapping[str, Health],
    ) -> None:
        self._nvml = nvml
        self._calls = Calls()
        self._state = state
        self._config = config
        self._xid_policy = xid_policy
        self._metrics = metrics
        # Copies: a watch of the earlier configuration may still be running.
        quiet = config.recovery_seconds
        self.health = {uuid: replace(known, quiet=quiet) for uuid, known in before.items()}
        self._watches: dict[str, GpuWatch] = {}  # by the GPU's UUID

    def keep(self, devices: Iterable[Device]) -> None:
        """Watch exactly these GPUs, with their current MIG devices."""
        groups: dict[str, tuple[Device, ...]] = {}
        for device in devices:
            groups[device.gpu] = (*groups.get(device.gpu, ()), device)
        for gpu, watch in list(self._watches.items()):
            if not watch.is_alive() or watch.devices != groups.get(gpu):
                watch.stop()
                del self._watches[gpu]
        for gpu, group in groups.items():
            if gpu in self._watches:
                continue
            for device in group:
                self.health.setdefault(device.uuid, Health(self._config.recovery_seconds))
            watch = GpuWatch(
                self._nvml,
                group,
                self.health,
                xid_policy=self._xid_policy,
                report=self._reporter(),
                metrics=self._metrics,
                interval=self._config.health_interval,
            )
            self._watches[gpu] = watch
            watch.start()

    def set_unhealthy(self, devices: Iterable[Device], why: Reason) -> None:
        """Mark devices that cannot be probed as Unhealthy, until their watch finds them healthy."""
        for device in devices:
            health = self.health[device.uuid]
            before = health.why
            # Each time: the quiet time counts from the end of the problem.
            health.probed(why, time.monotonic())
            if before is None:
                self._judge(device.uuid, why)

    def check_stuck(self) -> None:
        """Mark GPUs Unhealthy whose watch hangs in NVML."""
        for watch in self._watches.values():
            if watch.stuck():
                words = f"NVML does not answer within {DEADLINE:.0f} s about this GPU"
                self.set_unhealthy(watch.devices, Reason(NVML_SILENT, words))

    @property
    def failing(self) -> bool:
        """True if NVML returned an error for any GPU at its last probe."""
        return any(watch.failing for watch in self._watches.values())

    def stop(self) -> None:
        """Ask all watches to end, without waiting."""
        for watch in self._watches.values():
            watch.stop()

    async def end(self) -> bool:
        """End all watches; False if one hangs in NVML, which then cannot be restarted."""
        self.stop()
        deadline = self._config.health_interval + 1
        for watch in self._watches.values():
            await self._calls.within(deadline + 1, watch.join, deadline)
        ended = not any(watch.is_alive() for watch in self._watches.values())
        if ended:
            self._watches.clear()
        return ended

    def _reporter(self) -> Callable[[str, Reason | None], None]:
        """A callback that passes a watch's findings from its thread to this event loop."""
        loop = asyncio.get_running_loop()
        return lambda uuid, why: post(loop, lambda: self._judge(uuid, why))

    def _judge(self, uuid: str, why: Reason | None) -> None:
        if why is None:
            log.info("healthy again", extra={"device": uuid})
        else:
            log.error("unhealthy: %s", why, extra={"device": uuid})
        self._state.set_health(uuid, why)
