"""One node's part of a run of vectoradd: what its pods have shown, and what is still to be asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpunode.cluster import asks
from gpunode.cluster.nodes import Node
from gpunode.cluster.results import NodeResult, Result, Target


@dataclass(slots=True)
class Job:
    """One node's part of a run, while it goes on."""

    target: Target
    node: Node | None = None
    free: asks.Free | None = None
    wanted: tuple[str, ...] = ()  # UUIDs that the pods are to see
    waves: list[Sequence[asks.Ask]] = field(default_factory=list)  # that are still to come
    left: dict[str, int] = field(default_factory=dict)  # shares that are free besides
    names: list[str] = field(default_factory=list)
    asked: dict[str, asks.Ask] = field(default_factory=dict)  # what each pod asks for
    why: str = ""
    results: dict[str, list[Result]] = field(default_factory=dict)  # of each pod, one for each GPU
    unseen: set[str] = field(default_factory=set)  # made since the pods were first listed
    tried: float = 0.0  # when a pod was last made again

    @property
    def done(self) -> bool:
        return len(self.results) == len(self.names)

    @property
    def waiting(self) -> list[str]:
        """Pods without a result."""
        return [name for name in self.names if name not in self.results]

    @property
    def found(self) -> list[Result]:
        return [one for name in self.names for one in self.results[name]]

    def next(self) -> Sequence[asks.Ask]:
        """What to ask for now that all pods made so far are done; () where that is all."""
        if self.free is None or any(not one.passed and not one.uuid for one in self.found):
            return ()
        if self.waves:
            return self.waves.pop(0)
        seen = {one.uuid for one in self.found}
        found = asks.more(self.free, self.left, seen, self.wanted, len(self.names))
        for resource, amount in found:
            self.left[resource] -= amount
        return found

    def share(self, name: str) -> int | None:
        """The MiB of a GPU's memory that this pod asked for; 0 where that is not known, None where it asked for none."""
        return self.free.share(self.asked[name]) if self.free else None

    def wrong(self, name: str, gpu: Mapping[str, Any]) -> str:
        """What is wrong with a GPU on which this pod's program passed; "" for nothing. `gpu` is what the program says of it."""
        share, limit = self.share(name), gpu.get("limit_mib")
        if share and limit not in (None, share):
            return f"it asked for {share} MiB of memory, but its limit is {limit} MiB"
        if gpu.get("exclusive") and self.free and self.asked[name][0] in self.free.parts:
            return (
                "the GPU's compute mode lets only one process at a time use it, so pods cannot share it: run "
                f"`nvidia-smi -i {gpu.get('uuid')} -c DEFAULT` on the host"
            )
        return ""

    def verdict(self) -> NodeResult:
        seen = {result.uuid for result in self.found}
        wanted, why, free = self.wanted, self.why, self.free
        if free is None:
            return NodeResult(self.target.node, (), tuple(wanted), why=why)
        # An image that does not tell which GPU it had: only their number is known.
        uncovered = () if "" in seen else tuple(uuid for uuid in wanted if uuid not in seen)
        if len(self.results) < len(wanted) and not free.users and free.offered < len(wanted):
            why = why or f"the node offered {free.offered} of {len(wanted)} GPUs"
        divided = free.divided and "" not in seen
        return NodeResult(
            self.target.node, tuple(self.found), uncovered, free.users, why, divided, bool(free.memory)
        )
