"""What the runs of all commands share: their hosts as planned, record, Lease, batch after batch, and what the end reports."""

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from types import MappingProxyType

from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.lease import Held, hold
from gpunode.engine import batch, control_plane, gate, impact, nodes, rounds, work
from gpunode.engine.batch import RESUME, Interrupt, Run
from gpunode.engine.batch_order import Size
from gpunode.engine.converge import REBOOT_SECONDS
from gpunode.engine.estimate import Estimate, estimate
from gpunode.engine.history import mean_seconds
from gpunode.engine.member import PAUSED, Member, Members, outcomes, update
from gpunode.engine.overview import RunLine
from gpunode.engine.record import BAD, BEGUN, FINISHED, Progress, Record, RecordedRun, RunOptions
from gpunode.engine.reporter import Brief, Reporter, confirm, progress, report_reason
from gpunode.engine.session import Session
from gpunode.engine.shown import status_of
from gpunode.errors import ClusterError, Problem
from gpunode.links.node import cordon
from gpunode.links.pod.vectoradd import sweep
from gpunode.model import Event, Host
from gpunode.wording import Advice, Command, few, lines, several

NAMED = 5
BY_PAUSE = Problem(PAUSED, "the run was paused")


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts as they were planned. `placed`: those that may be in the cluster, with their nodes. `order`: the batches. `judged`:
    names of the hosts that count for `max_fail`, as of `ProvisionOptions`. `undone`: by an earlier part of this undo."""

    members: Members
    placed: Members
    order: tuple[tuple[Host, ...], ...]
    judged: frozenset[str]
    max_fail: int | None = None
    undone: tuple[str, ...] = ()


def rebooting(run: RecordedRun, now: float) -> Mapping[str, float]:
    """The hosts that a recorded run has begun → seconds for which each may still reboot. `now`: in seconds since the epoch."""
    # A clock that was set back makes no run wait longer than for a reboot.
    return {
        name: max(0.0, REBOOT_SECONDS - max(0.0, now - run.hosts[name].since))
        for name in run.in_state(*BEGUN)
    }


def plan_hosts(
    session: Session,
    api: Api | None,
    members: Members,
    *,
    begun: Collection[str] = (),
    size: Size | None = None,
    canary: int = 0,
    max_fail: int | None = None,
    undone: tuple[str, ...] = (),
) -> Hosts:
    """Locate these probed members in the cluster, show their plans and whom they disturb, and put them in batches. `begun`: by the run
    that this one resumes."""
    placed = impact.locate(api, members, session.inventory)
    namespace, planners = session.inventory.cluster.namespace, session.planners
    members = impact.find_impact(api, namespace, members, placed, strict=True, planners=planners)
    members = control_plane.refuse_unnamed(session.inventory, members)
    session.reporter.plans(outcomes(members))
    left = cordon.owners(api) if api else {}
    disturbed = [
        member.host.name
        for member in members
        if member.host.name in begun or (member.node and member.node.name in left)
    ]
    order = rounds.order_batches(members, begun=disturbed, size=size, canary=canary)
    going = [member for member in members if member.outcome and status_of(member.outcome) != "broken"]
    able = [member.host for member in going if member.host_ok or member.has_changes]
    judged = {host.name for host in (session.hosts if max_fail is not None else able)}
    return Hosts(members, placed, order, frozenset(judged.union(begun)), max_fail, undone)


def connect(session: Session, *, proves: bool, deploys: bool) -> Api | None:
    """The inventory's cluster, if it names one. Raises ClusterError with all rights that this user lacks for any such run. `proves`:
    with pods. `deploys`: the plugin."""
    if session.inventory.cluster.plugin is None:
        return None
    api = nodes.connect(session.inventory)
    rights.demand(api, *nodes.rights_of_run(api, session.inventory, proves=proves, deploys=deploys))
    return api


def check_rights(session: Session, api: Api | None, members: Members) -> None:
    """Raise ClusterError if this user lacks a right that only these plans need."""
    if api is None:
        return
    drains = any(
        member.has_changes and member.host.work == "drain" and member.disturbs.what.ends_gpu_work
        for member in members
    )
    namespace = session.inventory.cluster.namespace
    claims = any(member.host.allocation == "dra" for member in members)
    rights.demand(
        api, (*(rights.EVICTION if drains else ()), *(rights.of_claims(namespace) if claims else ()))
    )


def begin_record(
    session: Session,
    members: Members,
    options: RunOptions,
    asked: str = "",
    answered: str = "",
    *,
    rest: tuple[str, ...] = (),
    undone: Mapping[str, Progress] = MappingProxyType({}),
) -> Record:
    """The record of the run, with the members' plans. Hosts that no batch has are in it: the next run may have them. `rest`: unfinished
    hosts of the run that this one resumes; `undone`: those that it has undone or kept."""
    names = dict.fromkeys([*undone, *rest, *(member.host.name for member in members)])
    record = Record.begin(Path(session.inventory.path), list(names), options, asked=asked, answered=answered)
    for name, ended in undone.items():  # or the next resume would miss them
        record.host(name, ended.state, ended.why)
    for member in members:
        if not (member.host_ok or member.has_changes):
            record.host(member.host.name, *batch.end_state(member))
    record.plans(batch.shown_plans(members))
    return record


def ask(reporter: Reporter, question: str, *, yes: bool) -> tuple[str, str]:
    """Raise Declined unless the user accepts what was shown. The question and how it was answered, for the record."""
    confirm(reporter, question, yes=yes)
    return question, "--yes" if yes else "yes"


@contextmanager
def hold_cluster(
    session: Session, api: Api | None, record: Record, members: Members, continues: str = RESUME
) -> Iterator[tuple[Held, Interrupt]]:
    """Hold the cluster's Lease, so that no other run changes its nodes, and finish what is begun on Ctrl-C. What earlier runs left on
    other nodes is reported; test pods of a killed run are deleted, as with the Lease no other run has any."""
    reporter = session.reporter
    lease = hold(api, record.owner, progress(reporter)) if api else nullcontext(Held(record.owner))
    with ExitStack() as stack:
        try:
            held = stack.enter_context(lease)
        except BaseException:
            record.discard()  # else it would be the last run, which `resume` and `pause` take
            raise
        interrupt = stack.enter_context(Interrupt(reporter, lambda: record.begun, continues))
        work.show_unfinished(api, reporter, members)
        if api is not None and held.exclusive:
            sweep(api, session.inventory.cluster.namespace, progress(reporter), holder=record.owner)
        yield held, interrupt


def plan_again(run: Run, hosts: Hosts, lease: Held) -> Members:
    """The members, probed again where another run may have changed them while this one waited for its lease, and with whom their plans
    disturb now. Those whose plan is not the reviewed one any more are excluded."""
    session, members = run.session, hosts.members
    able = [member for member in members if member.host_ok or member.has_changes]
    if not lease.waited or not able:
        return members
    session.reporter.note(
        "Another run held the cluster's lease after these plans were made: the hosts are probed again."
    )
    after, namespace = rounds.probe_all(session, {}, able), session.inventory.cluster.namespace
    after = impact.find_impact(
        run.api, namespace, after, hosts.placed, strict=True, planners=session.planners
    )
    if run.reviewed:
        reasons = [batch.why_not_reviewed(run.reviewed, member) for member in after]
        for member, reason in zip(after, reasons, strict=True):
            report_reason(session.reporter, member.host.name, reason)
        after = tuple(member.exclude(reason) for member, reason in zip(after, reasons, strict=True))
    return update(members, after)


def stop_reason(run: Run, lease: Held, members: Members, hosts: Hosts) -> Problem | None:
    """Why nothing further begins; None if it may."""
    record, notify = run.record, progress(run.session.reporter)
    broken = (
        _unhealthy(members)
        or _too_many(members, hosts)
        or lease.lost_reason(work.API_SECONDS, notify, lambda: run.interrupt.set)
    )
    if broken:
        return Problem(rounds.STOPPED, broken)
    return run.stopped or (BY_PAUSE if record.paused else None)


def run_batches(run: Run, lease: Held, hosts: Hosts) -> Members:
    """The members after all batches: each batch is finished, to its proof, before the next begins."""
    session, record, members = run.session, run.record, plan_again(run, hosts, lease)
    earlier = mean_seconds(Path(session.inventory.path))
    for number, part in enumerate(hosts.order, 1):
        now = tuple(member for member in members if member.host in part)
        why = stop_reason(run, lease, members, hosts)
        if why is None:
            shut = gate.run_gates(
                session.inventory, now, (number, len(hosts.order)), record, session.reporter
            )
            why = stop_reason(run, lease, members, hosts)  # meanwhile
            why = why or (Problem(gate.CLOSED, shut) if shut else None)
        if why is not None:  # of all that are left
            rest = {host.name for later in hosts.order[number - 1 :] for host in later}
            left = tuple(member for member in members if member.host.name in rest)
            return update(members, skip(run, left, why))
        percent = session.inventory.cluster.max_tainted
        if run.api and run.prove and percent < 100:
            many = work.too_many_tainted(run.api, now, run.taint, percent)
            if many:
                members = update(members, skip(run, now, Problem(rounds.STOPPED, many)))
                continue
        waiting = [member for member in members if member.has_changes]
        time_left = estimate(hosts.order[number - 1 :], waiting, earlier, proves=bool(run.api and run.prove))
        record.batch(number, len(hosts.order), time_left.seconds)
        every = {*hosts.undone, *(member.host.name for member in members)}
        _report_batch(run, now, (number, len(hosts.order)), time_left, len(every))
        members = update(members, batch.finish(run, now))
    return members


def _report_batch(run: Run, now: Members, number: tuple[int, int], left: Estimate, hosts: int) -> None:
    """Report that a batch begins: its number, of how many, and how far the run with so many hosts is."""
    record, names = run.record, few([member.host.name for member in now], NAMED)
    line = RunLine(
        record.id,
        "running",
        hosts,
        record.count(*FINISHED),
        {state: record.count(state) for state in BAD},
        time.time(),
        *number,
        left.seconds,
    )
    text = f"batch {number[0]} of {number[1]}: {names}; {left} to the end of the run"
    run.session.reporter.event(Event("stage", None, text, {**asdict(line), "bad": sum(line.ends.values())}))


def _unhealthy(members: Members) -> str:
    """Why no further batch begins: the control plane; "" if it is healthy."""
    reasons = [
        member.reason for member in members if member.reason and member.reason.code == control_plane.UNHEALTHY
    ]
    return reasons[0].what if reasons else ""


def _too_many(members: Members, hosts: Hosts) -> str:
    """Why no further batch begins: the number of hosts that ended badly; "" if it is allowed."""
    bad = failed_hosts(members, hosts)
    if len(bad) <= (hosts.max_fail or 0):
        return ""
    return f"{several(len(bad), 'host')} failed ({few([member.host.name for member in bad], NAMED)})"


def failed_hosts(members: Members, hosts: Hosts) -> list[Member]:
    """The members that ended badly, of those that count for --max-fail."""
    return [
        member
        for member in members
        if member.host.name in hosts.judged
        and (member.reason or not member.has_changes)
        and batch.end_state(member)[0] in BAD
    ]


def skip(run: Run, members: Members, why: Problem) -> Members:
    """The members, excluded before any change."""
    fix = run.interrupt.continues
    out = tuple(
        member.exclude(Problem(why.code, f"skipped: {why.what}", fix=fix, subject=member.host.name))
        for member in members
    )
    for member in out:
        run.record.host(member.host.name, "skipped", member.reason.what if member.reason else "")
    names = few([member.host.name for member in out], NAMED)
    run.session.reporter.note(Brief(f"Skipped: {names}: {why.what}."))
    return out


def report_lost(api: Api | None, run: Run, lease: Held) -> None:
    """Report a Lease or a record that the run lost; of a record, also the cordons that remain."""
    record, reporter = run.record, run.session.reporter
    if lease.lost:
        reporter.note(f"Meanwhile {lease.lost}. Its new holder may have deleted this run's test pods.")
    if not record.lost:
        return
    cordoned = ""
    try:
        mine = [node for node, owner in cordon.owners(api).items() if owner == record.owner] if api else []
        cordoned = f" Still cordoned: {', '.join(mine)}." if mine else ""
    except ClusterError as error:
        cordoned = f" Nodes may still be cordoned: {error.problem.what}."
    hint = lines(("Free space there or make it writable.", run.interrupt.continues), " ")
    reporter.problem(Problem("", f"No further host was started: {record.lost}.{cordoned}", fix=hint))


def report_results(session: Session, members: Members, *, alone: bool = False) -> None:
    """Report the times, how the hosts ended, and the command that continues with the unfinished ones; `alone`: and the one for those that
    ended badly."""
    times = [
        (member.host.name, round(sum(member.spent.values()), 3), member.spent)
        for member in members
        if member.spent
    ]
    session.reporter.rows("time", ("host", "seconds", "phases"), times)
    after = _name_unfinished(members, alone=alone)
    session.reporter.summary(outcomes(members), cluster=changes_left(session), after=after)


def _name_unfinished(members: Members, *, alone: bool) -> str:
    ends = {member.host.name: batch.end_state(member)[0] for member in members}
    bad = [name for name, state in ends.items() if state in BAD]
    left = [name for name, state in ends.items() if state not in FINISHED]
    if not left:
        return ""
    first = "Fix the cause, then `" if bad else "`"
    them = "it" if len(left) == 1 else "them"
    parts = [Advice(f"Not done: {few(left, NAMED)}. {first}", Command("resume"), f"` continues with {them}")]
    if alone and bad and len(bad) < len(left):
        parts += [Advice("`", Command("provision", "--limit @failed"), f"` with {few(bad, NAMED)} alone")]
    return lines((lines(parts, ", "), "."), "")


def changes_left(session: Session) -> int | None:
    """Pending changes of the cluster at the end: 0, or None without a cluster."""
    return 0 if session.inventory.cluster.plugin is not None else None
