"""Events about this node: from changes of its state, and as Event objects in the cluster. Pure.

As in client-go (tools/record): a repeated event increments the count of its object, many similar events become one,
and writes are rate-limited. Unlike there, no event is dropped: a delayed one is written later with its final count.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpunode.contract.offer import Device
from gpunode.contract.promises import Elsewhere
from gpunode.contract.status import Reason
from gpunode.contract.times import utc

from ..state import NodeState
from .apiserver import Object
from .writer import Write

COMPONENT = "gpunode-device-plugin"
NAMESPACE = "default"  # where events about objects without a namespace go
# client-go's figures
SIMILAR, WITHIN = 10, 600.0  # messages of one reason, per seconds, that keep separate objects
BURST, REFILL = 25, 300.0  # writes at once; seconds for one more
KEPT = 100  # events remembered; the least recent are forgotten
LONGEST = 1024  # characters of a message: the limit of the newer events API


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """What happened and the fix. `reason` is for programs, `message` for people."""

    reason: str
    message: str
    type: str = "Warning"  # or "Normal"


@dataclass(slots=True)
class _Recorded:
    event: NodeEvent
    name: str
    first: float
    last: float
    count: int = 0
    written: int = 0  # the count of the object in the cluster; 0: there is none


class PendingEvents:
    """The events about `node` and the writes they need. Times are seconds since the epoch."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._events: dict[NodeEvent, _Recorded] = {}  # the least recent first
        self._tokens = float(BURST)
        self._counted = 0.0  # when tokens were last counted

    def add(self, event: NodeEvent, now: float) -> None:
        event = NodeEvent(event.reason, event.message[:LONGEST], event.type)
        key = event
        if key not in self._events:
            recent = [
                recorded
                for recorded in self._events.values()
                if (recorded.event.reason, recorded.event.type) == (event.reason, event.type)
                and now - recorded.last < WITHIN
            ]
            if len(recent) >= SIMILAR:
                key = NodeEvent(event.reason, "", event.type)
                text = f"(combined from similar events): {event.message}"
                event = NodeEvent(event.reason, text[:LONGEST], event.type)
        recorded = self._events.pop(key, None) or _Recorded(event, self._name(now), now, now)
        recorded.event, recorded.last, recorded.count = event, now, recorded.count + 1
        self._events[key] = recorded
        if len(self._events) > KEPT:
            settled = (key for key, about in self._events.items() if about.written == about.count)
            del self._events[next(settled, next(iter(self._events)))]

    def due(self, now: float) -> Write | None:
        """The next write; None: nothing now."""
        self._tokens = min(BURST, self._tokens + max(0.0, now - self._counted) / REFILL)
        self._counted = now
        waiting = next(
            ((key, recorded) for key, recorded in self._events.items() if recorded.written < recorded.count),
            None,
        )
        if waiting is None or self._tokens < 1:
            return None
        key, recorded = waiting
        collection = f"/api/v1/namespaces/{NAMESPACE}/events"
        if not recorded.written:
            return Write("POST", collection, self._object(recorded), (key, recorded.count))
        change: Object = {
            "count": recorded.count,
            "lastTimestamp": utc(recorded.last),
            "message": recorded.event.message,
        }
        return Write("PATCH", f"{collection}/{recorded.name}", change, (key, recorded.count))

    def done(self, write: Write, code: int, now: float) -> bool:
        """Record the HTTP status of `write` (200 for any success); True if it needs no retry."""
        key, count = write.key
        recorded = self._events.get(key)
        if recorded is None:
            return True  # forgotten meanwhile
        if code == 404 and write.method == "PATCH":  # events live an hour by default
            recorded.name, recorded.first = self._name(now), recorded.last
            recorded.written, recorded.count = 0, 1
            return True
        # 409: it was written, only the answer was lost
        if code == 200 or (code == 409 and write.method == "POST"):
            recorded.written = count
            self._tokens -= 1
            return True
        return False

    def _name(self, now: float) -> str:
        """As client-go makes it; names have at most 253 characters."""
        return f"{self._node[:236].rstrip('-.')}.{int(now * 1e9) + len(self._events):x}"

    def _object(self, recorded: _Recorded) -> Object:
        return {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": recorded.name, "namespace": NAMESPACE},
            # The uid is the node's name, as kubelets have it: `kubectl describe node` looks for that.
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": self._node},
            "type": recorded.event.type,
            "reason": recorded.event.reason,
            "message": recorded.event.message,
            "source": {"component": COMPONENT, "host": self._node},
            "reportingComponent": COMPONENT,
            "reportingInstance": self._node,
            "count": recorded.count,
            "firstTimestamp": utc(recorded.first),
            "lastTimestamp": utc(recorded.last),
        }


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
        elsewhere=frozenset(container for container in state.elsewhere if container.more),
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
                    f"{_describe(after.devices[uuid])} is Unhealthy: {why}. New pods do not get it; running pods keep it",
                )
            )
    for uuid, device in after.devices.items():
        if uuid in before.unhealthy and uuid not in after.unhealthy and uuid not in after.idle:
            message = f"{_describe(device)} is Healthy again, after: {before.unhealthy[uuid]}. New pods can get it again"
            events.append(NodeEvent("GPUHealthy", message, "Normal"))
    for uuid, unlimited in after.memory_limits.items():
        if unlimited is not None and before.memory_limits.get(uuid) != unlimited:
            message = f"{_describe(after.devices[uuid])} is shared by memory, and containers may exceed their share: {unlimited}"
            events.append(NodeEvent("GPUMemoryNotLimited", message))
    events += _offer_events(before, after)
    events += _reservation_events(before, after)
    events += _elsewhere_events(before, after)
    if after.problem is None:
        gone = [
            device for uuid, device in before.devices.items() if uuid not in {*after.devices, *before.idle}
        ]
        for device in gone:
            advice = "its GPU was repartitioned" if device.profile else "see the kernel log, reboot the host"
            kind = "Normal" if device.profile else "Warning"
            message = f"{_describe(device)} is gone: NVML no longer lists it; {advice}"
            events.append(NodeEvent("GPUGone", message, kind))
    if before.problem is not None and after.problem is None:
        counts = ", ".join(f"{count} {resource}" for resource, count in after.units.items())
        events.append(
            NodeEvent("GPUsOffered", f"GPUs are offered again: {counts or 'there is none'}", "Normal")
        )
    return events


