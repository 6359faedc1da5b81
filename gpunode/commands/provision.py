"""The whole job: shows the plan, asks, then works on batch after batch, each to its proof."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path

from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.lease import Held, hold
from gpunode.engine import (
    batch,
    cluster_diff,
    control_plane,
    exit_codes,
    gate,
    impact,
    nodes,
    plan_file,
    prerequisites,
    proof,
    rounds,
    undo_cluster,
    work,
)
from gpunode.engine.batch import Interrupt, Run
from gpunode.engine.batch_order import Size
from gpunode.engine.converge import REBOOT_SECONDS
from gpunode.engine.estimate import Estimate, estimate, report_costs
from gpunode.engine.history import find, mean_seconds
from gpunode.engine.member import PAUSED, Member, Members, outcomes, update
from gpunode.engine.overview import RunLine
from gpunode.engine.plan_file import PlanFile
from gpunode.engine.record import BAD, BEGUN, DONE, FINISHED, Record, RecordedRun, RunOptions
from gpunode.engine.reporter import Reporter, confirm, progress, report_reason
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, Problem, StalePlan
from gpunode.links.node import cordon, fetch, taint
from gpunode.links.pod.vectoradd import sweep
from gpunode.model import Event, Host
from gpunode.wording import Advice, Command, few, lines, several

NAMED = 5
BY_INTERRUPT = Problem(PAUSED, "the run was interrupted")
BY_PAUSE = Problem(PAUSED, "the run was paused")
RESUME = Advice("`", Command("resume"), "` continues with them.")


@dataclass(frozen=True, slots=True)
class ProvisionOptions:
    """How a fleet is worked on. `run`: with vectoradd. `size`, `canary`: see `split_batches`. `max_fail`: hosts that may end badly,
    those that the plan showed as refused or unreachable included, before no further batch begins; None: only those. `fingerprints`:
    of keys that the user trusts, in full. `taint`: all nodes until their proof. `accept`: the level of the acceptance after the proof; "":
    none. `reviewed`: the plan that was accepted beforehand. `command`: another that is rolled out so. `rest`: unfinished hosts of the
    run to resume; `begun`: those already begun → seconds for which they may still reboot; `undone`: those that it has undone. `undo`:
    the id of the run that this one undoes; its visits have a planner for that."""

    yes: bool = False
    run: bool = True
    size: Size | None = None
    canary: int = 0
    max_fail: int | None = None
    fingerprints: tuple[str, ...] = ()
    taint: bool = False
    accept: str = ""
    reviewed: PlanFile | None = None
    command: str | None = None
    rest: tuple[str, ...] = ()
    begun: Mapping[str, float] = field(default_factory=dict)
    undone: tuple[str, ...] = ()
    undo: str = ""

    @property
    def recorded(self) -> RunOptions:
        """The options for the record of a run."""
        size = self.size.text if self.size else None
        accept = self.accept or None
        return RunOptions(
            self.run,
            self.max_fail,
            self.canary,
            size,
            self.fingerprints,
            self.taint,
            accept,
            self.undo or None,
            self.command,
        )

    @classmethod
    def of_recorded_run(cls, run: RecordedRun, *, yes: bool, now: float) -> ProvisionOptions:
        """The options that resume a recorded run. `now`: in seconds since the epoch."""
        known = run.options
        hosts = {name: run.hosts[name].since for name in run.in_state(*BEGUN)}
        return cls(
            yes=yes,
            run=known.run is not False,
            size=Size.parse(known.batch) if known.batch else None,
            canary=max(0, (known.canary or 0) - len(run.in_state(*DONE))),
            max_fail=known.max_fail,
            fingerprints=known.fingerprints or (),
            taint=bool(known.taint),
            accept=known.accept or "",
            undo=known.undo or "",
            rest=run.not_done,
            undone=run.in_state("undone"),
            # A clock that was set back makes no run wait longer than for a reboot.
            begun={name: max(0.0, REBOOT_SECONDS - max(0.0, now - since)) for name, since in hosts.items()},
        )


def provision(session: Session, options: ProvisionOptions) -> int:
    """Provision the session's hosts batch by batch. Returns the exit code.

    Nothing changes before the whole plan was shown and accepted, except that a missing Python is installed first, after a question.
    """
    wanted = session.inventory.cluster.plugin is not None
    api = nodes.connect(session.inventory) if wanted else None  # before any host is touched
    hosts = _plan_hosts(session, api, options)
    members, order = hosts.members, hosts.order
    cluster = _plan_cluster(session, api, hosts, options)
    _check_rights(session, api, members, options)
    if _too_many_failed(session, hosts, options):
        return exit_codes.of_run(members)
    asked, answered = _ask(session, order, members, cluster, options)
    shown = options.reviewed and plan_file.make(Path(session.inventory.path), members, ())
    reviewed = plan_file.as_accepted(options.reviewed, shown) if options.reviewed and shown else None
    record = begin_record(session, members, options, asked, answered)
    record.plans(batch.shown_plans(members))
    record.cluster(cluster.changes, {member.node.name: member.host.name for member in members if member.node})
    with (
        hold_lease(api, session, record) as lease,
        Interrupt(session.reporter, lambda: record.begun) as stop,
    ):
        work.show_unfinished(api, session.reporter, members)
        sweep_test_pods(session, api, record, lease)
        accepted = {member.host.name: impact.acts(member.changes) for member in members if member.has_changes}
        run = Run(
            session,
            api,
            record,
            stop,
            accepted,
            prove=options.run,
            taint=options.taint,
            accept=options.accept,
            reviewed=reviewed,
            undo=bool(options.undo),
            last=undo_cluster.make_stage(session, api, record, find(options.undo))
            if api and options.undo
            else None,
        )
        members = run_batches(run, lease, plan_again(run, hosts, lease), hosts, options)
        objects = [change for change in cluster.changes if change.before or change.manifest]
        restored = not (api and options.undo and objects) or undo_cluster.restore(
            api,
            session.reporter,
            str(stop_reason(run, lease, members, hosts, None) or ""),
            members,
            find(options.undo),
            objects,
        )
    undone = all(member.host_ok and member.reason is None for member in members)
    if restored or not undone:  # or the undo still owes its objects, and `resume` continues it
        record.end()
    _report_end(
        session,
        api if order else None,
        record,
        lease,
        members,
        asked=options.taint,
        proves=options.run,
        undo=bool(options.undo),
    )
    return exit_codes.of_run(members) or int(not restored)


@dataclass(frozen=True, slots=True)
class Hosts:
    """The hosts as they were planned. `placed`: those that may be in the cluster, with their nodes. `order`: the batches. `judged`:
    names of the hosts that count for --max-fail."""

    members: Members
    placed: Members
    order: tuple[tuple[Host, ...], ...]
    judged: frozenset[str]


def _plan_hosts(session: Session, api: Api | None, options: ProvisionOptions) -> Hosts:
    """Probe, plan and show every host: its changes, the interrupted work, and the batches."""
    members = rounds.probe_all(session, options.begun)
    if not options.undo:
        members = prerequisites.install_python(session, members, yes=options.yes)
        members = prerequisites.add_repositories(session, members, options.fingerprints)
    placed = impact.locate(api, members)
    namespace, planners = session.inventory.cluster.namespace, session.planners
    members = impact.find_impact(api, namespace, members, placed, strict=True, planners=planners)
    members = control_plane.refuse_unnamed(session.inventory, members)
    session.reporter.plans(outcomes(members), reviewed=_as_reviewed(session, members, options.reviewed))
    left = cordon.owners(api) if api else {}
    disturbed = [
        member.host.name
        for member in members
        if member.host.name in options.begun or (member.node and member.node.name in left)
    ]
    order = rounds.order_batches(members, begun=disturbed, size=options.size, canary=options.canary)
    able = [member.host for member in members if member.host_ok or member.has_changes]
    judged = {host.name for host in (session.hosts if options.max_fail is not None else able)}
    return Hosts(members, placed, order, frozenset(judged | options.begun.keys()))


def _plan_cluster(
    session: Session, api: Api | None, hosts: Hosts, options: ProvisionOptions
) -> cluster_diff.ClusterPlan:
    """Show what changes in the cluster, and the gates."""
    if options.undo:
        taken = undo_cluster.show_plan(
            session, api, hosts.members, hosts.placed, find(options.undo), options.undone
        )
        gate.show(session.inventory, session.reporter)
        return cluster_diff.ClusterPlan(len(taken.changes), (), changes=taken.changes)
    if api is None:
        session.reporter.note(nodes.WITHOUT_PLUGIN)
    cluster = cluster_diff.ClusterPlan(0, ())
    if api and hosts.placed:
        cluster = cluster_diff.plan(
            api,
            session.inventory,
            hosts.placed,
            session.reporter,
            order=hosts.order,
            tainted=options.taint,
            run=options.run,
        )
    if api and not options.run and any(host.taint_until_verified for host in session.hosts):
        session.reporter.note(
            "--no-run: no node is tainted by `taint_until_verified`, as nothing would verify its GPUs."
        )
    gate.show(session.inventory, session.reporter)
    return cluster


def _check_rights(session: Session, api: Api | None, members: Members, options: ProvisionOptions) -> None:
    """Raise ClusterError if this user lacks a right that the run needs."""
    if api is None:
        return
    drains = any(
        member.has_changes and member.host.work == "drain" and member.disturbs.what.ends_gpu_work
        for member in members
    )
    namespace = session.inventory.cluster.namespace
    claims = any(member.host.allocation == "dra" for member in members)
    rights.demand(
        api,
        (
            *rights.of_run(namespace, drains=drains, proves=options.run or bool(options.accept)),
            *(rights.of_claims(namespace) if claims else ()),
        ),
    )


def _too_many_failed(session: Session, hosts: Hosts, options: ProvisionOptions) -> bool:
    """True, with a note, if more hosts than --max-fail allows ended badly before anything is asked or recorded."""
    members, most = hosts.members, options.max_fail
    bad = _failed_hosts(members, hosts.judged)
    if (
        most is None
        or len(bad) <= most
        or not any(member.host_ok or member.has_changes for member in members)
    ):
        return False
    names = few([f"{member.host.name}: {batch.end_state(member)[0]}" for member in bad], NAMED)
    session.reporter.note(
        f"Nothing was started: {several(len(bad), 'host')} failed already ({names}), and --max-fail allows {most}. Fix the host, leave it out with --exclude, or raise --max-fail. Nothing was changed, and no run is recorded."
    )
    session.reporter.summary(outcomes(members), cluster=_changes_left(session))
    return True


def _ask(
    session: Session,
    order: tuple[tuple[Host, ...], ...],
    members: Members,
    cluster: cluster_diff.ClusterPlan,
    options: ProvisionOptions,
) -> tuple[str, str]:
    """Show the batches, and raise Declined unless they are accepted. The question and how it was answered; empty: none was asked."""
    costs = report_costs(session, order, members, cluster, size=options.size, run=options.run)
    yes, answered = options.yes, "--yes" if options.yes else "yes"
    if options.reviewed is not None:
        yes = _check_reviewed(session, members, cluster, options.reviewed, yes=yes)
        answered = f"as reviewed, the plan of {options.reviewed.by}" if yes else answered
    if not (costs or cluster.objects):
        return "", ""
    path = session.inventory.path
    aim = f"Undo run {options.undo}?" if options.undo else f"Apply {path}?"
    question = f"The cluster alone. {aim}" if options.undo else f"Apply {path} to the cluster?"
    question = f"{costs}. {aim}" if costs else question
    confirm(session.reporter, question, yes=yes)
    return question, answered


def _as_reviewed(session: Session, members: Members, reviewed: PlanFile | None) -> frozenset[str]:
    """Names of the hosts whose plan is the one that was reviewed."""
    if reviewed is None:
        return frozenset()
    now = plan_file.make(Path(session.inventory.path), members, ())
    differ = {deviation.host for deviation in plan_file.compare(reviewed, now)}
    return frozenset(member.host.name for member in members) - differ


def _check_reviewed(
    session: Session,
    members: Members,
    cluster: cluster_diff.ClusterPlan,
    reviewed: PlanFile,
    *,
    yes: bool,
) -> bool:
    """True if everything is as it was reviewed; else what is not is shown. Raises StalePlan for that if nobody is asked (`yes`)."""
    now = plan_file.make(Path(session.inventory.path), members, cluster.changes)
    deviations = plan_file.compare(reviewed, now)
    if not deviations:
        session.reporter.note(
            f"The plan is as {reviewed.by} reviewed it ({reviewed.made}): applied without a question."
        )
        return True
    rows = [(deviation.host, deviation.code, deviation.what) for deviation in deviations]
    session.reporter.rows("deviation", ("host", "code", "what"), rows)
    if yes:
        raise StalePlan(
            "the plan is not the reviewed one, and --yes accepts only that; nothing was changed",
            hint="Review it again (`gpunode plan --out FILE`), or leave out --yes: gpunode then asks about the plan above.",
        )
    return False


def begin_record(
    session: Session, members: Members, options: ProvisionOptions, asked: str, answered: str
) -> Record:
    """The run's record. Hosts that no batch has are in it: the next run may have them."""
    names = dict.fromkeys([*options.undone, *options.rest, *(member.host.name for member in members)])
    record = Record.begin(
        Path(session.inventory.path), list(names), options.recorded, asked=asked, answered=answered
    )
    for name in options.undone:  # or the next resume would miss them
        record.host(name, "undone")
    for member in members:
        if not (member.host_ok or member.has_changes):
            record.host(member.host.name, *batch.end_state(member))
    return record


