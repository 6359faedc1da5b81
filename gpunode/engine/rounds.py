"""Rounds of plan and apply over hosts, until no plan is left or a host does not converge; and the batches of those hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gpunode.engine import control_plane, converge, impact
from gpunode.engine.batches import Size, batches
from gpunode.engine.fleet import Visit
from gpunode.engine.impact import Act
from gpunode.engine.listener import problem
from gpunode.engine.member import Member, Members, update
from gpunode.engine.session import Session
from gpunode.errors import Problem
from gpunode.model import Host, OnEvent, Outcome
from gpunode.wording import Advice, Command, several

# A host right before its changes, which may have to wait for work, and may have another plan then.
Ready: TypeAlias = Callable[[Member, Visit, OnEvent], Member]

MANY = 5  # batches
STOPPED = "stopped"  # code: its batch was not begun
AGAIN = Advice("Run `", Command("provision"), "` again: it shows the whole plan as it is now.")


def probe_all(
    session: Session, away: Mapping[str, float], members: Sequence[Member] | None = None
) -> Members:
    """The members (None: one for every host), probed and planned, once an apply that is still under way there has ended. Earlier restarts that were
    kept unconfirmed are confirmed. `away`: host → seconds for which it may still reboot."""
    return session.for_each_host(
        lambda visit, emit: story(visit, emit, away.get(visit.host.name, 0.0)), members
    )


def story(visit: Visit, emit: OnEvent, away: float = 0.0) -> Outcome:
    """One host's, as `probe_all` has it."""
    return converge.confirm_restarts(
        visit, converge.follow_running_apply(visit, converge.wait_until_back(visit, away, emit), emit), emit
    )


def converge_all(
    session: Session,
    members: Members,
    accepted: Mapping[str, frozenset[Act]],
    ready: Ready = lambda one, _visit, _emit: one,
) -> Members:
    """The members after all rounds. What is known only after an act comes in a later round; a host whose later plan holds
    an act that was not accepted is stopped before it."""

    def within(member: Member) -> Member:
        return _within(member, accepted.get(member.host.name, frozenset()))

    for _ in range(converge.ROUNDS):
        members = tuple(map(within, members))
        waiting = [member for member in members if _goes(member)]
        if not waiting:
            break
        members = _applied(session, members, waiting, lambda *one: within(ready(*one)))
    return tuple(_ended(member) for member in members)


def order_batches(
    members: Members, *, begun: Collection[str] = (), size: Size | None = None, canary: int = 0
) -> tuple[tuple[Host, ...], ...]:
    """The hosts that can be worked on, as `batches` has them."""
    return batches(
        [member.host for member in members if member.host_ok or member.has_changes],
        [member.host.name for member in members if member.has_changes and member.disturbs.anybody],
        alone=control_plane.disturbed(members),
        begun=begun,
        size=size,
        canary=canary,
    )


def rows(order: Sequence[Sequence[Host]], waiting: Sequence[Member]) -> list[tuple[object, ...]]:
    """The batches by number: their hosts, those with changes, those that are disturbed, and by what, in words. () where all
    changes are made at once."""
    known = {one.host.name: one for one in waiting}
    found: list[tuple[object, ...]] = []
    for number, batch in enumerate(order, 1):
        here = [known[host.name] for host in batch if host.name in known]
        heavy = [member for member in here if member.disturbs.what]
        words = list(dict.fromkeys(one.disturbs.what.describe(_reboot(one)) for one in heavy))
        names = [
            [host.name for host in batch],
            [one.host.name for one in here],
            [one.host.name for one in heavy],
        ]
        found.append((number, *names, words))
    return found if len([row for row in found if row[2]]) > 1 else []


def question(
    waiting: Sequence[Member], objects: int, inventory: str, batches: int = 0, replaced: int = 0
) -> str:
    """What is asked before anything is changed: what it costs, pods of the plugin that are `replaced` among it, and the
    inventory."""
    if not waiting:
        return f"Apply {inventory} to the cluster?"
    what = f"{several(len(waiting), 'host')}{' and the cluster' if objects else ''}"
    plugin = [f"{several(replaced, 'pod')} of the plugin replaced"] if replaced else []
    costs = [*_costs(waiting), *plugin, *([f"{batches} batches"] if batches > 1 else [])]
    return f"{what}: {', '.join(costs)}. Apply {inventory}?"


