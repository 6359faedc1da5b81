"""Discovers GPUs through NVML and keeps the node's state current: one health watch per GPU, a rescan every 60 s."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from gpunode.contract.config import Config
from gpunode.contract.offer import UNCUT, CannotOffer, Device, Unit, offers, uncut_gpus, warnings
from gpunode.contract.status import LAYOUT, Reason

from . import limits
from .cdi import CdiUnavailable, Specs
from .cordon import Cordons
from .gpus import NVML_SILENT, Described, Handles, describe, describe_all, read_links, reason_of, text
from .kubelet.reclaim import Reclaim
from .mps.report import Follower
from .state import NodeState
from .threads import Calls, inside
from .watch import DEADLINE, GpuWatches

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
        obstacles = dict(zip(shared, asked, strict=True))
        if obstacles == self._state.memory_limits:
            return
        self._state.set_memory_limits(obstacles)
        for why in dict.fromkeys(obstacles.values()):
            which = ",".join(shared[uuid].index for uuid in shared if obstacles[uuid] == why)
            if why is None:
                log.info("the driver enforces memory limits", extra={"gpus": which})
            else:
                message = (
                    "the driver does not enforce memory limits, so containers may exceed their share: %s"
                )
                log.warning(message, why, extra={"gpus": which})

    async def _obstacles(self, uuid: str) -> str | None:
        """Why the driver does not enforce shares of this GPU's memory; None if it does."""
        cgroup2 = limits.only_cgroup2()
        try:
            own = limits.CGROUPS if cgroup2 else None
            driver = await self._calls.within(DEADLINE, limits.refusal, self._handles, uuid, own)
            hook = self._specs is not None and limits.has_hook(
                await asyncio.to_thread(self._specs.edits, uuid)
            )
        except (asyncio.TimeoutError, CdiUnavailable) as error:
            return str(error) or "NVML does not answer"
        return limits.obstacles(driver=driver, cgroup2=cgroup2, cdi=self._specs is not None, hook=hook)


START_DEADLINE = 60.0  # seconds; NVML may wake sleeping GPUs when it starts
RETRY = 30.0  # seconds between two attempts to start NVML
RESCAN = 60.0  # seconds between two scans for devices
TICK = 5.0  # seconds between two checks of the CDI specification


class NvmlUnavailable(Exception):
    """NVML cannot be used; the message has the reason and the fix."""


