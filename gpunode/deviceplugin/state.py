"""What the node offers now, and which units are reserved. Discovery and health checks write it; servers, metrics and the
publisher read it.

A reservation keeps units while a container still uses their device by an earlier configuration. The kubelet counts
allocations by resource and id: a device that is offered now by another resource or id than a container uses looks free to
it.
"""

import asyncio
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpunode.contract import offer, status
from gpunode.contract.offer import Device, Unit, format_mib
from gpunode.contract.promises import Elsewhere
from gpunode.contract.status import Pod, Reason

from .gpus import Links


@dataclass(frozen=True, slots=True)
class ContainerDevices:
    """A container's units of one resource, as the kubelet reports or records them."""

    pod: Pod
    container: str
    resource: str
    ids: tuple[str, ...]
    confirmed: bool = True  # False: from an old record; the container may have ended
    index: str = ""  # N of /dev/nvidiaN that gpushare's plugin gave it; "": not known


@dataclass(frozen=True, slots=True)
class Reservation:
    """Units of one device, offered as one resource, that are not allocated yet, and why."""

    resource: str
    device: str  # its UUID
    ids: frozenset[str]
    why: str
    pods: tuple[Pod, ...] = ()
    confirmed: bool = True  # False: all of these containers may have ended


@dataclass(frozen=True, slots=True)
class _Stake:
    """A container's use of one device, by an id that is not offered now."""

    holder: ContainerDevices
    device: str
    way: str
    units: int
    mib: int


def reservations(
    offers: Mapping[str, Sequence[Unit]],
    devices: Collection[Device],
    holders: Iterable[ContainerDevices],
    before: Iterable[Reservation] = (),
) -> tuple[Reservation, ...]:
    """The units of `offers` to reserve. `devices` are all that NVML lists; among equal units, those reserved `before`
    stay reserved.

    A container that uses the device in the way it is shared now reserves as much as it has; one that uses it in
    another way reserves all of it.
    """
    offered = {resource: {unit.id for unit in units} for resource, units in offers.items()}
    stakes: list[_Stake] = []
    used: dict[str, set[str]] = {}
    for holder in holders:
        known = offered.get(holder.resource, set())
        used.setdefault(holder.resource, set()).update(known.intersection(holder.ids))
        stakes += _stakes(holder, [unit_id for unit_id in holder.ids if unit_id not in known])
    if not stakes:
        return ()
    reserved = frozenset(unit_id for reservation in before for unit_id in reservation.ids)
    parents = {device.uuid: device.gpu for device in devices}
    minors = {device.uuid: _minor(device) for device in devices if device.profile is None}
    reserved_units = []
    for resource, units in offers.items():
        for uuid, group in _by_device(units).items():
            here = [stake for stake in stakes if _overlap(stake, uuid, parents, minors)]
            if here:
                free = [unit.id for unit in group if unit.id not in used.get(resource, ())]
                free.sort(key=lambda unit_id: unit_id not in reserved)
                count = _reserved_count(group, here, uuid)
                # With too few free units, those in use must not be allocated again when they become free.
                waiting = free[:count] if count <= len(free) else [unit.id for unit in group]
                confirmed = any(stake.holder.confirmed for stake in here)
                pods = tuple(dict.fromkeys(stake.holder.pod for stake in here))
                reserved_units.append(
                    Reservation(resource, uuid, frozenset(waiting), _why(here), pods, confirmed)
                )
    return tuple(reserved_units)


def _stakes(holder: ContainerDevices, unknown: Iterable[str]) -> Iterator[_Stake]:
    counts: dict[offer.Claim, int] = {}
    for unit_id in dict.fromkeys(unknown):
        claim = offer.claim_of(unit_id)
        if claim is not None:
            counts[claim] = counts.get(claim, 0) + 1
    for claim, count in counts.items():
        yield _Stake(holder, claim.device, claim.way, count, count * claim.mib)


