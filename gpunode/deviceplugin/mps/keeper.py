"""Has a control daemon run for every GPU that is to be shared by MPS, and for no other."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import Any

from ..gpus.devices import Device, count, describe, explain
from ..offer.resources import VOLTA, ClientLimits, Unfit, offers
from ..settings.config import Config
from ..threads import Calls
from .bulletin import Bulletin
from .daemon import Daemon
from .modes import ComputeModes
from .report import State

log = logging.getLogger(__name__)

LOOK_AGAIN = 60.0  # seconds between two searches for GPUs that came or went
DEADLINE = 10.0  # seconds that NVML may take


class Keeper:
    """The daemons of this node. They go on from one `run` to the next; `stop` ends them."""

    def __init__(self, nvml: Any, root: str, modes: ComputeModes, bulletin: Bulletin) -> None:
        self._nvml = nvml
        self._calls = Calls()
        self._root = root
        self._modes = modes
        self._bulletin = bulletin
        self._daemons: dict[str, tuple[Daemon, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()  # of daemons that are wanted no more
        self._states: dict[str, State] = {}

    async def run(self, config: Config) -> None:
        """Keep to this configuration until cancelled. What it does not change goes on undisturbed."""
        while True:
            try:
                wanted = await self._wanted(config)
            except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
                # Those that run are left as they are: their GPUs may be the ones that still answer.
                log.error("cannot ask for the GPUs: %s", explain(error) or "NVML does not answer")  # noqa: TRY400
            except Unfit as error:
                log.error("no MPS control daemon runs: %s", error)  # noqa: TRY400
                await self._have({}, config.health_interval)
            else:
                await self._have(wanted, config.health_interval)
            await asyncio.sleep(LOOK_AGAIN)

    async def stop(self) -> None:
        """End all daemons, and put their GPUs back."""
        await self._have({}, 0.0)

    async def _wanted(self, config: Config) -> Mapping[str, ClientLimits]:
        """ClientLimits by the UUID of each GPU that is shared by MPS. Raises NVMLError, TimeoutError, Unfit."""
        devices: list[Device] = []
        for index in range(await self._calls.within(DEADLINE, count, self._nvml)):
            devices += await self._calls.within(DEADLINE, describe, self._nvml, index)
        units = [
            unit for group in offers(devices, config.mig_strategy, config.shares).values() for unit in group
        ]
        for device in {unit.device.uuid: unit.device for unit in units if unit.mps}.values():
            if (
                device.capability is not None
                and device.capability < VOLTA
                and device.uuid not in self._daemons
            ):
                log.warning(
                    "this GPU is older than the Volta generation: MPS does not enforce limits there, and keeps "
                    "no client from another's memory",
                    extra={"gpu": device.uuid, "product": device.name},
                )
        return {unit.device.uuid: unit.mps for unit in units if unit.mps}

    async def _have(self, wanted: Mapping[str, ClientLimits], interval: float) -> None:
        for gpu in [gpu for gpu, (daemon, _) in self._daemons.items() if wanted.get(gpu) != daemon.limits]:
            _, task = self._daemons.pop(gpu)
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self._states.pop(gpu)
        self._bulletin.tell(self._states)  # first: nobody is to be sent to a daemon that is about to end
        if self._ending:  # also those that an earlier call, cancelled since, was waiting for
            await asyncio.wait(
                self._ending
            )  # not gather, which would cancel them once more: they end in order
        for gpu, limits in wanted.items():
            if gpu not in self._daemons:
                self._states[gpu] = State(limits, "it is being started")
                daemon = Daemon(gpu, limits, self._root, self._modes, self._sayer(gpu, limits), interval)
                self._daemons[gpu] = daemon, asyncio.create_task(daemon.run(), name=f"MPS {gpu}")
        self._bulletin.tell(self._states)

    def _sayer(self, gpu: str, limits: ClientLimits) -> Callable[[str | None], None]:
        def say(why: str | None) -> None:
            self._states[gpu] = State(limits, why)
            self._bulletin.tell(self._states)

        return say