def hold_lease(api: Api | None, session: Session, record: Record) -> AbstractContextManager[Held]:
    """Hold the cluster's lease, so that no other run changes its nodes; without a cluster there is none to hold."""
    if api is None:
        return nullcontext(Held(record.owner))
    return hold(api, record.owner, progress(session.reporter))


def sweep_test_pods(session: Session, api: Api | None, record: Record, lease: Held) -> None:
    """Delete test pods that a killed run left: with the lease no other run has any."""
    if api is not None and lease.exclusive:
        sweep(api, session.inventory.cluster.namespace, progress(session.reporter), holder=record.owner)


def plan_again(run: Run, hosts: Hosts, lease: Held) -> Members:
    """The members, probed again where another run may have changed them while this one waited for its lease. Those whose plan is not
    the reviewed one any more are excluded."""
    session, members = run.session, hosts.members
    able = [member for member in members if member.host_ok or member.has_changes]
    if not lease.waited or not able:
        return members
    session.reporter.note(
        "Another run held the cluster's lease after these plans were made: the hosts are probed again."
    )
    after = rounds.probe_all(session, {}, able)
    if run.reviewed:
        namespace = session.inventory.cluster.namespace
        after = impact.find_impact(
            run.api, namespace, after, hosts.placed, strict=True, planners=session.planners
        )
        reasons = [batch.why_not_reviewed(run.reviewed, member) for member in after]
        for member, reason in zip(after, reasons, strict=True):
            report_reason(session.reporter, member.host.name, reason)
        after = tuple(member.exclude(reason) for member, reason in zip(after, reasons, strict=True))
    return update(members, after)


