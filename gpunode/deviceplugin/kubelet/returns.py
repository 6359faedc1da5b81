"""Sees to it that what a container still has by an earlier configuration comes back before it is given again."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path

from ..gpus.devices import Device
from ..offer.board import Board
from ..offer.checkpoint import NAME, Record, named, records, untold
from ..offer.holds import Hold, Holder, holds
from ..offer.resources import Unit
from ..status import Pod
from .podresources import PodResources
from .sockets import Identity, alive, identity

log = logging.getLogger(__name__)

POLL = 5.0  # seconds between two looks while something is held back
PATIENCE = 10.0  # seconds in which a kubelet that has just started makes its other socket
SOON = 1.0  # seconds after which the kubelet may have written its record anew


class Returns:
    """Looks at what containers have whenever what is offered has changed, and goes on while that is in the way.

    The kubelet's record has all of it, and may have pods that have ended. The kubelet forgets those when it is asked who
    has what, and writes its record anew when it gets a list: so it is asked, and sent the lists once more, while only the
    record speaks for a pod. What has to wait is on `board`. `run` never ends.
    """

    def __init__(self, pods: PodResources, board: Board, pod_resources: Path, kubelet: Path) -> None:
        self._pods = pods
        self._board = board
        self._sockets = (pod_resources, kubelet)
        self._record = kubelet.parent / NAME
        self._looking = asyncio.Lock()
        self._open = asyncio.Event()  # it has to be looked at again
        # That the offers were made of when they were looked at last.
        self._devices: tuple[Device, ...] | None = None
        self._told: tuple[Holder, ...] = ()  # by the kubelet, when it last did
        self._untold: tuple[Record, ...] = ()  # what only the record had, when it was read last
        self._old: Identity | None = None  # the record that was there before the kubelet was asked
        self._names: Mapping[str, str] = {}  # of pods, by UID
        self._pause = POLL
        self._said: set[str] = set()

    async def bar(self, offers: Mapping[str, tuple[Unit, ...]]) -> None:
        """Hold back what must not be handed out of these units: before they are offered."""
        if self._devices == self._board.devices:
            return
        async with self._looking:
            self._devices, self._old = self._board.devices, identity(self._record)
            await self._look(offers)
            self._open.set()  # what was given at this very moment is known the next time

    async def run(self) -> None:
        """Look while something is held back, and give it free when it has come back."""
        while True:
            await self._open.wait()
            await asyncio.sleep(self._pause)
            async with self._looking:
                await self._look(self._board.offers)

    async def _look(self, offers: Mapping[str, tuple[Unit, ...]]) -> None:
        told = await self._pods.ask()
        silent = told is None and self._never()
        holders = () if silent else tuple(await self._holders(told))
        before = self._board.holds
        found = await asyncio.to_thread(holds, offers, self._board.devices, holders, before)
        _tell(before, found)
        self._board.hold(found)
        if found and self._untold:
            self._board.repeat()
        if silent:
            self._warn(
                "GPUs that pods have by an earlier configuration are not held back, as the kubelet does not tell "
                "(before Kubernetes 1.20 it cannot): drain this node before its GPUs are shared in another way"
            )
        if found or (told is None and not silent):
            self._open.set()
        else:
            self._open.clear()

    def _never(self) -> bool:
        """Whether the kubelet that runs now will not tell, however often it is asked.

        Its record alone will not do: it would have pods that ended long ago, until the next one is given a device.
        """
        theirs, kubelet = self._sockets
        try:
            age = time.time() - kubelet.stat().st_mtime
        except OSError:
            return False
        return self._pods.unknown or (age > PATIENCE and not theirs.exists() and alive(kubelet))

    async def _holders(self, told: tuple[Holder, ...] | None) -> Iterator[Holder]:
        """Who has what, by what the kubelet told (None: nothing just now) and by its record."""
        self._told = self._told if told is None else told
        sure = identity(self._record) != self._old  # one of long ago may have pods that have ended since
        try:
            found = await asyncio.to_thread(records, self._record)
        except (OSError, ValueError) as error:
            self._warn(f"what init containers have is not held back: {self._record}: {error}")
            found = ()
        pods = frozenset(one.pod for one in found)
        names = {**self._names, **named(found, self._told)}
        self._names = {uid: name for uid, name in names.items() if uid in pods}
        before, self._untold = self._untold, untold(found, self._told)
        self._pause = POLL if sure and self._untold == before else SOON
        return chain(self._told, (_holder(one, self._names, sure=sure) for one in self._untold))

    def _warn(self, words: str) -> None:
        """Once, not at every look."""
        if words not in self._said:
            self._said.add(words)
            log.warning("%s", words)


def _holder(one: Record, names: Mapping[str, str], *, sure: bool) -> Holder:
    """As the kubelet would tell."""
    pod = Pod(names[one.pod]) if one.pod in names else Pod(uid=one.pod)
    return Holder(pod, one.container, one.resource, tuple(sorted(one.ids)), sure)


def _tell(before: tuple[Hold, ...], after: tuple[Hold, ...]) -> None:
    """Log what is new."""
    known = {(hold.resource, hold.device) for hold in before if hold.sure}
    left = {(hold.resource, hold.device) for hold in after}
    for hold in after:
        if hold.sure and (hold.resource, hold.device) not in known:
            fields = {"resource": hold.resource, "device": hold.device, "units": len(hold.ids)}
            log.warning("held back: %s", hold.why, extra=fields)
    for resource, device in known - left:
        log.info("held back no longer", extra={"resource": resource, "device": device})
