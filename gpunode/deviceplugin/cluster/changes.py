"""Changes of the node's state between two snapshots, as events for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpunode.contract.offer import Device
from gpunode.contract.promises import Elsewhere
from gpunode.contract.status import Reason

from ..offer.state import NodeState
from .events import NodeEvent


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The node's state at one moment; the fields are those of NodeState.

    `units`: their number by resource. `idle`: devices that are not offered, as a GPU with MIG devices. `not_offered`:
    those of them that should be. `reserved`: why units are reserved, by device.
    """

    devices: Mapping[str, Device] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    unhealthy: Mapping[str, Reason] = field(default_factory=dict)
    problem: Reason | None = None
    memory_limits: Mapping[str, str | None] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    reserved: Mapping[str, str] = field(default_factory=dict)
    not_offered: Mapping[str, Reason] = field(default_factory=dict)
    unidentified: Mapping[str, Reason] = field(default_factory=dict)
    elsewhere: frozenset[Elsewhere] = frozenset()  # those whose GPU gives more than was promised of it


def snapshot(state: NodeState) -> Snapshot:
    """The state now."""
    given = {unit.device.uuid for offered in state.offers.values() for unit in offered}
    devices = {device.uuid: device for device in state.devices}
    return Snapshot(
        devices=devices,
        idle=frozenset(devices.keys() - given),
        units={resource: len(offered) for resource, offered in state.offers.items()},
        unhealthy={uuid: why for uuid, why in state.unhealthy.items() if uuid in devices and uuid in given},
        problem=state.problem,
        memory_limits={uuid: why for uuid, why in state.memory_limits.items() if uuid in devices},
        reserved={
            reservation.device: reservation.why
            for reservation in state.reservations
            if reservation.confirmed and reservation.device in devices
        },
        not_offered={uuid: why for uuid, why in state.not_offered.items() if uuid in devices},
        unidentified=state.unidentified,
        elsewhere=frozenset(one for one in state.elsewhere if one.more),
    )


def events_between(before: Snapshot, after: Snapshot) -> list[NodeEvent]:
    """The changes that a cluster's operator should know of."""
    events = []
    if after.problem is not None and after.problem != before.problem:
        events.append(NodeEvent("GPUsNotOffered", f"No GPU of this node can be offered: {after.problem}"))
    for uuid, why in after.unhealthy.items():
        if before.unhealthy.get(uuid) != why:
            events.append(
                NodeEvent(
                    "GPUUnhealthy",
                    f"{_described(after.devices[uuid])} is Unhealthy: {why}. New pods do not get it; running pods keep it",
                )
            )
    for uuid, device in after.devices.items():
        if uuid in before.unhealthy and uuid not in after.unhealthy and uuid not in after.idle:
            words = f"{_described(device)} is Healthy again, after: {before.unhealthy[uuid]}. New pods can get it again"
            events.append(NodeEvent("GPUHealthy", words, "Normal"))
    for uuid, unlimited in after.memory_limits.items():
        if unlimited is not None and before.memory_limits.get(uuid) != unlimited:
            words = f"{_described(after.devices[uuid])} is shared by memory, and containers may exceed their share: {unlimited}"
            events.append(NodeEvent("GPUMemoryNotLimited", words))
    events += _offered_or_not(before, after)
    events += _reserved(before, after)
    events += _elsewhere(before, after)
    if after.problem is None:
        gone = [
            device for uuid, device in before.devices.items() if uuid not in {*after.devices, *before.idle}
        ]
        for device in gone:
            advice = "its GPU was repartitioned" if device.profile else "see the kernel log, reboot the host"
            kind = "Normal" if device.profile else "Warning"
            words = f"{_described(device)} is gone: NVML no longer lists it; {advice}"
            events.append(NodeEvent("GPUGone", words, kind))
    if before.problem is not None and after.problem is None:
        counts = ", ".join(f"{count} {resource}" for resource, count in after.units.items())
        events.append(
            NodeEvent("GPUsOffered", f"GPUs are offered again: {counts or 'there is none'}", "Normal")
        )
    return events


def _offered_or_not(before: Snapshot, after: Snapshot) -> Iterator[NodeEvent]:
    """GPUs that are not offered now, and those that are offered again."""
    for uuid in after.not_offered.keys() - before.not_offered.keys():
        device = after.devices[uuid]
        advice = (
            f"make some (nvidia-smi mig -i {device.index} -cgi PROFILE -C) and delete the plugin's pod, which does not see "
            f"those made since its start; or switch MIG off (nvidia-smi -i {device.index} -mig 0)"
        )
        yield NodeEvent(
            "GPUNotOffered", f"{_described(device)} is not offered: {after.not_offered[uuid]}; {advice}"
        )
    for uuid in before.not_offered.keys() - after.not_offered.keys():
        if uuid in after.devices:
            yield NodeEvent("GPUOffered", f"{_described(after.devices[uuid])} is offered again", "Normal")
    for index, why in after.unidentified.items():
        if before.unidentified.get(index) != why:
            yield NodeEvent("GPUNotOffered", f"{_numbered(index)} is not offered: {why}")
    for index in before.unidentified.keys() - after.unidentified.keys():
        yield NodeEvent("GPUOffered", f"{_numbered(index)} is offered again", "Normal")


def _numbered(index: str) -> str:
    return f"{'MIG device' if ':' in index else 'GPU'} {index}"


def _reserved(before: Snapshot, after: Snapshot) -> Iterator[NodeEvent]:
    """Devices that are reserved now, and those that are no longer."""
    for uuid in after.reserved.keys() - before.reserved.keys():
        what = f"{_described(after.devices[uuid])} is reserved, whole or in part: {after.reserved[uuid]}"
        yield NodeEvent("GPUHeld", f"{what}. It is free again when that pod ends")
    for uuid in before.reserved.keys() - after.reserved.keys():
        if uuid in after.devices:
            what = f"{_described(after.devices[uuid])} is no longer reserved"
            yield NodeEvent("GPUFree", f"{what}: no container uses it by an earlier configuration", "Normal")


def _elsewhere(before: Snapshot, after: Snapshot) -> Iterator[NodeEvent]:
    """Containers that got another GPU than the scheduler extender promised."""
    for one in sorted(after.elsewhere - before.elsewhere, key=lambda one: (one.pod, one.container)):
        gpus = [
            _described(after.devices[uuid]) if uuid in after.devices else uuid
            for uuid, _ in sorted(one.place)
        ]
        yield NodeEvent(
            "GPUElsewhere",
            f"Container {one.container} of pod {one.pod} has memory of {', '.join(gpus)}, which it was not promised: its "
            "promised GPU had no room. The scheduler extender counts both until it has noted this on the pod",
        )


def _described(device: Device) -> str:
    """The device in words: kind, index, product, address and UUID."""
    if device.profile:
        return f"MIG device {device.index} ({device.profile} of {device.gpu}, {device.uuid})"
    return f"GPU {device.index} ({device.name}, {device.bus}, {device.uuid})"