def faster_way(rows: Sequence[Sequence[object]], size: Size | None) -> str:
    """The way to fewer batches, where there are many and the user has chosen no `size`; else ""."""
    if len(rows) <= MANY or size is not None:
        return ""
    words = f"{len(rows)} batches, one after the other: `"
    return Advice(words, Command("provision", "--batch 25%"), "` is faster, and disturbs more hosts at once.")


def _costs(waiting: Sequence[Member]) -> list[str]:
    """`1 reboot`, `2 restarts of docker`, `nobody works there`: of these plans together."""
    found = [member.disturbs for member in waiting]
    reboots = sum(one.what.reboot and not one.reload for one in found)
    tried = sum(one.reload for one in found)
    reloads = sum(one.what.modules and not one.reload for one in found)
    units = Counter(unit.removesuffix(".service") for one in found for unit in one.what.restarts)
    busy = [one for one in found if one.anybody]
    pods, unknown = sum(len(one.pods or ()) for one in busy), sum(one.pods is None for one in busy)
    processes = sum(len(one.processes) for one in busy)
    quiet = "nobody works there" if any(one.what for one in found) else "nothing interrupted"
    return [
        *([several(reboots, "reboot")] if reboots else []),
        *([f"{several(tried, 'reload')} of the modules (a reboot where it fails)"] if tried else []),
        *([f"{several(reloads, 'reload')} of the modules"] if reloads else []),
        *(f"{several(times, 'restart')} of {unit}" for unit, times in units.items()),
        *([f"{several(pods, 'pod')} disturbed"] if pods else []),
        *([f"{several(processes, 'process')} disturbed"] if processes else []),
        *([f"pods unknown on {several(unknown, 'host')}"] if unknown else []),
        *([] if busy else [quiet]),
    ]


def _reboot(member: Member) -> str:
    return "reload of the modules or reboot" if member.disturbs.reload else "reboot"


def _within(member: Member, accepted: frozenset[Act]) -> Member:
    if not member.has_changes or member.outcome is None or member.outcome.plan is None:
        return member
    new = impact.unshown(member.outcome.plan.changes, accepted)
    if not new:
        return member
    error = f"what is known only now asks for more than was shown: {new}"
    return replace(
        member, outcome=replace(member.outcome, status="failed", problem=Problem("", error, fix=AGAIN))
    )


def _goes(member: Member) -> bool:
    return member.has_changes and member.reason is None


def _applied(session: Session, members: Members, waiting: Sequence[Member], ready: Ready) -> Members:
    """One round: the members, of which those that wait have their plans applied and are planned again."""
    now = {one.host.name: one for one in waiting}

    def story(visit: Visit, emit: OnEvent) -> Outcome:
        name = visit.host.name
        one = now[name] = ready(now[name], visit, emit)
        assert one.outcome is not None
        return converge.apply(visit, one.outcome, emit) if _goes(one) else one.outcome

    done = session.each(story, [one.host for one in waiting])
    session.listener.failures(done)
    after = [replace(now[outcome.host], outcome=outcome) for outcome in done]
    for member in after:
        problem(session.listener, member.host.name, member.reason)
    return update(members, after)


def _ended(member: Member) -> Member:
    """A host that still has a plan after all rounds is not right."""
    if (
        not member.has_changes
        or member.reason is not None
        or member.outcome is None
        or member.outcome.plan is None
    ):
        return member
    left = ", ".join(step.step for step in member.outcome.plan.steps if step.changes)
    outcome = replace(
        member.outcome,
        status="failed",
        problem=Problem(
            "",
            f"it does not converge: after {converge.ROUNDS} rounds changes of {left} are still needed",
            fix=Advice("`", Command("plan"), "` shows them; something else on the host reverts them."),
        ),
    )
    return replace(member, outcome=outcome)
