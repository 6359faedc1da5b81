"""One host of a rollout, from its probe to its proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from gpunode.cluster.nodes import Node
from gpunode.cluster.offer import Expected
from gpunode.cluster.reason import Reason
from gpunode.cluster.results import NodeResult, Target
from gpunode.model import Gpu, Host, KernelModule, Outcome, Packages, Reboot


@dataclass(frozen=True, slots=True)
class Member:
    """What is known of one host. `labels`: the node's, with those of this run. `aim`: what its pods are to see;
    `expected`: what its node is to offer, None where that cannot be told.

    `reason`: why it takes no further part; `partly`: why some of its GPUs do not.
    """

    host: Host
    outcome: Outcome
    node: Node | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    aim: Target | None = None
    expected: Expected = None
    reason: Reason | None = None
    partly: Reason | None = None
    result: NodeResult | None = None

    @property
    def good(self) -> bool:
        """Whether the host itself is as it should be."""
        return self.outcome.status in ("right", "changed")

    @property
    def going(self) -> bool:
        """Whether it takes part in the next stage."""
        return self.good and self.node is not None and self.reason is None

    @property
    def wrong(self) -> Reason | None:
        """Why not all of it is proven; None while nothing is known to be wrong."""
        return self.reason or self.partly

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.outcome.facts.gpus if self.outcome.facts else ()

    @property
    def driver_changed(self) -> bool:
        """Whether this run changed its driver: containers keep the libraries that they were started with."""
        return any(isinstance(change, (KernelModule, Packages, Reboot)) for change in self.outcome.applied)

    @property
    def no_driver(self) -> str:
        """Why no plugin can find GPUs on the host; "" where one may."""
        seen = self.outcome.facts
        if seen and seen.smi_error:
            return f"nvidia-smi fails there: {seen.smi_error.strip().splitlines()[0]}"
        if seen and not seen.gpus and "nvidia" not in seen.modules:
            return "no nvidia module is loaded there"
        return ""

    def out(self, reason: Reason | None) -> Member:
        """The same, taking no further part for this reason (None: as it was)."""
        return self if reason is None else replace(self, reason=reason)
