"""Runs one control daemon for each GPU that the configuration shares by MPS."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from gpunode.contract.config import Config
from gpunode.contract.offer import VOLTA, CannotOffer, ClientLimits, Device, offers

from ..gpus.devices import count, describe, explain
from ..gpus.handles import Handles
from ..threads import Calls
from .daemon import Daemon
from .modes import ComputeModes
from .report import DaemonState
from .report_server import ReportServer

log = logging.getLogger(__name__)

RESCAN = 60.0  # seconds between two scans for GPUs
DEADLINE = 10.0  # seconds for one NVML call


class Supervisor:
    """The daemons of this node. They continue between two calls of `run`; `stop` ends them."""

    def __init__(self, handles: Handles, root: str, modes: ComputeModes, report_server: ReportServer) -> None:
        self._handles = handles
        self._nvml = handles.nvml
        self._calls = Calls()
        self._root = root
        self._modes = modes
        self._report_server = report_server
        self._daemons: dict[str, tuple[Daemon, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()  # of daemons that are no longer needed
        self._states: dict[str, DaemonState] = {}
        self._known: dict[int, tuple[Device, ...]] = {}  # by the GPU's index
        self._problems: dict[int, str] = {}  # likewise; already logged

    async def run(self, config: Config) -> None:
        """Apply this configuration until cancelled. Daemons that it does not change are not disturbed."""
        while True:
            try:
                wanted = await self._wanted(config)
            except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
                # Running daemons stay: their GPUs may still answer.
                log.error("cannot list the GPUs: %s", explain(error) or "NVML does not answer")  # noqa: TRY400
            except CannotOffer as error:
                log.error("no MPS control daemon runs: %s", error)  # noqa: TRY400
                await self._apply({}, config.health_interval)
            else:
                await self._apply(wanted, config.health_interval)
            await asyncio.sleep(RESCAN)

    async def stop(self) -> None:
        """End all daemons, and restore their GPUs' compute mode."""
        await self._apply({}, 0.0)

    async def _wanted(self, config: Config) -> Mapping[str, ClientLimits]:
        """ClientLimits by the UUID of each GPU that is shared by MPS. Raises NVMLError, TimeoutError, CannotOffer."""
        number = await self._calls.within(DEADLINE, count, self._nvml)
        described = await asyncio.gather(*(self._describe(index) for index in range(number)))
        devices = [device for found in described for device in found]
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

    async def _describe(self, index: int) -> tuple[Device, ...]:
        """The GPU and its MIG devices; the last known ones while NVML does not answer about it."""
        try:
            described = await self._calls.within(DEADLINE, describe, self._handles, index)
            self._known[index] = described.devices
            self._problems.pop(index, None)
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            why = explain(error) or "NVML does not answer"
            if self._problems.get(index) != why:
                log.error("GPU %d: %s", index, why)  # noqa: TRY400
            self._problems[index] = why
        return self._known.get(index, ())

    async def _apply(self, wanted: Mapping[str, ClientLimits], interval: float) -> None:
        for gpu in [gpu for gpu, (daemon, _) in self._daemons.items() if wanted.get(gpu) != daemon.limits]:
            _, task = self._daemons.pop(gpu)
            task.cancel()
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)
            self._states.pop(gpu)
        self._report_server.publish(
            self._states
        )  # first: no client may connect to a daemon that is about to end
        if self._ending:  # including those of an earlier, cancelled call
            await asyncio.wait(
                self._ending
            )  # not gather, which would cancel them once more: they end in order
        for gpu, limits in wanted.items():
            if gpu not in self._daemons:
                self._states[gpu] = DaemonState(limits, "it is being started")
                daemon = Daemon(gpu, limits, self._root, self._modes, self._reporter(gpu, limits), interval)
                self._daemons[gpu] = daemon, asyncio.create_task(daemon.run(), name=f"MPS {gpu}")
        self._report_server.publish(self._states)

    def _reporter(self, gpu: str, limits: ClientLimits) -> Callable[[str | None], None]:
        def report(why: str | None) -> None:
            self._states[gpu] = DaemonState(limits, why)
            self._report_server.publish(self._states)

        return report
