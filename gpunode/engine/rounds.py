"""Rounds of plan and apply over hosts, until no plan is left or a host does not converge; and the batches of those hosts."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from gpunode.engine import control_plane, converge, impact
from gpunode.engine.batch_order import Size, split_batches
from gpunode.engine.fleet import Visit
from gpunode.engine.impact import Act
from gpunode.engine.member import Member, Members
from gpunode.engine.session import Session
from gpunode.errors import Problem
from gpunode.host import diff
from gpunode.links.driver.plan import later_driver
from gpunode.links.node import taint
from gpunode.links.runtime import docker
from gpunode.model import Change, Host, OnEvent, Outcome
from gpunode.wording import advise, several

MANY = 5  # batches
STOPPED = "stopped"  # code: its batch was not begun
AGAIN = advise("Run `gpunode provision` again to see the current plan.")


def probe_all(
    session: Session, away: Mapping[str, float], members: Sequence[Member] | None = None
) -> Members:
    """The members (None: one for every host), probed and planned once no earlier apply runs there any more. Restarts that stayed
    unconfirmed are confirmed. `away`: host → seconds for which it may still reboot."""
    return session.for_each_host(
        lambda visit, emit: probe_host(visit, emit, away.get(visit.host.name, 0.0)), members
    )


def probe_host(visit: Visit, emit: OnEvent, away: float = 0.0) -> Outcome:
    """The outcome of one host, as in `probe_all`."""
    visit.planner = None  # it may rest on a journal that another run has extended
    return converge.confirm_restarts(
        visit, converge.follow_running_apply(visit, converge.wait_until_back(visit, away, emit), emit), emit
    )


def converge_host(
    visit: Visit,
    member: Member,
    accepted: frozenset[Act],
    emit: OnEvent,
    ready: Callable[[Member], Member] = lambda member: member,
    record: str = "",
) -> Member:
    """The member after all rounds of this run. Changes that are known only after an act come in a later round; a host whose later plan
    needs an act that was not accepted is stopped before it. `ready`: right before each round; the plan may be another then."""
    for _ in range(converge.ROUNDS):
        member = _stop_unaccepted(member, accepted)
        if not may_change(member):
            return member
        member = _stop_unaccepted(ready(member), accepted)
        if may_change(member) and member.outcome:
            member = replace(member, outcome=converge.apply(visit, member.outcome, emit, record))
    return _fail_unconverged(member)


def order_batches(
    members: Members, *, begun: Collection[str] = (), size: Size | None = None, canary: int = 0
) -> tuple[tuple[Host, ...], ...]:
    """The batches of the hosts that are right or have changes. Those that an earlier run has `begun` go first, and those whose nodes
    are tainted until their proof. A node that is to be tainted again counts as disturbed."""
    closed = {member.host.name for member in members if member.node and taint.run_of(member.node)}
    return split_batches(
        [member.host for member in members if member.host_ok or member.has_changes],
        [
            member.host.name
            for member in members
            if (member.has_changes and member.disturbs.anybody) or member.closes
        ],
        alone=control_plane.disturbed_hosts(members),
        unchanged=[
            member.host.name for member in members if not member.has_changes and member.host.name not in begun
        ],
        begun=closed.union(begun),
        size=size,
        canary=canary,
    )


def batch_rows(
    order: Sequence[Sequence[Host]], waiting: Sequence[Member], canary: Sequence[Host] = ()
) -> list[tuple[object, ...]]:
    """A row per batch: its number, its hosts, those with changes, those that are disturbed, and the causes as text, after the word
    `canary` for that batch. [] if one batch makes all changes."""
    known = {member.host.name: member for member in waiting}
    table: list[tuple[object, ...]] = []
    for number, batch in enumerate(order, 1):
        here = [known[host.name] for host in batch if host.name in known]
        heavy = [member for member in here if member.disturbs.what]
        effects = [member.disturbs for member in heavy]
        causes = [effect.describe() for effect in effects]
        names = [
            [host.name for host in batch],
            [member.host.name for member in here],
            [member.host.name for member in heavy],
        ]
        title = ["canary"] if here and batch == canary else []
        table.append((number, *names, [*title, *dict.fromkeys(causes)]))
    return table if len([row for row in table if row[2]]) > 1 else []


def costs(
    waiting: Sequence[Member],
    objects: int,
    batches: int = 0,
    replaced: int = 0,
    tainted: int = 0,
    time: str = "",
) -> str:
    """`3 hosts and the cluster: 1 reboot, 0 pods disturbed, 2 batches, about 4 min`. `replaced`: pods of the plugin; `tainted`: nodes."""
    what = f"{several(len(waiting), 'host')}{' and the cluster' if objects else ''}"
    plugin = [f"{several(replaced, 'pod')} of the plugin replaced"] if replaced else []
    taints = [f"{several(tainted, 'node')} tainted until verified"] if tainted else []
    parts = [*_costs(waiting), *plugin, *taints, *([f"{batches} batches"] if batches > 1 else [])]
    return f"{what}: {', '.join([*parts, *filter(None, [time])])}"


def faster_way(rows: Sequence[Sequence[object]], size: Size | None) -> str:
    """Advice to use fewer batches if there are many and the user chose no `size`; else ""."""
    if len(rows) <= MANY or size is not None:
        return ""
    return advise(
        f"{len(rows)} batches, one after the other: `gpunode provision --batch 25%` is faster, and disturbs more hosts at once."
    )


def _costs(waiting: Sequence[Member]) -> list[str]:
    """The costs of all these plans: `1 reboot`, `2 restarts of docker`, `0 pods disturbed`."""
    effects = [member.disturbs for member in waiting]
    reboots = sum(effect.what.reboot and not effect.reload for effect in effects)
    tried = sum(effect.reload for effect in effects)
    reloads = sum(effect.what.modules and not effect.reload for effect in effects)
    units = Counter(unit for effect in effects for unit in effect.what.restarts)
    stopped = sum(map(_stopped_containers, waiting))
    ends = (
        {docker.UNITS[0]: f" ({several(stopped, 'container')} {'stops' if stopped == 1 else 'stop'})"}
        if stopped
        else {}
    )
    busy = [effect for effect in effects if effect.ends_work]
    pods = sum(len(effect.pods or ()) for effect in busy)
    unknown = sum(effect.pods is None for effect in busy)
    processes = sum(len(effect.processes) for effect in busy)
    older = sum(map(_is_downgraded, waiting))
    return [
        *([several(older, "downgrade") + " of the driver"] if older else []),
        *([several(reboots, "reboot")] if reboots else []),
        *([f"{several(tried, 'driver reload')} (reboot if that fails)"] if tried else []),
        *([several(reloads, "driver reload")] if reloads else []),
        *(
            f"{several(times, 'restart')} of {unit.removesuffix('.service')}{ends.get(unit, '')}"
            for unit, times in units.items()
        ),
        *([f"{several(pods, 'pod')} disturbed"] if pods else []),
        *([f"{several(processes, 'process')} disturbed"] if processes else []),
        *([f"pods unknown on {several(unknown, 'host')}"] if unknown else []),
        *([] if busy else ["0 pods disturbed"]),
    ]


def _stopped_containers(member: Member) -> int:
    """How many containers stop with docker, with those that are of no pod."""
    restarted = docker.UNITS[0] in member.disturbs.what.restarts
    return docker.stopped_by_restart(member.facts) if member.facts and restarted else 0


def _is_downgraded(member: Member) -> bool:
    """Whether the plan brings an older driver than the loaded one."""
    desired = member.outcome.desired if member.outcome else None
    return bool(desired and desired.driver and member.facts and later_driver(member.facts, desired.driver))


def _stop_unaccepted(member: Member, accepted: frozenset[Act]) -> Member:
    if not may_change(member) or member.outcome is None or member.outcome.plan is None:
        return member
    changes = member.outcome.plan.changes
    new = impact.describe_unaccepted(changes, accepted)
    if not new:
        return member
    due = [change for change in changes if impact.describe_unaccepted([change], accepted)]
    error = _with_reasons(f"the host now needs more than the plan showed: {new}", due)
    return replace(
        member, outcome=replace(member.outcome, status="failed", problem=Problem("", error, fix=AGAIN))
    )


def _with_reasons(error: str, changes: Iterable[Change]) -> str:
    return "\n".join((error, *(f"  {diff.headline(change)}: {change.why}" for change in changes)))


def may_change(member: Member) -> bool:
    """True if it has changes and takes part."""
    return member.has_changes and member.reason is None


def _fail_unconverged(member: Member) -> Member:
    """A host that still has a plan after all rounds is not right."""
    if not may_change(member) or member.outcome is None or member.outcome.plan is None:
        return member
    left = ", ".join(step.step for step in member.outcome.plan.steps if step.changes)
    outcome = replace(
        member.outcome,
        status="failed",
        problem=Problem(
            "",
            _with_reasons(
                f"it does not converge: after {converge.ROUNDS} rounds changes of {left} are still needed",
                member.changes,
            ),
            fix=advise("`gpunode plan` shows them; something else on the host reverts them."),
        ),
    )
    return replace(member, outcome=outcome)
