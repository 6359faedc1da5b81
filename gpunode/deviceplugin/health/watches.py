"""Has every GPU watched, by one `Watch` each, and keeps on the board which devices are Unhealthy by their own doing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from ..gpus.devices import NVML_SILENT, Device
from ..metrics import Metrics
from ..offer.board import Board
from ..settings.config import Config
from ..status import Reason
from ..threads import Calls, post
from . import Attention, Health
from .watch import DEADLINE, Watch

log = logging.getLogger(__name__)


class Watches:
    """The watches of this machine's GPUs. `health` is what is known of devices, by UUID."""

    def __init__(
        self,
        nvml: Any,
        board: Board,
        config: Config,
        attention: Attention,
        metrics: Metrics,
        before: Mapping[str, Health],
    ) -> None:
        self._nvml = nvml
        self._calls = Calls()
        self._board = board
        self._config = config
        self._attention = attention
        self._metrics = metrics
        # With what is known from before; copies, because a watch of before may not have ended yet.
        quiet = config.recovery_seconds
        self.health = {uuid: replace(known, quiet=quiet) for uuid, known in before.items()}
        self._watches: dict[str, Watch] = {}  # by the GPU's UUID

    def keep(self, devices: Iterable[Device]) -> None:
        """Have these GPUs watched, with their MIG devices as they are now, and no others."""
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
            watch = Watch(
                self._nvml,
                group,
                self.health,
                attention=self._attention,
                report=self._reporter(),
                metrics=self._metrics,
                interval=self._config.health_interval,
            )
            self._watches[gpu] = watch
            watch.start()

    def trouble(self, devices: Iterable[Device], why: Reason) -> None:
        """Devices that nobody can ask how they are: Unhealthy until their watch finds them well again."""
        for device in devices:
            health = self.health[device.uuid]
            before = health.why
            # Each time: the quiet time counts from the end of the trouble.
            health.probed(why, time.monotonic())
            if before is None:
                self._judge(device.uuid, why)

    def look(self) -> None:
        """See to it that no GPU is offered whose watch hangs in NVML."""
        for watch in self._watches.values():
            if watch.stuck():
                words = f"NVML does not answer within {DEADLINE:.0f} s about this GPU"
                self.trouble(watch.devices, Reason(NVML_SILENT, words))

    @property
    def failing(self) -> bool:
        """Whether NVML gave an error about any GPU when it was last asked."""
        return any(watch.failing for watch in self._watches.values())

    def stop(self) -> None:
        """Ask all to end; waits for none."""
        for watch in self._watches.values():
            watch.stop()

    async def end(self) -> bool:
        """End all; False if one hangs in NVML, which then cannot be started anew."""
        self.stop()
        deadline = self._config.health_interval + 1
        for watch in self._watches.values():
            await self._calls.within(deadline + 1, watch.join, deadline)
        ended = not any(watch.is_alive() for watch in self._watches.values())
        if ended:
            self._watches.clear()
        return ended

    def _reporter(self) -> Callable[[str, Reason | None], None]:
        """How a watch's thread says what it found to this event loop."""
        loop = asyncio.get_running_loop()
        return lambda uuid, why: post(loop, lambda: self._judge(uuid, why))

    def _judge(self, uuid: str, why: Reason | None) -> None:
        if why is None:
            log.info("healthy again", extra={"device": uuid})
        else:
            log.error("unhealthy: %s", why, extra={"device": uuid})
        self._board.judge(uuid, why)