def _offer_events(before: Snapshot, after: Snapshot) -> Iterator[NodeEvent]:
    """GPUs that are not offered now, and those that are offered again."""
    for uuid in after.not_offered.keys() - before.not_offered.keys():
        device = after.devices[uuid]
        advice = f"make some (nvidia-smi mig -i {device.index} -cgi PROFILE -C) and delete the plugin's pod, which sees only those from before its start; or switch MIG off (nvidia-smi -i {device.index} -mig 0)"
        yield NodeEvent(
            "GPUNotOffered", f"{_describe(device)} is not offered: {after.not_offered[uuid]}; {advice}"
        )
    for uuid in before.not_offered.keys() - after.not_offered.keys():
        if uuid in after.devices:
            yield NodeEvent("GPUOffered", f"{_describe(after.devices[uuid])} is offered again", "Normal")
    for index, why in after.unidentified.items():
        if before.unidentified.get(index) != why:
            yield NodeEvent("GPUNotOffered", f"{_label(index)} is not offered: {why}")
    for index in before.unidentified.keys() - after.unidentified.keys():
        yield NodeEvent("GPUOffered", f"{_label(index)} is offered again", "Normal")


def _label(index: str) -> str:
    return f"{'MIG device' if ':' in index else 'GPU'} {index}"


def _reservation_events(before: Snapshot, after: Snapshot) -> Iterator[NodeEvent]:
    """Devices that are reserved now, and those that are no longer."""
    for uuid in after.reserved.keys() - before.reserved.keys():
        what = f"{_describe(after.devices[uuid])} is reserved, whole or in part: {after.reserved[uuid]}"
        yield NodeEvent("GPUHeld", f"{what}. It is free again when that pod ends")
    for uuid in before.reserved.keys() - after.reserved.keys():
        if uuid in after.devices:
            what = f"{_describe(after.devices[uuid])} is no longer reserved"
            yield NodeEvent("GPUFree", f"{what}: no container uses it by an earlier configuration", "Normal")


def _elsewhere_events(before: Snapshot, after: Snapshot) -> Iterator[NodeEvent]:
    """Containers that got another GPU than the scheduler extender promised."""
    for container in sorted(
        after.elsewhere - before.elsewhere, key=lambda container: (container.pod, container.container)
    ):
        gpus = [
            _describe(after.devices[uuid]) if uuid in after.devices else uuid
            for uuid, _ in sorted(container.place)
        ]
        yield NodeEvent(
            "GPUElsewhere",
            f"Container {container.container} of pod {container.pod} has memory of {', '.join(gpus)}, not of its promised GPU, which had no room. The scheduler extender counts both until it has noted this on the pod",
        )


def _describe(device: Device) -> str:
    """The device in words: kind, index, product, address and UUID."""
    if device.profile:
        return f"MIG device {device.index} ({device.profile} of {device.gpu}, {device.uuid})"
    return f"GPU {device.index} ({device.name}, {device.bus}, {device.uuid})"
