"""A node's book: its GPUs, and what is promised of each. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpunode.deviceplugin.promises.placement import Part
from gpunode.deviceplugin.status import Reason

from .gpus import Gpu


@dataclass(frozen=True, slots=True)
class Promise:
    """A pod's units of a node. `parts`: of which GPUs; () if nobody knows. `reserved`: its binding is under way."""

    pod: str  # namespace/name
    units: int
    parts: tuple[Part, ...]
    reserved: bool = False
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Book:
    """A node's GPUs, and what is promised of each, in units. `unplaced`: promised of GPUs that nobody knows."""

    gpus: tuple[Gpu, ...] = ()
    promised: tuple[int, ...] = ()
    unplaced: int = 0
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
        promised, unplaced = list(self.promised), self.unplaced
        for one in promises:
            positions = [self._position(part) for part in one.parts]
            if not one.parts or None in positions:
                unplaced += sign * one.units
                continue
            for position, part in zip(positions, one.parts, strict=True):
                if position is not None:
                    promised[position] += sign * part.units
        return replace(self, promised=tuple(promised), unplaced=unplaced)

    def _position(self, part: Part) -> int | None:
        """By UUID where both have it: indexes change when a GPU is lost."""
        for position, gpu in enumerate(self.gpus):
            if part.uuid == gpu.uuid if part.uuid and gpu.uuid else part.index == gpu.index:
                return position
        return None
