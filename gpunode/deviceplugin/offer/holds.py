"""Which units must wait, because a container still has their device by an earlier configuration. Pure.

The kubelet counts what containers have by resource and id. What it has under another resource, or by another id, than
the device is offered by now counts as free with it: those units are held back here until the container's pod is gone.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..gpus.devices import Device
from ..status import Pod
from . import ids, memory
from .resources import Unit


@dataclass(frozen=True, slots=True)
class Holder:
    """A container, and what the kubelet says it has of one resource."""

    pod: Pod
    container: str
    resource: str
    ids: tuple[str, ...]
    sure: bool = True  # False: it may have ended, and this be what was written down before


@dataclass(frozen=True, slots=True)
class Hold:
    """Units of one device, offered as one resource, that are not handed out yet, and why."""

    resource: str
    device: str  # its UUID
    ids: frozenset[str]
    why: str
    pods: tuple[Pod, ...] = ()
    sure: bool = True  # False: it may turn out at once that none of those containers is there any more


@dataclass(frozen=True, slots=True)
class _Stake:
    """What a container has of one device in a way, or by a name, that is not offered now."""

    holder: Holder
    device: str
    way: str
    units: int
    mib: int


def holds(
    offers: Mapping[str, Sequence[Unit]],
    devices: Collection[Device],
    holders: Iterable[Holder],
    before: Iterable[Hold] = (),
) -> tuple[Hold, ...]:
    """What of `offers` has to wait. `devices` are all that NVML lists; of units that are alike, those stay that were
    held `before`.

    Containers that have their part in the way the device is shared now keep as much of it from others as they have;
    those that have it in another way keep all of it.
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
    held = frozenset(unit_id for hold in before for unit_id in hold.ids)
    parents = {device.uuid: device.gpu for device in devices}
    found = []
    for resource, units in offers.items():
        for uuid, group in _by_device(units).items():
            here = [stake for stake in stakes if _overlap(stake, uuid, parents)]
            if here:
                free = [unit.id for unit in group if unit.id not in used.get(resource, ())]
                free.sort(key=lambda unit_id: unit_id not in held)
                count = _held_back(group, here, uuid)
                # Where too few are free, none of the others may be given on either when it becomes free.
                waiting = free[:count] if count <= len(free) else [unit.id for unit in group]
                sure = any(stake.holder.sure for stake in here)
                pods = tuple(dict.fromkeys(stake.holder.pod for stake in here))
                found.append(Hold(resource, uuid, frozenset(waiting), _why(here), pods, sure))
    return tuple(found)


def _stakes(holder: Holder, unknown: Iterable[str]) -> Iterator[_Stake]:
    counts: dict[ids.Claim, int] = {}
    for unit_id in dict.fromkeys(unknown):
        claim = ids.read(unit_id)
        if claim is not None:
            counts[claim] = counts.get(claim, 0) + 1
    for claim, count in counts.items():
        yield _Stake(holder, claim.device, claim.way, count, count * claim.mib)


def _by_device(units: Iterable[Unit]) -> dict[str, list[Unit]]:
    """The last first: the kubelet is told to take the first."""
    groups: dict[str, list[Unit]] = {}
    for unit in units:
        if not unit.counted:
            groups.setdefault(unit.device.uuid, []).append(unit)
    return {uuid: group[::-1] for uuid, group in groups.items()}


def _overlap(stake: _Stake, uuid: str, parents: Mapping[str, str]) -> bool:
    """Whether the container's device is this one, the GPU that this one is a part of, or a part of it."""
    if stake.device not in parents:
        return False  # it is not, or no longer, on this node
    if stake.way == ids.GPUSHARE:
        return True  # any GPU may be the one
    return uuid == stake.device or parents[uuid] == stake.device or parents[stake.device] == uuid


def _held_back(group: Sequence[Unit], stakes: Sequence[_Stake], uuid: str) -> int:
    """How many of a device's units have to wait."""
    way = group[0].way
    if way == ids.WHOLE or any(stake.way != way or stake.device != uuid for stake in stakes):
        return len(group)
    if way == ids.MEMORY:
        return -(-sum(stake.mib for stake in stakes) // group[0].mib)
    return sum(stake.units for stake in stakes)


def _why(stakes: Sequence[_Stake]) -> str:
    first = stakes[0]
    part = {
        ids.WHOLE: "it",
        ids.MEMORY: f"{memory.size(first.mib)} of it",
        ids.GPUSHARE: "memory of a GPU that gpushare chose",
    }.get(first.way, "a share of it")
    pods = {stake.holder.pod for stake in stakes}
    return (
        f"container {first.holder.container} of pod {first.holder.pod} still has {part} as "
        f"{first.holder.resource}, by an earlier configuration{f' ({len(pods)} pods in all)' * (len(pods) > 1)}"
    )
