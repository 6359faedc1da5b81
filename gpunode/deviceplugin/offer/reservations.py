"""Reservations: units that wait because a container still uses their device by an earlier configuration. Pure.

The kubelet counts allocations by resource and id. A device that is offered now by another resource or id than a
container uses looks free to it: its units are reserved here until the container's pod ends.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpunode.contract import offer
from gpunode.contract.offer import Device, Unit, format_mib
from gpunode.contract.status import Pod


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
    found = []
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
                found.append(Reservation(resource, uuid, frozenset(waiting), _why(here), pods, confirmed))
    return tuple(found)


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
        return (
            not known or minors.get(parents[uuid]) == stake.holder.index
        )  # not known: any GPU may be the one
    return uuid == stake.device or parents[uuid] == stake.device or parents[stake.device] == uuid


def _minor(gpu: Device) -> str:
    """N of /dev/nvidiaN, by which gpushare's plugin counts GPUs (pkg/gpu/nvidia/nvidia.go, getDevices)."""
    return gpu.nodes[0].rpartition("nvidia")[2] if gpu.nodes else gpu.index


def _reserved_count(group: Sequence[Unit], stakes: Sequence[_Stake], uuid: str) -> int:
    """Number of a device's units to reserve."""
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
        f"{first.holder.resource}, by an earlier configuration{f' ({len(pods)} pods in all)' * (len(pods) > 1)}"
    )
