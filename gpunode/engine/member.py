"""One host of a rollout, from its probe to its proof."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from gpunode.errors import Problem
from gpunode.links.machine.pci import driven
from gpunode.links.node import Node, cordon, taint
from gpunode.links.plugin import cordons
from gpunode.links.pod.vectoradd import NodeResult
from gpunode.model import Change, Disturbance, Disturbed, Facts, Gpu, Host, Layout, Outcome, Verdict

PAUSED = "run-paused"  # code of a reason: the operator stopped the run first


@dataclass(frozen=True, slots=True)
class Member:
    """One host's state in a run. `outcome`: None before its probe. `labels`: the node's, with those of this run.

    `spent`: seconds by phase, once its batch has ended. `verdicts`: of the cluster's links judged so far; `result`: of vectoradd. `reason`: why it is excluded. `idle_pods_left`: idle pods
    that hold its GPUs were left on it, and may run by now. `closes`: the plan has its node tainted again, as its required acceptance
    ran out; batches are made for it, so it stays as of the plan.
    """

    host: Host
    outcome: Outcome | None = None
    node: Node | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    reason: Problem | None = None
    verdicts: tuple[Verdict, ...] = ()
    result: NodeResult | None = None
    idle_pods_left: bool = False
    closes: bool = False
    spent: Mapping[str, float] = field(default_factory=dict)

    @property
    def host_ok(self) -> bool:
        """True if the host itself is in its desired state."""
        return self.outcome is not None and self.outcome.status in ("right", "changed")

    @property
    def has_changes(self) -> bool:
        """True if the host has changes that may be applied."""
        outcome = self.outcome
        return outcome is not None and bool(outcome.plan) and outcome.status in ("planned", "changed")

    @property
    def changes(self) -> tuple[Change, ...]:
        """The changes of its plan, in order."""
        plan = self.outcome.plan if self.outcome else None
        return plan.changes if plan else ()

    @property
    def layouts(self) -> Mapping[str, Layout]:
        """The MIG layouts that the inventory has for its GPUs, by PCI address."""
        return self.outcome.desired.mig if self.outcome and self.outcome.desired else {}

    @property
    def disturbs(self) -> Disturbed:
        """What its plan interrupts; nothing if that was not asked for."""
        known = self.outcome.disturbs if self.outcome else None
        return known or Disturbed(Disturbance(), pods={})

    @property
    def active(self) -> bool:
        """True if it takes part in the next stage."""
        stopped = any(verdict.status == "broken" and not verdict.partial for verdict in self.verdicts)
        return self.node is not None and self.reason is None and not stopped

    @property
    def proven(self) -> bool:
        """True if the host is right and its GPUs are proven as far as requested."""
        return (
            self.host_ok and self.problem is None and all(verdict.status == "ok" for verdict in self.verdicts)
        )

    @property
    def in_use(self) -> bool:
        """True if all that can be judged is right and none of its GPUs is free for a proof: work that its changes, if any, did not
        disturb has them. False if this or an earlier run cordoned or tainted it: its proof is due."""
        right = self.host_ok and self.problem is None
        right = right and all(verdict.status == "ok" for verdict in self.verdicts if verdict.layer != "pod")
        node = self.node
        due = node is not None and (cordon.TAINT in node.taints or bool(taint.run_of(node)))
        return right and not due and self.result is not None and self.result.busy

    @property
    def problem(self) -> Problem | None:
        """Why it is not proven; None if no problem is known."""
        broken = (verdict.problem for verdict in self.verdicts if verdict.status == "broken")
        return self.reason or next(broken, None)

    @property
    def facts(self) -> Facts | None:
        return self.outcome.facts if self.outcome else None

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """Its GPUs that pods should get: without those that an operator has cordoned."""
        if self.facts is None:
            return ()
        out = cordons.read(self.facts)
        return tuple(gpu for gpu in self.facts.gpus if gpu.uuid not in out)

    @property
    def addresses(self) -> tuple[str, ...]:
        """PCI addresses of the GPUs that NVIDIA's driver is for."""
        return tuple(device.address for device in driven(self.facts.pci)) if self.facts else ()

    @property
    def bare(self) -> bool:
        """True if the host has no pods: it is no node, and no kubelet, container or virtual machine runs there. False if unknown."""
        seen = self.facts
        if self.node is not None or seen is None or "kubelet" in seen.errors:
            return False
        return seen.containers == 0 and not (seen.kubelet and seen.kubelet.arguments)

    @property
    def no_driver(self) -> str:
        """Why the device plugin cannot find GPUs on this host; "" if it can."""
        seen = self.facts
        if seen and seen.smi_error:
            return f"nvidia-smi fails there: {seen.smi_error.strip().splitlines()[0]}"
        if seen and not seen.gpus and "nvidia" not in seen.modules:
            return "no nvidia module is loaded there"
        return ""

    def exclude(self, reason: Problem | None) -> "Member":
        """A copy that takes no further part, for this reason; unchanged for None."""
        return self if reason is None else replace(self, reason=reason)


Members: TypeAlias = tuple[Member, ...]


def update(members: Iterable[Member], changed: Iterable[Member]) -> Members:
    """The members, with the changed ones in place of those of the same host."""
    after = {member.host.name: member for member in changed}
    return tuple(after.get(member.host.name, member) for member in members)


def outcomes(members: Iterable[Member]) -> list[Outcome]:
    """The outcomes of the hosts that were probed."""
    return [member.outcome for member in members if member.outcome is not None]
