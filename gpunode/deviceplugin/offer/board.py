"""What the node offers right now, for those who tell the kubelet. One event loop, no locks."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ..gpus.devices import Device
from ..status import Reason
from .holds import Hold
from .prefer import Links
from .resources import Unit

NOT_LOOKED = Reason("starting", "the GPUs have not been looked for yet")


class Board:
    """Units by resource name, and why a device is Unhealthy by its UUID. Every change wakes all who wait."""

    def __init__(self, ill: Mapping[str, Reason] | None = None) -> None:
        self.offers: Mapping[str, tuple[Unit, ...]] = {}
        self.units: Mapping[str, Mapping[str, Unit]] = {}  # the same by id
        self.devices: tuple[Device, ...] = ()  # all that NVML lists, offered or not; changes wake nobody
        self.sick: Mapping[str, Reason] = ill or {}
        self._barred: dict[
            str, Mapping[str, Reason]
        ] = {}  # the part of it that is not the devices' own doing
        self._ill: Mapping[str, Reason] = ill or {}  # and the part that is
        self.driver = ""  # its version; changes wake nobody
        self.missing: Reason | None = NOT_LOOKED  # why nothing can be offered
        self.links: Links = {}  # how well GPUs are connected; changes wake nobody
        # GPUs shared by memory, by UUID: why the driver does not hold containers to their part; None where it does
        self.limits: Mapping[str, str | None] = {}
        self.left: Mapping[str, Reason] = {}  # GPUs of which nothing is offered, by UUID, and why
        self.mute: Mapping[str, Reason] = {}  # GPUs that do not even tell their UUID, by index, and why
        self.holds: tuple[Hold, ...] = ()
        self.held: Mapping[
            str, Mapping[str, str]
        ] = {}  # the same by resource and unit's id: why it has to wait
        self._change = asyncio.Event()

    def change(self) -> asyncio.Event:
        """Is set at the next change. Take it before you look, so that no change is missed."""
        return self._change

    def offer(self, offers: Mapping[str, tuple[Unit, ...]]) -> None:
        """These are the units now. A resource once offered stays, empty if need be: the kubelet is to see zero."""
        offers = {**dict.fromkeys(self.offers, ()), **offers}
        if offers != self.offers:
            self.offers = offers
            self.units = {resource: {unit.id: unit for unit in units} for resource, units in offers.items()}
            self._wake()

    def judge(self, uuid: str, why: Reason | None) -> None:
        """A device is Unhealthy by its own doing, and why; or it is not (None)."""
        others = {ill: reason for ill, reason in self._ill.items() if ill != uuid}
        self._ill = others if why is None else {**others, uuid: why}
        self._add_up()

    @property
    def barred(self) -> Mapping[str, Reason]:
        """Which devices cannot be given to containers, well as they may be, and why."""
        return {uuid: why for barred in self._barred.values() for uuid, why in barred.items()}

    def bar(self, what: str, barred: Mapping[str, Reason]) -> None:
        """These devices, and no others, cannot be given for want of `what` ("CDI", "MPS"), and why."""
        self._barred[what] = barred
        self._add_up()

    def lack(self, why: Reason | None) -> None:
        """Nothing can be offered, and why; or it can (None)."""
        if why != self.missing:
            self.missing = why
            self._wake()

    def leave(self, left: Mapping[str, Reason]) -> None:
        """Of these GPUs, and no others, nothing is offered, and why."""
        if left != self.left:
            self.left = left
            self._wake()

    def miss(self, mute: Mapping[str, Reason]) -> None:
        """These GPUs, by index, and no others do not even tell their UUID, and why."""
        if mute != self.mute:
            self.mute = mute
            self._wake()

    def limit(self, limits: Mapping[str, str | None]) -> None:
        """Of these GPUs, shared by memory, containers are held to their part, or why not."""
        if limits != self.limits:
            self.limits = limits
            self._wake()

    def hold(self, holds: tuple[Hold, ...]) -> None:
        """These units, and no others, have to wait for containers that have their devices otherwise."""
        if holds != self.holds:
            self.holds = holds
            held: dict[str, dict[str, str]] = {}
            for one in holds:
                held.setdefault(one.resource, {}).update(dict.fromkeys(one.ids, one.why))
            self.held = held
            self._wake()

    def repeat(self) -> None:
        """The kubelet is to be sent its lists once more, same as they are: it then writes down what containers have."""
        self._wake()

    def _add_up(self) -> None:
        sick = {**self.barred, **self._ill}
        if sick != self.sick:
            self.sick = sick
            self._wake()

    def _wake(self) -> None:
        self._change.set()
        self._change = asyncio.Event()
