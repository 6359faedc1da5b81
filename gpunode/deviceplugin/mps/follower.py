"""The plugin's side of MPS: shares are Healthy only while their GPU's control daemon serves with the right limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpunode.contract.offer import Unit
from gpunode.contract.status import Reason

from ..offer.state import NodeState
from .report import Report, decode, why_not

log = logging.getLogger(__name__)

RETRY = 1.0  # seconds between two connection attempts
LONGEST = 1024 * 1024  # bytes of a report
ABSENT = Reason("mps-absent", "the process of the MPS control daemons does not run on this node")


class Follower:
    """Follows the reports on the socket at `path` and excludes devices that cannot be served. `run` never ends."""

    def __init__(self, path: Path, state: NodeState) -> None:
        self._path = path
        self._state = state
        self._report: Report | None = None
        self._excluded: Mapping[str, Reason] = {}

    def exclude(self, offers: Mapping[str, Sequence[Unit]]) -> None:
        """Exclude the devices of these units that cannot be served now. Call it before they are offered."""
        excluded = {
            unit.device.uuid: why
            for units in offers.values()
            for unit in units
            if unit.mps is not None
            and (why := ABSENT if self._report is None else why_not(self._report, unit.device.uuid, unit.mps))
        }
        for gpu, why in excluded.items():
            if self._excluded.get(gpu) != why:
                log.warning("not offered: %s", why, extra={"device": gpu})
        for gpu in self._excluded.keys() - excluded.keys():
            log.info("its MPS control daemon is ready", extra={"device": gpu})
        self._excluded = excluded
        self._state.exclude("MPS", excluded)

    async def run(self) -> None:
        """Follow the reports across restarts of the other process."""
        while True:
            try:
                reader, writer = await asyncio.open_unix_connection(self._path, limit=LONGEST)
                try:
                    while line := await reader.readline():
                        self._take(decode(line))
                finally:
                    writer.close()
            except OSError:
                pass  # no process listens, or it ended
            except ValueError as error:  # a process of another version, which will be replaced
                log.warning("%s", error)
            self._take(None)
            await asyncio.sleep(RETRY)

    def _take(self, report: Report | None) -> None:
        self._report = report
        self.exclude(self._state.offers)
