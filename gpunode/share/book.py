"""A node's GPUs that are shared by memory, read from its object; and its book: the promises of each GPU. Pure."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from gpunode.contract import status
from gpunode.contract.config import GPU_COUNT
from gpunode.contract.promises import MEMORY_ANNOTATION, VERSION, Demand, Part, parse_quantity, read_elsewhere
from gpunode.contract.status import Reason

MOST_GPUS = 128  # of a node; a count beyond is a mistake


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU with its memory in units. `uuid` is "" if the node does not publish it; `lost`: its units are Unhealthy;
    `reserved`: further units, used by pods of an earlier configuration."""

    index: str
    units: int
    uuid: str = ""
    lost: bool = False
    reserved: int = 0


def gpus_of(node: Mapping[str, Any], resource: str) -> tuple[Gpu, ...] | Reason:
    """The node's GPUs, in the order of their indexes, or why none can be promised.

    Their sizes are those of the node's annotation. Without it they are the node's memory by its number of GPUs, as
    gpushare's extender divides (pkg/cache/nodeinfo.go), which is right only where all GPUs are alike and shared.
    """
    meta, capacity = node.get("metadata") or {}, (node.get("status") or {}).get("capacity") or {}
    annotations = meta.get("annotations") or {}
    try:
        total, count = (parse_quantity(capacity.get(name, "0")) for name in (resource, GPU_COUNT))
        if not total:
            return Reason("not-shared", f"it offers no {resource}")
        if MEMORY_ANNOTATION in annotations:
            gpus = _parse_gpus(annotations[MEMORY_ANNOTATION])
        elif not 0 < count <= MOST_GPUS:
            return Reason("gpus-unknown", f"it does not publish its GPUs: {GPU_COUNT} is {count}")
        elif total % count:
            return Reason("gpus-unknown", f"its GPUs differ, and it does not publish each one's {resource}")
        else:
            gpus = tuple(Gpu(str(index), total // count) for index in range(count))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Reason("gpus-unknown", f"its published state of the GPUs cannot be read: {error}")
    lost = _lost(annotations.get(status.ANNOTATION))
    return tuple(replace(gpu, lost=gpu.lost or (gpu.uuid or gpu.index) in lost) for gpu in gpus)


def unit_mib(node: Mapping[str, Any], resource: str) -> int:
    """MiB of a unit of the resource; 0 where the node does not publish it."""
    if not isinstance(gpus_of(node, resource), tuple):
        return 0
    text = ((node["metadata"].get("annotations")) or {}).get(MEMORY_ANNOTATION)
    mib = json.loads(text).get("mib", 0) if text else 0
    return mib if isinstance(mib, int) and mib > 0 else 0


def moved_parts(node: Mapping[str, Any]) -> dict[str, tuple[Part, ...]]:
    """Units of containers by the kubelet's record, by their pod's UID, of pods that the node publishes as being on other GPUs
    than noted; {} if it cannot be read."""
    try:
        document = json.loads(
            ((node.get("metadata") or {}).get("annotations") or {}).get(MEMORY_ANNOTATION) or "{}"
        )
        index = {str(gpu["uuid"]): str(gpu["index"]) for gpu in document.get("gpus") or ()}
        return {
            uid: tuple(
                Part(container, index.get(uuid, ""), units, uuid)
                for container, gpus in sorted(containers.items())
                for uuid, units in sorted(gpus.items())
            )
            for uid, containers in read_elsewhere(document).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _parse_gpus(text: str) -> tuple[Gpu, ...]:
    document = json.loads(text)
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']}, expected {VERSION}")
    gpus = tuple(_gpu(gpu) for gpu in document["gpus"])
    if len({gpu.index for gpu in gpus}) < len(gpus) or len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise ValueError("a GPU is listed twice")
    if not 0 < len(gpus) <= MOST_GPUS:
        raise ValueError(f"{len(gpus)} GPUs")
    return gpus


def _gpu(entry: Mapping[str, Any]) -> Gpu:
    """Reserved units are used by an earlier configuration: they cannot be promised."""
    units, reserved = parse_quantity(entry["units"]), parse_quantity(entry.get("reserved", 0))
    return Gpu(
        str(entry["index"]),
        max(units - reserved, 0),
        str(entry["uuid"]),
        bool(entry.get("lost")),
        min(reserved, units),
    )


def _lost(text: str | None) -> set[str]:
    """UUIDs and indexes of GPUs that the plugin's status reports as not allocatable; empty if none is published."""
    if not text:
        return set()
    try:
        return {name for device in status.loads(text).lost for name in (device.device, device.index) if name}
    except ValueError:  # of another version: the kubelet still refuses what is Unhealthy
        return set()


@dataclass(frozen=True, slots=True)
class Promise:
    """A pod's units of a node. `parts`: by GPU; () if unknown. `has`: units of other GPUs that its containers have, as the node
    publishes; they are noted soon, and until then both count. `reserved`: its binding is under way. `leaving`: the pod is
    being deleted."""

    pod: str  # namespace/name
    units: int
    parts: tuple[Part, ...]
    reserved: bool = False
    priority: int = 0
    has: tuple[Part, ...] = ()
    leaving: bool = False


@dataclass(frozen=True, slots=True)
class Nominee:
    """A pod that others make room for on the node, and that is not bound yet (`status.nominatedNodeName`)."""

    uid: str
    wanted: Demand
    priority: int


@dataclass(frozen=True, slots=True)
class Book:
    """A node's GPUs, and the units promised of each. `unplaced`: promised of unknown GPUs. `leaving`: the part of `promised`
    that belongs to pods being deleted. `nominees` are not in it: see `fit.beside_nominees`."""

    gpus: tuple[Gpu, ...] = ()
    promised: tuple[int, ...] = ()
    unplaced: int = 0
    leaving: tuple[int, ...] = ()
    nominees: tuple[Nominee, ...] = ()
    why: Reason | None = None  # nothing of it can be promised
    free: tuple[int, ...] = field(init=False, default=())  # surely, of each GPU
    room: int = field(init=False, default=0)  # of all
    largest: int = field(init=False, default=0)  # GPU, lost ones and reserved units too

    def __post_init__(self) -> None:
        """Any GPU can be the one whose memory is unplaced. Counted once, for many filters."""
        free = [
            0 if gpu.lost else max(gpu.units - promised - self.unplaced, 0)
            for gpu, promised in zip(self.gpus, self.promised, strict=True)
        ]
        object.__setattr__(self, "free", tuple(free))
        object.__setattr__(self, "room", sum(free))
        object.__setattr__(self, "largest", max((gpu.units + gpu.reserved for gpu in self.gpus), default=0))

    def plus(self, promises: Iterable[Promise], sign: int = 1) -> "Book":
        """The book with these promises added; with `sign` -1, removed."""
        promised, unplaced, leaving = list(self.promised), self.unplaced, list(self.leaving)
        leaving = leaving or [0] * len(promised)
        for promise in promises:
            counted = self.units_by_position(promise)
            if counted is None:
                unplaced += sign * promise.units
                continue
            for position, units in counted:
                promised[position] += sign * units
                leaving[position] += sign * units * promise.leaving
        return replace(self, promised=tuple(promised), unplaced=unplaced, leaving=tuple(leaving))

    @property
    def later(self) -> "Book":
        """The book once the pods that are being deleted have ended."""
        left = tuple(units - going for units, going in zip(self.promised, self.leaving, strict=True))
        return replace(self, promised=left, leaving=(0,) * len(left))

    def is_settled(self, promise: Promise) -> bool:
        """True if its containers have the promised GPUs, as far as known."""
        placed = self._place(promise.parts)
        return not promise.has or (placed is not None and self._place(promise.has) == placed)

    def units_by_position(self, promise: Promise) -> Iterable[tuple[int, int]] | None:
        """Positions of GPUs with the promise's units of each; None if its GPUs are unknown."""
        placed = self._place(promise.parts)
        if promise.has:
            has = self._place(promise.has) or {}
            if placed is None and sum(has.values()) < promise.units:
                return None
            placed = {
                key: max((placed or {}).get(key, 0), has.get(key, 0)) for key in {**(placed or {}), **has}
            }
        return None if placed is None else [(position, units) for (_, position), units in placed.items()]

    def _place(self, parts: Iterable[Part]) -> dict[tuple[str, int], int] | None:
        """Units by container and position; None if there are none, or for a GPU that the node does not have."""
        units: dict[tuple[str, int], int] = {}
        for part in parts:
            position = self._position(part)
            if position is None:
                return None
            units[part.container, position] = part.units
        return units or None

    def _position(self, part: Part) -> int | None:
        """By UUID where both have it: indexes change when a GPU is lost."""
        for position, gpu in enumerate(self.gpus):
            if part.uuid == gpu.uuid if part.uuid and gpu.uuid else part.index == gpu.index:
                return position
        return None