def stop_reason(run: Run, lease: Held, members: Members, hosts: Hosts, most: int | None) -> Problem | None:
    """Why nothing further begins; None if it may."""
    record, notify = run.record, progress(run.session.reporter)
    broken = (
        _unhealthy(members)
        or _too_many(members, hosts.judged, most)
        or lease.lost_reason(work.API_SECONDS, notify, lambda: run.interrupt.set)
        or record.lost
    )
    if broken:
        return Problem(rounds.STOPPED, broken)
    return BY_INTERRUPT if run.interrupt.set else BY_PAUSE if record.paused else None


def run_batches(run: Run, lease: Held, members: Members, hosts: Hosts, options: ProvisionOptions) -> Members:
    """The members after all batches: each batch is finished, to its proof, before the next begins."""
    session, record = run.session, run.record
    earlier = mean_seconds(Path(session.inventory.path))
    for number, part in enumerate(hosts.order, 1):
        now = tuple(member for member in members if member.host in part)
        why = stop_reason(run, lease, members, hosts, options.max_fail)
        if why is None:
            shut = gate.run_gates(
                session.inventory, now, (number, len(hosts.order)), record, session.reporter
            )
            why = stop_reason(run, lease, members, hosts, options.max_fail)  # meanwhile
            why = why or (Problem(gate.CLOSED, shut) if shut else None)
        if why is not None:  # of all that are left
            rest = {host.name for later in hosts.order[number - 1 :] for host in later}
            left = tuple(member for member in members if member.host.name in rest)
            return update(members, skip(run, left, why))
        percent = session.inventory.cluster.max_tainted
        if run.api and run.prove and percent < 100:
            many = work.too_many_tainted(run.api, now, options.taint, percent)
            if many:
                members = update(members, skip(run, now, Problem(rounds.STOPPED, many)))
                continue
        waiting = [member for member in members if member.has_changes]
        time_left = estimate(hosts.order[number - 1 :], waiting, earlier, proves=bool(run.api and run.prove))
        record.batch(number, len(hosts.order), time_left.seconds)
        every = {*options.undone, *(member.host.name for member in members)}
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
        record.count(*BAD),
        time.time(),
        *number,
        left.seconds,
    )
    text = f"batch {number[0]} of {number[1]}: {names}; the run takes {left} more"
    run.session.reporter.event(Event("stage", None, text, asdict(line)))


