"""What the node offers now. Discovery and health checks write it; servers, metrics and the publisher read it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timezone

from gpunode.contract.offer import Device, Unit
from gpunode.contract.promises import Elsewhere
from gpunode.contract.status import Reason

from .prefer import Links
from .reservations import Reservation

STARTING = Reason("starting", "the GPUs have not been discovered yet")


class NodeState:
    """Units by resource name, and what keeps them from pods. Devices are named by UUID.

    Every change wakes all waiters, except where noted. For one event loop: there are no locks.
    """

    def __init__(self, unhealthy: Mapping[str, Reason] | None = None) -> None:
        self.offers: Mapping[str, tuple[Unit, ...]] = {}
        self.units: Mapping[str, Mapping[str, Unit]] = {}  # the same by id
        self.devices: tuple[Device, ...] = ()  # all that NVML lists, offered or not; wakes no waiter
        self.unhealthy: Mapping[str, Reason] = unhealthy or {}  # faulty and excluded devices
        self.since: Mapping[str, str] = _since({}, self.unhealthy)  # of which they are; RFC 3339
        self._faulty: Mapping[str, Reason] = unhealthy or {}
        self._excluded: dict[str, Mapping[str, Reason]] = {}  # by cause
        self.driver = ""  # its version; wakes no waiter
        self.problem: Reason | None = STARTING  # why nothing can be offered
        self.links: Links = {}  # how well GPUs are connected; wakes no waiter
        # GPUs shared by memory: why the driver does not enforce each container's share; None: it does.
        self.memory_limits: Mapping[str, str | None] = {}
        self.not_offered: Mapping[str, Reason] = {}  # GPUs without any unit
        self.unidentified: Mapping[str, Reason] = {}  # GPUs that do not report their UUID, by index
        self.reservations: tuple[Reservation, ...] = ()
        self.reserved: Mapping[str, Mapping[str, str]] = {}  # why a unit is reserved, by resource and id
        self.elsewhere: tuple[
            Elsewhere, ...
        ] = ()  # containers on other GPUs than their pods' annotations say
        self._changed = asyncio.Event()

    def changed(self) -> asyncio.Event:
        """Set at the next change. Take it before you read the state, so that no change is missed."""
        return self._changed

    def offer(self, offers: Mapping[str, tuple[Unit, ...]]) -> None:
        """Offer exactly these units. A resource once offered stays, with no units: the kubelet must see zero."""
        offers = {**dict.fromkeys(self.offers, ()), **offers}
        if offers != self.offers:
            self.offers = offers
            self.units = {resource: {unit.id: unit for unit in units} for resource, units in offers.items()}
            self._wake()

    def set_health(self, uuid: str, why: Reason | None) -> None:
        """Record why a device is faulty; None: it is healthy."""
        others = {other: reason for other, reason in self._faulty.items() if other != uuid}
        self._faulty = others if why is None else {**others, uuid: why}
        self._update_unhealthy()

    @property
    def excluded(self) -> Mapping[str, Reason]:
        """Devices that containers cannot use for a cause outside the device, with the reason."""
        return {uuid: why for excluded in self._excluded.values() for uuid, why in excluded.items()}

    def exclude(self, cause: str, excluded: Mapping[str, Reason]) -> None:
        """Exclude exactly these devices for this cause ("CDI", "MPS")."""
        self._excluded[cause] = excluded
        self._update_unhealthy()

    def set_problem(self, why: Reason | None) -> None:
        """Record why nothing can be offered; None: nothing prevents it."""
        if why != self.problem:
            self.problem = why
            self._wake()

    def set_not_offered(self, not_offered: Mapping[str, Reason]) -> None:
        """Record exactly these GPUs as having no unit."""
        if not_offered != self.not_offered:
            self.not_offered = not_offered
            self._wake()

    def set_unidentified(self, unidentified: Mapping[str, Reason]) -> None:
        """Record exactly these GPUs, by index, as not reporting their UUID."""
        if unidentified != self.unidentified:
            self.unidentified = unidentified
            self._wake()

    def set_memory_limits(self, limits: Mapping[str, str | None]) -> None:
        """Record exactly these GPUs as shared by memory: why a share is not enforced, or None."""
        if limits != self.memory_limits:
            self.memory_limits = limits
            self._wake()

    def reserve(self, reservations: tuple[Reservation, ...]) -> None:
        """Mark exactly these units as reserved: containers from an earlier configuration still use their devices."""
        if reservations != self.reservations:
            self.reservations = reservations
            reserved: dict[str, dict[str, str]] = {}
            for one in reservations:
                reserved.setdefault(one.resource, {}).update(dict.fromkeys(one.ids, one.why))
            self.reserved = reserved
            self._wake()

    def set_elsewhere(self, elsewhere: tuple[Elsewhere, ...]) -> None:
        """Record exactly these containers as being on other GPUs than noted."""
        if elsewhere != self.elsewhere:
            self.elsewhere = elsewhere
            self._wake()

    def resend(self) -> None:
        """Send the kubelet its lists again, unchanged: it then writes its checkpoint."""
        self._wake()

    def _update_unhealthy(self) -> None:
        unhealthy = {**self.excluded, **self._faulty}
        if unhealthy != self.unhealthy:
            self.unhealthy = unhealthy
            self.since = _since(self.since, unhealthy)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _since(before: Mapping[str, str], unhealthy: Mapping[str, Reason]) -> Mapping[str, str]:
    """Since when each is unhealthy: as before, or from now on."""
    now = datetime.now(timezone.utc).isoformat(timespec="seconds")
    return {uuid: before.get(uuid, now) for uuid in unhealthy}
