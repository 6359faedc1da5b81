"""One health watch per GPU; publishes which devices are faulty."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path

from gpunode.contract.config import Config
from gpunode.contract.offer import Device
from gpunode.contract.status import Reason

from ..gpus.devices import NVML_SILENT
from ..gpus.handles import Handles
from ..metrics import Metrics
from ..offer.state import NodeState
from ..threads import post
from . import Health, XidPolicy
from .record import XidRecord
from .watch import DEADLINE, GpuWatch

log = logging.getLogger(__name__)


class GpuWatches:
    """The watches of this machine's GPUs. `health` has the devices' health, by UUID."""

    def __init__(
        self,
        handles: Handles,
        state: NodeState,
        config: Config,
        xid_policy: XidPolicy,
        metrics: Metrics,
        before: Mapping[str, Health],
    ) -> None:
        self._handles = handles
        self._state = state
        self._config = config
        self._xid_policy = xid_policy
        self._metrics = metrics
        # Copies: a watch of the earlier configuration may still be running.
        quiet = config.recovery_seconds
        self.health = {uuid: replace(known, quiet=quiet) for uuid, known in before.items()}
        self._record = XidRecord(Path(config.kubelet_socket).parent)
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
                if device.uuid not in self.health:
                    self._begin(device)
            watch = GpuWatch(
                self._handles,
                group,
                self.health,
                xid_policy=self._xid_policy,
                record=self._record,
                report=self._reporter(),
                metrics=self._metrics,
                interval=self._config.health_interval,
            )
            self._watches[gpu] = watch
            watch.start()

    def _begin(self, device: Device) -> None:
        """A device's health, with the Xid that an earlier process of the plugin recorded."""
        lasting = self._record.get(device.uuid)
        if lasting is not None and not self._xid_policy.counts(lasting.xid):
            lasting = None
        self.health[device.uuid] = Health(self._config.recovery_seconds, lasting=lasting)
        if lasting is not None:
            self.set_unhealthy((device,), lasting.reason)

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
    def answering(self) -> bool:
        """True if NVML answers about any GPU."""
        return any(not watch.failing and not watch.stuck() for watch in self._watches.values())

    def stop(self) -> None:
        """Ask all watches to end, without waiting."""
        for watch in self._watches.values():
            watch.stop()

    async def end(self) -> bool:
        """End all watches; False if one hangs in NVML."""
        self.stop()
        until = time.monotonic() + self._config.health_interval + 1
        while any(watch.is_alive() for watch in self._watches.values()):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.05)
        self._watches.clear()
        return True

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
