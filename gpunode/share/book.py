"""A node's book: its GPUs, and what is promised of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpunode.contract.promises import Demand, Part
from gpunode.contract.status import Reason

from .gpus import Gpu


@dataclass(frozen=True, slots=True)
class Promise:
    """A pod's units of a node. `parts`: of which GPUs; () if unknown. `has`: what the node publishes that its
    containers have of other GPUs; it is noted soon, and until then both count. `reserved`: its binding is
    under way. `leaving`: the pod is being deleted."""

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
    """A node's GPUs, and what is promised of each, in units. `unplaced`: promised of unknown GPUs. `leaving`: what
    of `promised` is of pods that are being deleted. `nominees` hold nothing of it: see `nominated.beside`."""

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

    def plus(self, promises: Iterable[Promise], sign: int = 1) -> Book:
        """The book with these promises more; with `sign` -1, without them."""
        promised, unplaced, leaving = list(self.promised), self.unplaced, list(self.leaving)
        leaving = leaving or [0] * len(promised)
        for one in promises:
            found = self.counted(one)
            if found is None:
                unplaced += sign * one.units
                continue
            for position, units in found:
                promised[position] += sign * units
                leaving[position] += sign * units * one.leaving
        return replace(self, promised=tuple(promised), unplaced=unplaced, leaving=tuple(leaving))

    @property
    def later(self) -> Book:
        """The book once the pods that are being deleted have ended."""
        left = tuple(units - going for units, going in zip(self.promised, self.leaving, strict=True))
        return replace(self, promised=left, leaving=(0,) * len(left))

    def settled(self, one: Promise) -> bool:
        """Whether its containers have what was promised, as far as is known."""
        placed = self._placed(one.parts)
        return not one.has or (placed is not None and self._placed(one.has) == placed)

    def counted(self, one: Promise) -> Iterable[tuple[int, int]] | None:
        """Positions of GPUs with the promise's units of each; None where its GPUs are unknown."""
        placed = self._placed(one.parts)
        if one.has:
            has = self._placed(one.has) or {}
            if placed is None and sum(has.values()) < one.units:
                return None
            placed = {
                key: max((placed or {}).get(key, 0), has.get(key, 0)) for key in {**(placed or {}), **has}
            }
        return None if placed is None else [(position, units) for (_, position), units in placed.items()]

    def _placed(self, parts: Iterable[Part]) -> dict[tuple[str, int], int] | None:
        """Units by container and position; None where there are none, or of a GPU that the node has not."""
        found: dict[tuple[str, int], int] = {}
        for part in parts:
            position = self._position(part)
            if position is None:
                return None
            found[part.container, position] = part.units
        return found or None

    def _position(self, part: Part) -> int | None:
        """By UUID where both have it: indexes change when a GPU is lost."""
        for position, gpu in enumerate(self.gpus):
            if part.uuid == gpu.uuid if part.uuid and gpu.uuid else part.index == gpu.index:
                return position
        return None
