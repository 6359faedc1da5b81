"""What the node offers right now, for those who tell the kubelet. One event loop, no locks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from .prefer import Links
from .resources import Unit


class Board:
    """Units by resource name, and why a device is Unhealthy by its UUID. Every change wakes all who wait."""

    def __init__(self) -> None:
        self.offers: Mapping[str, tuple[Unit, ...]] = {}
        self.sick: Mapping[str, str] = {}
        self.missing: str | None = "the GPUs have not been looked for yet"  # why nothing can be offered
        self.links: Links = {}  # how well GPUs are connected; changes wake nobody
        self._change = asyncio.Event()

    def change(self) -> asyncio.Event:
        """Is set at the next change. Take it before you look, so that no change is missed."""
        return self._change

    def offer(self, offers: Mapping[str, tuple[Unit, ...]]) -> None:
        """These are the units now. A resource once offered stays, empty if need be: the kubelet is to see zero."""
        self._set(offers={**dict.fromkeys(self.offers, ()), **offers}, sick=self.sick)

    def judge(self, uuid: str, why: str | None) -> None:
        """A device is Unhealthy, and why; or it is Healthy (None)."""
        others = {sick: reason for sick, reason in self.sick.items() if sick != uuid}
        self._set(offers=self.offers, sick=others if why is None else {**others, uuid: why})

    def _set(self, *, offers: Mapping[str, tuple[Unit, ...]], sick: Mapping[str, str]) -> None:
        if (offers, sick) == (self.offers, self.sick):
            return
        self.offers, self.sick = offers, sick
        self._change.set()
        self._change = asyncio.Event()