def _report_end(
    session: Session,
    api: Api | None,
    record: Record,
    lease: Held,
    members: Members,
    *,
    asked: bool,
    proves: bool,
    undo: bool,
) -> None:
    """Report the hosts' ends, and how to continue. `api`: None if no host reached the cluster's stages. `asked`: for taints of all.
    `proves`: with vectoradd."""
    if lease.lost:
        session.reporter.note(
            f"Meanwhile {lease.lost}. Its new holder may have deleted this run's test pods."
        )
    if record.lost:
        _report_lost_record(api, record, session.reporter)
    if api is not None and not undo:
        proof.report_proofs(members, session.reporter)
        left = any(member.node and taint.run_of(member.node) for member in members)
        if asked or left or any(member.host.taint_until_verified for member in members):
            _report_tainted(api, record, session.reporter, members, proves=proves)
    times = [
        (member.host.name, round(sum(member.spent.values()), 3), member.spent)
        for member in members
        if member.spent
    ]
    session.reporter.rows("time", ("host", "seconds", "phases"), times)
    after = _name_unfinished(members, session.reporter, undo=undo)
    session.reporter.summary(outcomes(members), cluster=_changes_left(session), after=after)


def _changes_left(session: Session) -> int | None:
    """Pending changes of the cluster at the end: 0, or None without a cluster."""
    return 0 if session.inventory.cluster.plugin is not None else None


