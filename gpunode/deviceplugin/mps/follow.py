"""The plugin's side: a share by MPS is offered only while its GPU's control daemon serves with the right limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from ..offer.board import Board
from ..offer.resources import Unit
from ..status import Reason
from .report import Report, decode, why_not

log = logging.getLogger(__name__)

RETRY = 1.0  # seconds between two tries to reach the process
LONGEST = 1024 * 1024  # bytes of a report
ABSENT = Reason("mps-absent", "the process of the MPS control daemons does not run on this node")


class Follower:
    """Follows the reports on the socket at `path` and bars on `board` what cannot be served. `run` never ends."""

    def __init__(self, path: Path, board: Board) -> None:
        self._path = path
        self._board = board
        self._report: Report | None = None
        self._barred: Mapping[str, Reason] = {}

    def bar(self, offers: Mapping[str, Sequence[Unit]]) -> None:
        """Say on the board which of these cannot be served just now, and why: before they are offered."""
        barred = {
            unit.device.uuid: why
            for units in offers.values()
            for unit in units
            if unit.mps is not None
            and (why := ABSENT if self._report is None else why_not(self._report, unit.device.uuid, unit.mps))
        }
        for gpu, why in barred.items():
            if self._barred.get(gpu) != why:
                log.warning("not offered: %s", why, extra={"device": gpu})
        for gpu in self._barred.keys() - barred.keys():
            log.info("its MPS control daemon is ready", extra={"device": gpu})
        self._barred = barred
        self._board.bar("MPS", barred)

    async def run(self) -> None:
        """Follow the reports, over all restarts of who makes them."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path, limit=LONGEST)
                try:
                    while line := await reader.readline():
                        self._take(decode(line))
                finally:
                    writer.close()
            except OSError:
                pass  # nobody listens, or no longer
            except ValueError as error:  # another version of it, which is replaced sooner or later
                log.warning("%s", error)
            self._take(None)
            await asyncio.sleep(RETRY)

    def _take(self, report: Report | None) -> None:
        self._report = report
        self.bar(self._board.offers)