def _by_device(units: Iterable[Unit]) -> dict[str, list[Unit]]:
    """Units by device, last first: the plugin prefers to allocate the first."""
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        if not unit.counted:
            groups.setdefault(unit.device.uuid, []).append(unit)
    return {uuid: group[::-1] for uuid, group in groups.items()}


def _overlap(stake: _Stake, uuid: str, parents: Mapping[str, str], minors: Mapping[str, str]) -> bool:
    """True if the container's device is this one, its parent GPU, or a part of it."""
    if stake.device not in parents:
        return False  # it is not on this node
    if stake.way == offer.GPUSHARE:
        known = stake.holder.index in minors.values()
        # Not known: any GPU may be the one
        return not known or minors.get(parents[uuid]) == stake.holder.index
    return uuid == stake.device or parents[uuid] == stake.device or parents[stake.device] == uuid


def _minor(gpu: Device) -> str:
    """N of /dev/nvidiaN, by which gpushare's plugin counts GPUs (pkg/gpu/nvidia/nvidia.go, getDevices)."""
    return gpu.nodes[0].rpartition("nvidia")[2] if gpu.nodes else gpu.index


def _reserved_count(group: Sequence[Unit], stakes: Sequence[_Stake], uuid: str) -> int:
    way = group[0].way
    if way == offer.WHOLE or any(stake.way != way or stake.device != uuid for stake in stakes):
        return len(group)
    if way == offer.MEMORY:
        return -(-sum(stake.mib for stake in stakes) // group[0].mib)
    return sum(stake.units for stake in stakes)


def _why(stakes: Sequence[_Stake]) -> str:
    first = stakes[0]
    part = {
        offer.WHOLE: "it",
        offer.MEMORY: f"{format_mib(first.mib)} of it",
        offer.GPUSHARE: "memory of a GPU that gpushare chose",
    }.get(first.way, "a share of it")
    pods = {stake.holder.pod for stake in stakes}
    return (
        f"container {first.holder.container} of pod {first.holder.pod} still uses {part} as "
        f"{first.holder.resource}, which it got before the configuration changed{f' ({len(pods)} pods in all)' * (len(pods) > 1)}"
    )


STARTING = Reason(status.STARTING, "the GPUs have not been discovered yet")


class NodeState:
    """Units by resource name, and what keeps them from pods. Devices are named by UUID.

    Every change wakes all waiters, except where noted. For one event loop: there are no locks.
    """

    def __init__(self, unhealthy: Mapping[str, Reason] | None = None) -> None:
        self.offers: Mapping[str, tuple[Unit, ...]] = {}
        self.units: Mapping[str, Mapping[str, Unit]] = {}  # the same by id
        self.devices: tuple[Device, ...] = ()  # all that NVML lists, offered or not; wakes no waiter
        self.unhealthy: Mapping[str, Reason] = unhealthy or {}  # faulty, excluded and cordoned devices
        self.since: Mapping[str, str] = _since({}, self.unhealthy)  # of which they are; RFC 3339
        self._faulty: Mapping[str, Reason] = unhealthy or {}
        self._excluded: dict[str, Mapping[str, Reason]] = {}  # by cause
        self._cordoned: Mapping[str, Reason] = {}
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

    def cordon(self, cordoned: Mapping[str, Reason]) -> None:
        """Cordon exactly these devices: an operator has taken them out."""
        self._cordoned = cordoned
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
            for reservation in reservations:
                reserved.setdefault(reservation.resource, {}).update(
                    dict.fromkeys(reservation.ids, reservation.why)
                )
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
        unhealthy = {**self.excluded, **self._faulty, **self._cordoned}
        if unhealthy != self.unhealthy:
            self.unhealthy = unhealthy
            self.since = _since(self.since, unhealthy)
            self._wake()

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _since(before: Mapping[str, str], unhealthy: Mapping[str, Reason]) -> Mapping[str, str]:
    """Since when each is unhealthy: as before, or from now on."""
    now = time.strftime("%Y-%m-%dT%H:%M:%S+00:00", time.gmtime())
    return {uuid: before.get(uuid, now) for uuid in unhealthy}