def _report_lost_record(api: Api | None, record: Record, reporter: Reporter) -> None:
    """Report the unwritable record, and the run's remaining cordons."""
    nodes = ""
    try:
        mine = [node for node, owner in cordon.owners(api).items() if owner == record.owner] if api else []
        nodes = f" Still cordoned: {', '.join(mine)}." if mine else ""
    except ClusterError as error:
        nodes = f" Nodes may still be cordoned: {error.problem.what}."
    hint = Advice("Free space there or make it writable, then `", Command("resume"), "` continues.")
    reporter.problem(Problem("", f"No further host was started: {record.lost}.{nodes}", fix=hint))


def _report_tainted(api: Api, record: Record, reporter: Reporter, members: Members, *, proves: bool) -> None:
    """Report the nodes that keep this run's taint, with the commands that remove it; of a run that `proves` nothing, those of its
    members that keep any run's."""
    mine = {member.node.name for member in members if member.node and not proves}
    try:
        left = [
            node.name
            for node in fetch(api)
            if (run := taint.run_of(node)) and (run == record.id or node.name in mine)
        ]
    except ClusterError as error:
        reporter.note(
            f"Which nodes are still tainted with {taint.UNVERIFIED} is not known: {error.problem.what}."
        )
        return
    if left:
        reporter.note(
            Advice(
                f"Tainted until their GPUs are verified: {few(left, NAMED)}. `",
                Command("resume" if proves else "provision"),
                f"` verifies them and removes the taint; `kubectl taint node {left[0]} {taint.UNVERIFIED}-` releases the node unverified.",
            )
        )


