"""Keeps the board true: starts NVML, finds the devices, has every GPU watched, and looks again now and then."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from typing import Any

from .cdi import CdiUnavailable, Specs
from .gpus import limits
from .gpus.devices import NVML_SILENT, Device, count, describe, reason, text
from .gpus.links import links
from .health.watch import DEADLINE
from .health.watches import Watches
from .kubelet.returns import Returns
from .mps.follow import Follower
from .offer.board import Board
from .offer.resources import UNCUT, Unfit, Unit, left_out, offers, uncut
from .settings.config import Config
from .status import LAYOUT, Reason
from .threads import Calls

log = logging.getLogger(__name__)

START_DEADLINE = 60.0  # seconds; NVML may wake sleeping GPUs when it starts
RETRY = 30.0  # seconds between two tries to get at NVML
LOOK_AGAIN = 60.0  # seconds between two searches for devices that came or went
TICK = 5.0  # seconds between two looks at whether a watch is stuck


class NvmlUnavailable(Exception):
    """NVML cannot be used; says why and what to do."""


class Node:
    """The GPUs of this machine, kept up to date on `board`. `run` goes on until it is cancelled."""

    def __init__(
        self,
        nvml: Any,
        board: Board,
        config: Config,
        watches: Watches,
        specs: Specs | None,
        mps: Follower | None = None,
        returns: Returns | None = None,
    ) -> None:
        self._nvml = nvml
        self._calls = Calls()
        self._board = board
        self._config = config
        self._watches = watches
        self._devices: tuple[Device, ...] = ()  # that were found last
        self._uncounted = False  # NVML did not say how many GPUs there are
        self._offers: Mapping[str, tuple[Unit, ...]] = {}  # made of them
        self._given: Mapping[str, Device] = {}  # those that are offered, by UUID
        self._said: dict[str, str] = {}
        self._left: Sequence[str] = ()  # what came to nothing at the last look
        self._specs = specs
        self._mps = mps
        self._returns = returns

    async def run(self) -> None:
        """Raises NvmlUnavailable, and Unfit, if the configuration wants them to be fatal."""
        await self._start()
        try:
            broken = 0  # rounds in a row
            while True:
                await self._look()
                await self._tend(LOOK_AGAIN)
                broken = broken + 1 if self._broken() else 0
                # NVML keeps to its view of a lost GPU until it is started anew. Ever more seldom, because the
                # Xids of the other GPUs are not heard meanwhile.
                if (broken in (1, 2, 4, 8) or broken % 16 == 15) and await self._watches.end():
                    await self._shut_down()
                    await self._start()
        finally:
            self._watches.stop()

    async def _start(self) -> None:
        """Start NVML, however long that takes, or raise NvmlUnavailable."""
        while True:
            try:
                await self._calls.within(START_DEADLINE, _init, self._nvml)
                version = await self._calls.within(START_DEADLINE, self._nvml.nvmlSystemGetDriverVersion)
                self._board.driver = text(version)
                log.info("NVML started", extra={"driver": version})
                return
            except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
                why = _why(error)
            if self._config.fail_on_init_error and not self._devices:
                raise NvmlUnavailable(why.words) from None
            self._watches.trouble(self._devices, why)
            self._board.lack(why)
            self._say("NVML", f"no GPU can be offered: {why}; trying again every {RETRY:.0f} s")
            await asyncio.sleep(RETRY)

    async def _shut_down(self) -> None:
        try:
            await self._calls.within(START_DEADLINE, self._nvml.nvmlShutdown)
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            log.warning("NVML did not shut down properly: %s", _why(error))

    async def _look(self) -> None:
        """Find the devices and put them on the board; a GPU that does not answer stays as it was known."""
        found: list[Device] = []
        mute: dict[str, Reason] = {}
        try:
            number = await self._calls.within(DEADLINE, count, self._nvml)
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            self._uncounted, why = True, _why(error)
            why = Reason(why.code, f"cannot count the GPUs: {why}")
            self._say("NVML", why.words)
            if not self._devices:
                self._board.lack(why)
            return
        self._uncounted = False
        for index in range(number):
            found += await self._describe(index, mute)
        self._board.miss(mute)
        if found:
            self._unsay("NVML")
        else:
            self._say("NVML", f"no GPU on this node; looking again every {LOOK_AGAIN:.0f} s")
        await self._connections(found)
        for device in (one for one in found if one not in self._devices):
            fields = {"device": device.uuid, "index": device.index, "product": device.name, "bus": device.bus}
            log.info("found %s", device.profile or "GPU", extra={**fields, "numa": device.numa})
        for device in (one for one in self._devices if one not in found):
            log.warning("gone", extra={"device": device.uuid, "index": device.index})
        same = self._devices == tuple(found)
        self._devices = self._board.devices = tuple(found)
        # Before all that takes its time: an Xid that nobody hears does not come again.
        self._watches.keep(found)
        config = self._config
        try:
            if not same or not self._offers:
                self._offers, self._given = {}, {}
                self._offers, self._given = await asyncio.to_thread(_offers, found, config)
            now = self._offers
            await self._specify()  # first: a device is to have its CDI name before it is given to anybody
            await self._see_limits(now)
            if self._mps is not None:
                self._mps.bar(now)
            if self._returns is not None:
                await self._returns.bar(now)
            self._board.offer(now)
            self._board.lack(None)
            self._unsay("offers")
            self._leave(found)
        except Unfit as error:
            if self._config.fail_on_init_error:
                raise
            self._board.offer({})
            self._board.leave({})
            self._board.lack(Reason(LAYOUT, str(error)))
            self._say("offers", f"nothing is offered: {error}")

    def _leave(self, found: Sequence[Device]) -> None:
        """Say what comes to nothing, and what does no longer."""
        config = self._config
        left = left_out(found, config.mig_strategy, config.shares, config.memory)
        for what in left:
            self._say(what, what)
        for what in self._left:
            if what not in left:
                self._unsay(what)
        self._left = left
        self._board.leave({gpu.uuid: Reason("mig-uncut", UNCUT) for gpu in uncut(found, config.mig_strategy)})

    async def _specify(self) -> None:
        """Have the CDI specification name what is offered; what it cannot name is Unhealthy, and is tried again."""
        if self._specs is None:
            return
        by_index = self._config.device_id_strategy == "index"
        barred = await asyncio.to_thread(
            self._specs.refresh,
            {uuid: device.index if by_index else uuid for uuid, device in self._given.items()},
        )
        self._board.bar("CDI", {uuid: Reason("cdi", why) for uuid, why in barred.items()})
        if barred:
            self._say("CDI", "; ".join(dict.fromkeys(barred.values())))
        else:
            self._unsay("CDI")
        for missing in self._specs.features(self._config.features)[1]:
            self._say(missing.partition(":")[0], missing)

    async def _see_limits(self, offered: Mapping[str, tuple[Unit, ...]]) -> None:
        """Find out of which GPUs shared by memory the driver can hold containers to their part."""
        shared = {unit.device.uuid: unit.device for units in offered.values() for unit in units if unit.mib}
        found = {uuid: await self._unlimited(uuid) for uuid in shared}
        if found == self._board.limits:
            return
        self._board.limit(found)
        for why in dict.fromkeys(found.values()):
            which = ",".join(shared[uuid].index for uuid in shared if found[uuid] == why)
            if why is None:
                log.info("the driver holds containers to their memory", extra={"gpus": which})
            else:
                words = "the driver does not hold containers to their memory, which they may exceed: %s"
                log.warning(words, why, extra={"gpus": which})

    async def _unlimited(self, uuid: str) -> str | None:
        """Why the driver does not hold containers to their part of this GPU; None if it does."""
        cgroup2 = limits.unified()
        try:
            own = limits.CGROUPS if cgroup2 else None
            driver = await self._calls.within(DEADLINE, limits.refusal, self._nvml, uuid, own)
            hook = self._specs is not None and limits.hooked(await asyncio.to_thread(self._specs.edits, uuid))
        except (asyncio.TimeoutError, CdiUnavailable) as error:
            return str(error) or "NVML does not answer"
        return limits.obstacles(driver=driver, cgroup2=cgroup2, cdi=self._specs is not None, hook=hook)

    async def _connections(self, found: list[Device]) -> None:
        """How well the GPUs are connected, asked again only when they are not the same as before."""
        gpus = [device for device in found if device.profile is None]
        if {gpu.uuid for gpu in gpus} == {gpu.uuid for gpu in self._devices if gpu.profile is None}:
            return
        try:
            self._board.links = await self._calls.within(DEADLINE, links, self._nvml, tuple(gpus))
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            self._board.links = {}
            log.warning("how the GPUs are connected is not known: %s", _why(error))

    async def _describe(self, index: int, mute: dict[str, Reason]) -> list[Device]:
        try:
            found = list(await self._calls.within(DEADLINE, describe, self._nvml, index))
            self._unsay(f"GPU {index}")
            return found
        except (asyncio.TimeoutError, self._nvml.NVMLError) as error:
            known = [device for device in self._devices if device.index.partition(":")[0] == str(index)]
            if not known:  # else its watch has seen it too
                mute[str(index)] = _why(error)
                self._say(f"GPU {index}", f"GPU {index} is not offered: {_why(error)}")
            return known

    async def _tend(self, seconds: float) -> None:
        """For so long, see to it that a GPU whose watch hangs in NVML is not offered."""
        for _ in range(max(1, round(seconds / TICK))):
            await asyncio.sleep(min(TICK, seconds))
            await self._specify()
            self._watches.look()

    def _broken(self) -> bool:
        return self._uncounted or bool(self._board.mute) or self._watches.failing

    def _say(self, about: str, what: str) -> None:
        """Log once, not at every look."""
        if self._said.get(about) != what:
            self._said[about] = what
            log.warning("%s", what)

    def _unsay(self, about: str) -> None:
        """What was said of it is so no longer; said again when it is."""
        if what := self._said.pop(about, ""):
            log.info("no longer so: %s", what)


def _init(nvml: Any) -> None:
    """Start NVML, unless it has been by an earlier configuration: it counts its starts, and only as many ends end it."""
    try:
        nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        if getattr(error, "value", None) == nvml.NVML_ERROR_UNINITIALIZED:
            nvml.nvmlInit()


def _offers(
    found: Sequence[Device], config: Config
) -> tuple[Mapping[str, tuple[Unit, ...]], Mapping[str, Device]]:
    """What to offer, and the devices of it by UUID. Beside the event loop: it may be tens of thousands of units."""
    made = offers(found, config.mig_strategy, config.shares, config.memory)
    return made, {unit.device.uuid: unit.device for units in made.values() for unit in units}


def _why(error: Exception) -> Reason:
    if isinstance(error, asyncio.TimeoutError):
        return Reason(NVML_SILENT, "NVML does not answer")
    return reason(error)
