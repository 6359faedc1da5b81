"""One node's part of a vectoradd run: the results of its pods, and the next requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from gpunode.links.node import Node
from gpunode.links.pod.requests import Free, Request, Target, more
from gpunode.links.pod.results import NodeResult, Result


@dataclass(slots=True)
class Job:
    """One node's part of a run that is under way."""

    target: Target
    node: Node | None = None
    free: Free | None = None
    wanted: tuple[str, ...] = ()  # UUIDs that the pods should see
    waves: list[Sequence[Request]] = field(default_factory=list)  # not requested yet
    left: dict[str, int] = field(default_factory=dict)  # free shares beyond the waves
    names: list[str] = field(default_factory=list)
    requested: dict[str, Request] = field(default_factory=dict)  # by each pod
    why: str = ""
    results: dict[str, list[Result]] = field(default_factory=dict)  # of each pod, one for each GPU
    unseen: set[str] = field(default_factory=set)  # created since the pods were first listed
    tried: float = 0.0  # when a pod was last recreated; monotonic

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

    def next(self) -> Sequence[Request]:
        """The requests that follow once all pods so far are done; () for none."""
        if self.free is None or any(not one.passed and not one.uuid for one in self.found):
            return ()
        if self.waves:
            return self.waves.pop(0)
        seen = {one.uuid for one in self.found}
        found = more(self.free, self.left, seen, self.wanted, len(self.names))
        for resource, amount in found:
            self.left[resource] -= amount
        return found

    def share(self, name: str) -> int | None:
        """MiB of a GPU's memory that this pod requested; 0 where unknown, None where it requested none."""
        return self.free.share(self.requested[name]) if self.free else None

    def wrong(self, name: str, gpu: Mapping[str, Any]) -> str:
        """What is wrong with a GPU on which this pod's program passed; "" for nothing. `gpu` is the program's report."""
        share, limit = self.share(name), gpu.get("limit_mib")
        if share and limit not in (None, share):
            return f"it requested {share} MiB of memory, but its limit is {limit} MiB"
        if gpu.get("exclusive") and self.free and self.requested[name][0] in self.free.parts:
            return (
                "the GPU's compute mode allows one process at a time, so pods cannot share it: run "
                f"`nvidia-smi -i {gpu.get('uuid')} -c DEFAULT` on the host"
            )
        return ""

    def verdict(self) -> NodeResult:
        seen = {result.uuid for result in self.found}
        wanted, why, free = self.wanted, self.why, self.free
        if free is None:
            return NodeResult(self.target.node, (), tuple(wanted), why=why, wanted=self.target.uuids)
        # An image that reports no UUID: only the number of GPUs is known.
        uncovered = () if "" in seen else tuple(uuid for uuid in wanted if uuid not in seen)
        if len(self.results) < len(wanted) and not free.users and free.offered < len(wanted):
            why = why or f"the node offered {free.offered} of {len(wanted)} GPUs"
        divided = free.divided and "" not in seen
        return NodeResult(
            self.target.node,
            tuple(self.found),
            uncovered,
            free.users,
            why,
            divided,
            free.memory is not None,
            busy=bool(free.users) and not free.waves,
            wanted=self.target.uuids,
        )
