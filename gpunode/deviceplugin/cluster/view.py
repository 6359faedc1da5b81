"""What changed on the node between two moments, as events for people; and the node's annotation. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ..gpus.devices import Device
from ..offer.board import Board
from ..status import ANNOTATION, Reason
from .events import Event, Write


@dataclass(frozen=True, slots=True)
class View:
    """What the board had at one moment: NVML's devices by UUID, units by resource, why devices are Unhealthy.

    `idle`: devices that are not offered, as a GPU that is cut into MIG devices; `left`: those of them that should be,
    and why they are not. `mute`: GPUs that do not tell their UUID, by index, and why. `held`: whose units wait for a container
    that has them by an earlier configuration. `limits`: of GPUs shared by memory, why the driver does not hold containers to their part; None where it does.
    """

    devices: Mapping[str, Device] = field(default_factory=dict)
    units: Mapping[str, int] = field(default_factory=dict)
    sick: Mapping[str, Reason] = field(default_factory=dict)
    missing: Reason | None = None
    limits: Mapping[str, str | None] = field(default_factory=dict)
    idle: frozenset[str] = frozenset()
    held: Mapping[str, str] = field(default_factory=dict)
    left: Mapping[str, Reason] = field(default_factory=dict)
    mute: Mapping[str, Reason] = field(default_factory=dict)


def view(board: Board) -> View:
    """The board as it is now."""
    given = {unit.device.uuid for offered in board.offers.values() for unit in offered}
    devices = {device.uuid: device for device in board.devices}
    return View(
        devices=devices,
        idle=frozenset(devices.keys() - given),
        units={resource: len(offered) for resource, offered in board.offers.items()},
        sick={uuid: why for uuid, why in board.sick.items() if uuid in devices and uuid in given},
        missing=board.missing,
        limits={uuid: why for uuid, why in board.limits.items() if uuid in devices},
        held={hold.device: hold.why for hold in board.holds if hold.sure and hold.device in devices},
        left={uuid: why for uuid, why in board.left.items() if uuid in devices},
        mute=board.mute,
    )


def news(before: View, after: View) -> list[Event]:
    """What a person who looks after the cluster should hear of."""
    told = []
    if after.missing is not None and after.missing != before.missing:
        told.append(Event("GPUsNotOffered", f"No GPU of this node can be offered: {after.missing}"))
    for uuid, why in after.sick.items():
        if before.sick.get(uuid) != why:
            told.append(
                Event(
                    "GPUUnhealthy",
                    f"{_called(after.devices[uuid])} is Unhealthy: {why}. New pods are not given it, running ones keep it",
                )
            )
    for uuid, device in after.devices.items():
        if uuid in before.sick and uuid not in after.sick and uuid not in after.idle:
            words = f"{_called(device)} is Healthy again, after: {before.sick[uuid]}. Pods are given it again"
            told.append(Event("GPUHealthy", words, "Normal"))
    for uuid, unlimited in after.limits.items():
        if unlimited is not None and before.limits.get(uuid) != unlimited:
            words = f"{_called(after.devices[uuid])} is shared by memory, and containers may exceed what they asked for: {unlimited}"
            told.append(Event("GPUMemoryNotLimited", words))
    told += _left(before, after)
    told += _held(before, after)
    if after.missing is None:
        gone = [
            device for uuid, device in before.devices.items() if uuid not in {*after.devices, *before.idle}
        ]
        for device in gone:
            advice = "its GPU was cut anew" if device.profile else "see the kernel log, reboot the host"
            kind = "Normal" if device.profile else "Warning"
            words = f"{_called(device)} is gone: NVML does not list it any more; {advice}"
            told.append(Event("GPUGone", words, kind))
    if before.missing is not None and after.missing is None:
        counts = ", ".join(f"{count} {resource}" for resource, count in after.units.items())
        told.append(Event("GPUsOffered", f"GPUs are offered again: {counts or 'there is none'}", "Normal"))
    return told


def _left(before: View, after: View) -> Iterator[Event]:
    """Which GPUs are left out now, and which are no longer."""
    for uuid in after.left.keys() - before.left.keys():
        device = after.devices[uuid]
        advice = (
            f"make some (nvidia-smi mig -i {device.index} -cgi PROFILE -C) and delete the plugin's pod, which does not see "
            f"those made since its start; or switch MIG off (nvidia-smi -i {device.index} -mig 0)"
        )
        yield Event("GPUNotOffered", f"{_called(device)} is not offered: {after.left[uuid]}; {advice}")
    for uuid in before.left.keys() - after.left.keys():
        if uuid in after.devices:
            yield Event("GPUOffered", f"{_called(after.devices[uuid])} is left out no longer", "Normal")
    for index, why in after.mute.items():
        if before.mute.get(index) != why:
            yield Event("GPUNotOffered", f"GPU {index} is not offered: {why}")
    for index in before.mute.keys() - after.mute.keys():
        yield Event("GPUOffered", f"GPU {index} is left out no longer", "Normal")


def _held(before: View, after: View) -> Iterator[Event]:
    """Which devices wait now for containers that have them otherwise, and which do no longer."""
    for uuid in after.held.keys() - before.held.keys():
        what = f"{_called(after.devices[uuid])} is held back, whole or in part: {after.held[uuid]}"
        yield Event("GPUHeld", f"{what}. It is given again when that pod is gone")
    for uuid in before.held.keys() - after.held.keys():
        if uuid in after.devices:
            what = f"{_called(after.devices[uuid])} is held back no longer"
            yield Event("GPUFree", f"{what}: no container has it by an earlier configuration", "Normal")


class Annotation:
    """The node's annotation as it should be, and whether it is."""

    def __init__(self, node: str) -> None:
        self._path = f"/api/v1/nodes/{node}"
        self._wish: str | None = ""
        self._written: str | None = ""  # "": what an earlier plugin left there, if any

    def add(self, item: str | None, _now: float) -> None:
        """It should have this text; None: it should not be there."""
        self._wish = item

    def due(self, _now: float) -> Write | None:
        if self._wish == self._written:
            return None
        body = {"metadata": {"annotations": {ANNOTATION: self._wish}}}
        return Write("PATCH", self._path, body, self._wish)

    def done(self, write: Write, code: int, _now: float) -> bool:
        if code == 200:
            self._written = write.key
        return code == 200


def _called(device: Device) -> str:
    """The device in words: what it is, where, and its UUID."""
    if device.profile:
        return f"MIG device {device.index} ({device.profile} of {device.gpu}, {device.uuid})"
    return f"GPU {device.index} ({device.name}, {device.bus}, {device.uuid})"