class Discovery:
    """Writes this machine's GPUs into `state`. `run` continues until it is cancelled."""

    def __init__(
        self,
        handles: Handles,
        state: NodeState,
        config: Config,
        watches: GpuWatches,
        specs: Specs | None,
        mps: Follower | None = None,
        reclaim: Reclaim | None = None,
        cordons: Cordons | None = None,
    ) -> None:
        self._handles = handles
        self._nvml = handles.nvml
        self._calls = Calls()
        self._limits = MemoryLimits(handles, state, specs, self._calls)
        self._state = state
        self._config = config
        self._watches = watches
        self._devices: tuple[Device, ...] = ()  # found by the last scan
        self._linked: frozenset[str] = frozenset()  # UUIDs of the GPUs whose links are known
        self._uncounted = False  # NVML could not count the GPUs
        self._offers: Mapping[str, tuple[Unit, ...]] = {}
        self._offered: Mapping[str, Device] = {}  # by UUID
        self._warned: dict[str, str] = {}
        self._warnings: Sequence[str] = ()  # of the last scan
        self._specs = specs
        self._mps = mps
        self._reclaim = reclaim
        self._cordons = cordons

    async def run(self) -> None:
        """Raises NvmlUnavailable and CannotOffer if the configuration makes them fatal."""
        await self._start()
        try:
            broken = 0  # rounds in a row
            while True:
                await self._rescan()
                await self._wait(RESCAN)
                broken = broken + 1 if self._broken() else 0
                if broken in (1, 2, 4, 8) or broken % 16 == 15:
                    await self._restart()
        finally:
            self._watches.stop()

    async def _start(self) -> None:
        """Start NVML; retries without end, or raises NvmlUnavailable."""
        while True:
            try:
                self._state.driver = await self._calls.within(START_DEADLINE, _init, self._nvml)
                log.info("NVML started", extra={"driver": self._state.driver})
                return
            except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
                why = _why(error)
            if self._config.fail_on_init_error and not self._devices:
                raise NvmlUnavailable(why.words) from None
            self._watches.set_unhealthy(self._devices, why)
            self._state.set_problem(why)
            self._warn("NVML", f"no GPU can be offered: {why}; trying again every {RETRY:.0f} s")
            await asyncio.sleep(RETRY)

    async def _restart(self) -> None:
        """Restart NVML, which may keep its view of a lost GPU till then; not while a call is inside it."""
        if not await self._watches.end():
            return
        self._handles.close()  # so that no call enters it any more
        if not inside():
            await self._shut_down()
            await self._start()
        self._handles.open()

    async def _shut_down(self) -> None:
        try:
            await self._calls.within(START_DEADLINE, self._nvml.nvmlShutdown)
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            log.warning("NVML did not shut down properly: %s", _why(error))

    async def _rescan(self) -> None:
        """Publish the devices that NVML lists now; a known GPU that does not answer keeps its last description."""
        unidentified: dict[str, Reason] = {}
        try:
            number = await self._calls.within(DEADLINE, self._nvml.nvmlDeviceGetCount)
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            self._uncounted, why = True, _why(error)
            why = Reason(why.code, f"cannot count the GPUs: {why}")
            self._warn("NVML", why.words)
            if not self._devices:
                self._state.set_problem(why)
            return
        self._uncounted = False
        described = await self._describe_all(number, unidentified)
        devices = [device for group in described for device in group]
        self._state.set_unidentified(unidentified)
        if devices:
            self._log_resolved("NVML")
        else:
            self._warn("NVML", f"no GPU on this node; scanning again every {RESCAN:.0f} s")
        await self._read_links(devices)
        for device in (device for device in devices if device not in self._devices):
            fields = {"device": device.uuid, "index": device.index, "product": device.name, "bus": device.bus}
            log.info("found %s", device.profile or "GPU", extra={**fields, "numa": device.numa})
        for device in (device for device in self._devices if device not in devices):
            log.warning(
                "NVML no longer lists this device", extra={"device": device.uuid, "index": device.index}
            )
        same = self._devices == tuple(devices)
        self._devices = self._state.devices = tuple(devices)
        if self._cordons is not None:
            self._cordons.apply()
        # Before the slow steps below: an Xid that is missed is not repeated.
        self._watches.keep(devices)
        config = self._config
        try:
            if not same or not self._offers:
                self._offers, self._offered = {}, {}
                self._offers, self._offered = await asyncio.to_thread(_offers, devices, config)
            now = self._offers
            await self._refresh_cdi()  # first: a device needs its CDI name before it is allocated
            await self._limits.check(now)
            if self._mps is not None:
                self._mps.exclude(now)
            if self._reclaim is not None:
                await self._reclaim.reserve(now)
            self._state.offer(now)
            self._state.set_problem(None)
            self._log_resolved("offers")
            self._publish_not_offered(devices)
        except CannotOffer as error:
            if self._config.fail_on_init_error:
                raise
            self._state.offer({})
            self._state.set_not_offered({})
            self._state.set_problem(Reason(LAYOUT, str(error)))
            self._warn("offers", f"nothing is offered: {error}")

    def _publish_not_offered(self, devices: Sequence[Device]) -> None:
        """Log new and resolved warnings; publish the GPUs of which nothing is offered."""
        config = self._config
        now = warnings(devices, config.mig_strategy, config.shares, config.memory)
        for what in now:
            self._warn(what, what)
        for what in self._warnings:
            if what not in now:
                self._log_resolved(what)
        self._warnings = now
        self._state.set_not_offered(
            {gpu.uuid: Reason("mig-uncut", UNCUT) for gpu in uncut_gpus(devices, config.mig_strategy)}
        )

    async def _refresh_cdi(self) -> None:
        """Name the offered devices in the CDI specification; exclude those that it cannot name until the next try."""
        if self._specs is None:
            return
        by_index = self._config.device_id_strategy == "index"
        excluded = await asyncio.to_thread(
            self._specs.refresh,
            {uuid: device.index if by_index else uuid for uuid, device in self._offered.items()},
        )
        self._state.exclude("CDI", {uuid: Reason("cdi", why) for uuid, why in excluded.items()})
        if excluded:
            self._warn("CDI", "; ".join(dict.fromkeys(excluded.values())))
        else:
            self._log_resolved("CDI")
        for missing in self._specs.features(self._config.features)[1]:
            self._warn(missing.partition(":")[0], missing)

    async def _read_links(self, devices: list[Device]) -> None:
        """Publish how the GPUs are connected; read again only when the set of GPUs has changed, or after a failure."""
        gpus = [device for device in devices if device.profile is None]
        linked = frozenset(gpu.uuid for gpu in gpus)
        if linked == self._linked:
            return
        try:
            self._state.links = await self._calls.within(DEADLINE, read_links, self._handles, tuple(gpus))
            self._linked = linked
            self._log_resolved("links")
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            self._warn("links", f"cannot read how the GPUs are connected: {_why(error)}")

    async def _describe_all(self, number: int, unidentified: dict[str, Reason]) -> list[list[Device]]:
        """By one thread where all answer soon. Else, and at the start, when NVML may wake sleeping GPUs, side by side."""
        scanned: Mapping[int, Described] = {}
        if self._devices:
            with contextlib.suppress(asyncio.TimeoutError):
                scanned = await self._calls.within(DEADLINE / 5, describe_all, self._handles, number)
        described = (self._describe(index, scanned.get(index), unidentified) for index in range(number))
        groups = await asyncio.gather(*described)
        answering = {device.gpu for group in groups if isinstance(group, list) for device in group}
        return [
            self._last_known(index, group, answering, unidentified) if isinstance(group, Reason) else group
            for index, group in enumerate(groups)
        ]

    async def _describe(
        self, index: int, described: Described | None, unidentified: dict[str, Reason]
    ) -> list[Device] | Reason:
        """The GPU and its MIG devices, or why it does not answer."""
        try:
            if described is None:
                described = await self._calls.within(DEADLINE, describe, self._handles, index)
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            return _why(error)
        self._log_resolved(f"GPU {index}")
        if self._config.mig_strategy != "none" and described.refused:
            unidentified |= described.refused
            names = ", ".join(described.refused)
            self._warn(
                f"GPU {index}",
                f"MIG devices {names} are not offered: {next(iter(described.refused.values()))}",
            )
        return list(described.devices)

    def _last_known(
        self, index: int, why: Reason, answering: Collection[str], unidentified: dict[str, Reason]
    ) -> list[Device]:
        """What was there at the last scan, but no GPU that answers elsewhere, as after a start of NVML with other indexes."""
        before = [device for device in self._devices if device.gpu not in answering]
        known = [device for device in before if device.index.partition(":")[0] == str(index)]
        if not known:  # a known one has a watch, which reports this
            unidentified[str(index)] = why
            self._warn(f"GPU {index}", f"GPU {index} is not offered: {why}")
        return known

    async def _wait(self, seconds: float) -> None:
        """Wait for so many seconds; meanwhile follow the toolkit's CDI specification."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            await asyncio.sleep(min(TICK, left) if self._specs else left)
            await self._refresh_cdi()

    def _broken(self) -> bool:
        """True if NVML answers about no GPU. A restart for one would miss the Xids of the others."""
        gpus = bool(self._devices or self._state.unidentified)
        return self._uncounted or (gpus and not self._watches.answering)

    def _warn(self, about: str, what: str) -> None:
        """Log a problem of `about` once, not at every scan."""
        if self._warned.get(about) != what:
            self._warned[about] = what
            log.warning("%s", what)

    def _log_resolved(self, about: str) -> None:
        """Log that the problem of `about` is resolved, if there was one."""
        if what := self._warned.pop(about, ""):
            log.info("resolved: %s", what)


def _init(nvml: Any) -> str:
    """Start NVML unless an earlier configuration did: NVML counts starts, and only as many shutdowns end it. The driver's version."""
    try:
        nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == nvml.NVML_ERROR_UNINITIALIZED:
            nvml.nvmlInit()
    return text(nvml.nvmlSystemGetDriverVersion())


def _offers(
    devices: Sequence[Device], config: Config
) -> tuple[Mapping[str, tuple[Unit, ...]], Mapping[str, Device]]:
    """Units by resource, and their devices by UUID. Slow: there may be tens of thousands of units."""
    by_resource = offers(devices, config.mig_strategy, config.shares, config.memory)
    return by_resource, {unit.device.uuid: unit.device for units in by_resource.values() for unit in units}


def _why(error: Exception) -> Reason:
    if isinstance(error, asyncio.TimeoutError):
        return Reason(NVML_SILENT, "NVML does not answer")
    return reason_of(error)