def _name_unfinished(members: Members, reporter: Reporter, *, undo: bool) -> str:
    """The commands that continue with the unfinished hosts; "" if there are none. Of an undo, report that it proves nothing."""
    ends = {member.host.name: batch.end_state(member)[0] for member in members}
    changed = {member.host.name for member in members if member.outcome and member.outcome.applied}
    if undone := [name for name, state in ends.items() if undo and state == "undone"]:
        same = [name for name in undone if name not in changed]
        mine = [name for name in undone if name in changed]
        first = f"Undone: {few(mine, NAMED)}. " if mine else ""
        first += f"Hosts without a change: {few(same, NAMED)}. " if same else ""
        reporter.note(Advice(f"{first}Nothing was verified: `", Command("verify"), "` checks them."))
    bad = [name for name, state in ends.items() if state in BAD]
    left = [name for name, state in ends.items() if state not in FINISHED]
    if not left:
        return ""
    first = "Fix the cause, then `" if bad else "`"
    them = "it" if len(left) == 1 else "them"
    parts = [Advice(f"Not done: {few(left, NAMED)}. {first}", Command("resume"), f"` continues with {them}")]
    if bad and len(bad) < len(left) and not undo:
        parts += [Advice("`", Command("provision", "--limit @failed"), f"` with {few(bad, NAMED)} alone")]
    return lines((lines(parts, ", "), "."), "")


def _unhealthy(members: Members) -> str:
    """Why no further batch begins: the control plane; "" if it is healthy."""
    reasons = [
        member.reason for member in members if member.reason and member.reason.code == control_plane.UNHEALTHY
    ]
    return reasons[0].what if reasons else ""


def _too_many(members: Members, judged: Collection[str], most: int | None) -> str:
    """Why no further batch begins: the number of hosts that ended badly; "" if it is allowed."""
    bad = _failed_hosts(members, judged)
    if len(bad) <= (most or 0):
        return ""
    return f"{several(len(bad), 'host')} failed ({few([member.host.name for member in bad], NAMED)})"


def _failed_hosts(members: Members, judged: Collection[str]) -> list[Member]:
    counted = [member for member in members if member.host.name in judged]
    return [
        member
        for member in counted
        if (member.reason or not member.has_changes) and batch.end_state(member)[0] in BAD
    ]


def skip(run: Run, members: Members, why: Problem) -> Members:
    """The members, excluded before any change."""
    out = tuple(
        member.exclude(Problem(why.code, f"not started: {why.what}", fix=RESUME, subject=member.host.name))
        for member in members
    )
    for member in out:
        run.record.host(member.host.name, "skipped", member.reason.what if member.reason else "")
    names = few([member.host.name for member in out], NAMED)
    run.session.reporter.note(f"Not started: {names}: {why.what}.")
    return out
