"""Sees to it that what a container still has by an earlier configuration comes back before it is given again."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Mapping
from pathlib import Path

from ..board import Board
from ..devices import Device
from ..holds import Hold, holds
from ..resources import Unit
from .podresources import Answer, PodResources
from .server import alive

log = logging.getLogger(__name__)

POLL = 5.0  # seconds between two questions while something is held back
PATIENCE = 10.0  # seconds in which a kubelet that has just started begins to tell
RETRY = 0.5  # seconds between two questions meanwhile


class Returns:
    """Asks the kubelet what containers have, whenever what is offered has changed, and goes on while that is in the way.

    What has to wait is on `board`. `run` never ends.
    """

    def __init__(self, pods: PodResources, board: Board, pod_resources: Path, kubelet: Path) -> None:
        self._pods = pods
        self._board = board
        self._sockets = (pod_resources, kubelet)
        self._asking = asyncio.Lock()
        self._open = asyncio.Event()  # the kubelet has to be asked again
        self._devices: tuple[Device, ...] | None = (
            None  # that the offers were made of when they were looked at last
        )
        self._seen: tuple[Answer, ...] = ()  # the last two
        self._since = 0  # answers since the offers changed
        self._in_pod = False

    async def bar(self, offers: Mapping[str, tuple[Unit, ...]]) -> None:
        """Hold back what must not be handed out of these units: before they are offered."""
        changed = self._devices != self._board.devices
        if not changed and self._since:
            return
        async with self._asking:
            answer = await (self._first() if self._devices is None else self._pods.ask())
            if self._counts(answer) and not self._open.is_set():
                self._seen = ()  # of long ago: what it told of may be gone since
            self._devices, self._since = self._board.devices, 0
            await self._look(offers, answer)

    async def run(self) -> None:
        """Ask while something is held back, and give it free when it has come back."""
        while True:
            await self._open.wait()
            await asyncio.sleep(POLL)
            async with self._asking:
                await self._look(self._board.offers, await self._pods.ask())

    async def _first(self) -> Answer | None:
        """Wait until the kubelet tells: it may have been started just now. Not for one that never will."""
        end = time.monotonic() + PATIENCE
        while not self._counts(answer := await self._pods.ask()):
            if self._never() or time.monotonic() >= end:
                if answer is None:
                    log.warning(
                        "GPUs that pods have by an earlier configuration are not held back, as the kubelet does not "
                        "tell (before Kubernetes 1.20 it cannot): drain this node before its GPUs are shared in another way"
                    )
                break
            await asyncio.sleep(RETRY)
        return answer

    def _never(self) -> bool:
        """Whether the kubelet that runs now will not tell, however often it is asked."""
        theirs, kubelet = self._sockets
        return self._pods.unknown or (not theirs.exists() and alive(kubelet))

    async def _look(self, offers: Mapping[str, tuple[Unit, ...]], answer: Answer | None) -> None:
        if answer is not None and self._counts(answer):
            self._seen = (*self._seen[-1:], answer)
            self._since += 1
        # Gone is what two answers do not have: a kubelet that starts lists its pods one after the other.
        holders = dict.fromkeys(holder for one in self._seen for holder in one.holders)
        before = self._board.holds
        found = await asyncio.to_thread(holds, offers, self._board.devices, holders, before)
        _tell(before, found)
        self._board.hold(found)
        # Asked again soon: after the first answer, and where there is none yet.
        if found or self._since == 1 or (self._since == 0 and not self._never()):
            self._open.set()
        else:
            self._open.clear()

    def _counts(self, answer: Answer | None) -> bool:
        """Whether the kubelet knows its pods: one that has started anew does not until the API server has told it.

        It cannot have forgotten the pod that this plugin runs in; elsewhere, as on the host itself, any pod will do.
        """
        if answer is None:
            return False
        own = socket.gethostname() in answer.pods
        self._in_pod = self._in_pod or own
        return own or (bool(answer.pods) and not self._in_pod)


def _tell(before: tuple[Hold, ...], after: tuple[Hold, ...]) -> None:
    """Log what is new."""
    known = {(hold.resource, hold.device) for hold in before}
    left = {(hold.resource, hold.device) for hold in after}
    for hold in after:
        if (hold.resource, hold.device) not in known:
            fields = {"resource": hold.resource, "device": hold.device, "units": len(hold.ids)}
            log.warning("held back: %s", hold.why, extra=fields)
    for hold in before:
        if (hold.resource, hold.device) not in left:
            log.info("held back no longer", extra={"resource": hold.resource, "device": hold.device})
