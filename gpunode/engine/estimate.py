"""What a run costs: its batches, what they interrupt, and how long it takes, without its waits for work to end."""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.engine import control_plane, rounds
from gpunode.engine.batch_order import Size
from gpunode.engine.cluster_diff import ClusterPlan
from gpunode.engine.history import mean_seconds
from gpunode.engine.member import Member
from gpunode.engine.phases import PLUGIN, PODS, PROBES, REBOOTS, WORK
from gpunode.engine.reporter import Headline
from gpunode.engine.session import Session
from gpunode.model import Host

# Seconds of a host by phase, as a rule: no measurement of this fleet. Of `restarts`, each.
TYPICAL: Mapping[str, float] = {
    "packages": 90.0,
    "drivers": 150.0,
    "images": 10.0,
    "restarts": 8.0,
    "modules": 5.0,
    REBOOTS: 120.0,
    PROBES: 3.0,
    PLUGIN: 5.0,
    PODS: 10.0,
}
EACH = "restarts"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Seconds of a run; `typical`: some of them no earlier run has shown."""

    seconds: float
    typical: bool

    def __str__(self) -> str:
        """`about 40 s`, `about 4 min (typical times)`, `about 2 h 10 min`; never less than 10 s."""
        return f"about {_round(self.seconds)}{' (typical times)' if self.typical else ''}"


def report_costs(
    session: Session,
    order: Sequence[Sequence[Host]],
    members: Sequence[Member],
    cluster: ClusterPlan,
    *,
    size: Size | None = None,
    canary: int = 0,
    run: bool = True,
    accepted: bool = False,
) -> str:
    """Report the batches, and how to go faster. Returns the costs of the hosts' changes as text; "" if there are none. `run`: with
    test pods. `accepted`: no question has the costs, so they are reported."""
    waiting = [member for member in members if member.has_changes]
    alone = control_plane.disturbed_hosts(tuple(members))
    common = [batch for batch in order if batch[0].name not in alone]
    rows = rounds.batch_rows(order, waiting, common[0] if canary and common else ())
    session.reporter.rows("batch", ("batch", "hosts", "changes", "disturbed", "words"), rows)
    if way := rounds.faster_way([row for row in rows if row[2]], size):
        session.reporter.note(way)
    if not waiting:
        return ""
    proves = run and session.inventory.cluster.plugin is not None
    time = estimate(order, waiting, mean_seconds(Path(session.inventory.path)), proves=proves)
    costs = rounds.costs(waiting, cluster.objects, len(rows), cluster.replaced, cluster.tainted, str(time))
    if accepted:
        session.reporter.note(Headline(costs))
    return costs


def estimate(
    order: Sequence[Collection[Host]],
    waiting: Sequence[Member],
    earlier: Mapping[str, float],
    *,
    proves: bool,
) -> Estimate:
    """The time of all batches, one after the other; the hosts of one work side by side. `earlier`: seconds of a host by phase.
    `proves`: in the cluster, with test pods."""
    known = {member.host.name: _phases(member) for member in waiting}
    stages = Counter([PROBES, PLUGIN, PODS] if proves else [PROBES])
    total, used = 0.0, set[str]()
    for batch in order:
        plans = [known[host.name] for host in batch if host.name in known]
        total += max((_sum(plan, earlier) for plan in plans), default=0.0) + _sum(stages, earlier)
        used.update(stages, *plans)
    return Estimate(total, typical=not used & TYPICAL.keys() <= earlier.keys())


def _phases(member: Member) -> Counter[str]:
    """The phases of the host's plan, each with the number of its changes."""
    phases = Counter(WORK[type(change).__name__] for change in member.changes)
    if member.disturbs.reload:
        del phases[REBOOTS]
        phases["modules"] += 1
    return phases


def _sum(phases: Mapping[str, int], earlier: Mapping[str, float]) -> float:
    return sum(
        earlier[phase] if phase in earlier else TYPICAL.get(phase, 0.0) * (times if phase == EACH else 1)
        for phase, times in phases.items()
    )


def _round(seconds: float) -> str:
    if seconds < 55:
        return f"{max(10, math.ceil(seconds / 10) * 10)} s"
    minutes = math.ceil(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, rest = divmod(math.ceil(minutes / 10) * 10, 60)
    return f"{hours} h{f' {rest} min' if rest else ''}"
