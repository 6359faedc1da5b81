"""Takes hosts out of gpunode's hands: shows what goes and what stays, asks, then works batch after batch as `provision` does."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import repeat
from gpunode.cluster.objects.difference import Difference
from gpunode.engine import (
    accepted,
    batch,
    cluster_diff,
    converge,
    exit_codes,
    forget,
    impact,
    rollout,
    rounds,
    undo_cluster,
    work,
)
from gpunode.engine.batch import Run
from gpunode.engine.batch_order import Size
from gpunode.engine.estimate import report_costs
from gpunode.engine.fleet import Planner, Visit
from gpunode.engine.member import Member, Members, outcomes
from gpunode.engine.record import FORGOTTEN, Record, RunOptions
from gpunode.engine.reporter import progress, report_reason
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, Problem, UsageError
from gpunode.links.node import GPU_LABEL, fetch, find
from gpunode.links.plugin import marks
from gpunode.model import Host, OnEvent, Ssh, Title
from gpunode.wording import Advice, Command, few

NAMED = 5
AGAIN = "The same command continues with them."  # `resume` takes up no forget


@dataclass(frozen=True, slots=True)
class ForgetOptions:
    """`keep_software`: only marks, labels and records go. `nodes`: of hosts that are not in the inventory any more, whose marks go."""

    yes: bool = False
    keep_software: bool = False
    size: Size | None = None
    nodes: tuple[str, ...] = ()


def forget_hosts(session: Session, options: ForgetOptions) -> int:
    """Forget the session's hosts, and `options.nodes`. Returns the exit code. Nothing changes before all was shown and accepted."""
    reporter, keep = session.reporter, options.keep_software
    api = rollout.connect(session, proves=False, deploys=False)

    def choose_planner(visit: Visit) -> Planner:
        journal = converge.read_journal(visit, "")
        journal = () if keep else journal
        visit.watch = forget.watch(visit.watch, journal)
        aim = forget.Aim(journal, visit.image, keep_software=keep, offers=api is not None)
        return partial(forget.plan_host, visit.host, aim)

    for visit in session.visits.values():
        visit.choose_planner = choose_planner
    probed = rounds.probe_all(session, {}) if session.hosts else ()
    hosts = rollout.plan_hosts(session, api, probed, size=options.size)
    members, namespace = hosts.members, session.inventory.cluster.namespace
    strangers = _strangers(api, session.inventory.hosts, options.nodes)
    marked = _marks(api, [*hosts.placed, *strangers], keep)
    if api is not None:
        lines = [
            Difference(Title("Node", name), "labelled", tuple(f"-{text}" for text in texts))
            for name, texts in marked.items()
        ]
        reporter.cluster(api.access.context, lines)
        rollout.check_rights(session, api, members)
    else:
        reporter.note("The inventory has no `cluster.plugin`, so the cluster is excluded.")
    undo_cluster.show_left(reporter, members)
    if strangers:
        gone = few([member.host.name for member in strangers], NAMED)
        reporter.note(
            f"{gone}: not in the inventory, so only the node's marks are removed. The machine itself is not changed."
        )
    plan = cluster_diff.ClusterPlan(len(marked), ())
    costs = report_costs(
        session, hosts.order, members, plan, size=options.size, run=False, accepted=options.yes
    )
    question = answered = ""
    if costs or marked:
        changed = [
            member
            for member in members
            if member.has_changes or (member.host_ok and member.node and member.node.name in marked)
        ]
        names = few([member.host.name for member in (*changed, *strangers)], NAMED)
        question = f"{costs or 'Only marks'}. Forget {names}?"
        question, answered = rollout.ask(reporter, question, yes=options.yes)
    known = RunOptions(run=False, batch=options.size.text if options.size else None, command="forget")
    record = rollout.begin_record(session, (*members, *strangers), known, question, answered)
    with rollout.hold_cluster(session, api, record, (*members, *strangers), AGAIN) as (
        lease,
        interrupt,
    ):
        run = Run(
            session,
            api,
            record,
            interrupt,
            impact.accepted_acts(members),
            prove=False,
            before=lambda member, emit: _leave(api, namespace, member, record, keep, emit),
            last=lambda after: _take_marks(api, session, after, record, keep),
            done=FORGOTTEN,
        )
        members = _remove_acceptances(session, rollout.run_batches(run, lease, hosts), record)
        if strangers and (why := rollout.stop_reason(run, lease, members, hosts)):
            strangers = rollout.skip(run, strangers, why)
        else:
            strangers = _take_marks(api, session, strangers, record, keep)
            strangers = _remove_acceptances(session, strangers, record)
            for member in strangers:
                reason = member.reason
                record.host(
                    member.host.name, "failed" if reason else FORGOTTEN, reason.what if reason else ""
                )
    record.end()
    rollout.report_lost(api, run, lease)
    return _report_end(session, api, members, strangers, keep)


def _strangers(api: Api | None, hosts: Sequence[Host], names: Sequence[str]) -> Members:
    """The nodes of hosts that are not in the inventory any more. Raises UsageError for a name that no node has, or whose node is one
    of the inventory's `hosts`."""
    if not names:
        return ()
    known = {node.name: node for node in fetch(api)} if api else {}
    for name in names:
        if name not in known:
            raise UsageError(
                f"{name} is neither a host of the inventory nor a node of its cluster",
                hint="Name a host of the inventory, or the node of a host removed from it.",
            )
    for host in hosts:
        node = ""
        with suppress(ClusterError):  # it has no node
            node = find(host, tuple(known.values())).name
        if node in names:
            raise UsageError(f"{node} is the node of host {host.name}", hint="Name the host.")
    return tuple(Member(Host(name, Ssh(name), node=name), node=known[name]) for name in names)


def _marks(api: Api | None, members: Sequence[Member], keep: bool) -> Mapping[str, Sequence[str]]:
    """What goes from each node of these members; nodes without a mark are left out."""
    here = {member.node.name for member in members if member.node}
    items = api.find("Node")[0] if api and here else []
    texts_by_node = {item["metadata"]["name"]: marks.find(item, keep_software=keep) for item in items}
    return {name: texts for name, texts in texts_by_node.items() if texts and name in here}


def _leave(
    api: Api | None, namespace: str, member: Member, record: Record, keep: bool, emit: OnEvent
) -> Member:
    """The member right before its changes, with the plugin gone from its node. While its pod stays the member is excluded, or failed if
    the host is partly changed."""
    if api is None or member.node is None or keep:
        return member
    before = member.outcome if member.outcome and member.outcome.applied else None
    try:
        if work.end_plugin(api, namespace, member, record.owner, emit):
            return member
        raise work.plugin_stays(namespace, member.node.name)
    except ClusterError as error:
        why = work.cluster_problem(member, error, work.NOT_FINISHED if before else work.NOT_CHANGED)
    if before:
        return replace(member, outcome=replace(before, status="failed", problem=why))
    return member.exclude(work.lift_cordon(api, member, why, emit))


def _take_marks(api: Api | None, session: Session, members: Members, record: Record, keep: bool) -> Members:
    """The members, without marks on their nodes. A node whose GPUs are in use, and whose host had no change that waited for that,
    keeps them: its member is excluded."""
    reporter, namespace = session.reporter, session.inventory.cluster.namespace
    notify = progress(reporter)

    def take(member: Member) -> Member:
        if api is None or member.node is None or not _is_done(member):
            return member
        name = member.node.name

        def act() -> Problem | None:
            if not keep:
                if busy := work.why_busy(api, member):
                    return busy
                work.end_plugin(
                    api, namespace, member, record.owner, reporter.event
                )  # or it writes its marks again
            marks.take_off(api, name, keep_software=keep, notify=notify)
            return None

        try:
            why = repeat(api, act, seconds=work.API_SECONDS, notify=notify)
        except ClusterError as error:
            why = replace(error.problem, code=batch.FAILED)
        report_reason(reporter, member.host.name, why)
        return member.exclude(why)

    return tuple(map(take, members))


def _is_done(member: Member) -> bool:
    """True if nothing of gpunode's is left on the host, or it has none."""
    return member.reason is None and (member.outcome is None or member.host_ok)


def _remove_acceptances(session: Session, members: Members, record: Record) -> Members:
    """The members, without records of acceptances on this machine. One whose record stays is excluded."""
    records = accepted.folder(session.inventory)

    def remove(member: Member) -> Member:
        if not _is_done(member):
            return member
        try:
            for node in (member.node, None):
                accepted.path_of(records, member.host.name, node).unlink(missing_ok=True)
        except OSError as error:
            what = f"{error.filename} stays: {error.strerror}"
            why = Problem(batch.FAILED, what, fix="Remove this record of its acceptance.")
            report_reason(session.reporter, member.host.name, why)
            record.host(member.host.name, "failed", what)
            return member.exclude(why)
        return member

    return tuple(map(remove, members))


def _report_end(session: Session, api: Api | None, members: Members, strangers: Members, keep: bool) -> int:
    """Report the end; the exit code."""
    reporter = session.reporter
    ends = {member.host.name: batch.end_state(member) for member in members}
    done = [name for name, (state, _) in ends.items() if state == "undone"]
    left = [
        f"{name} ({why.splitlines()[0] if why else state})"
        for name, (state, why) in ends.items()
        if name not in done
    ]
    left += [f"{member.host.name} ({member.reason.what})" for member in strangers if member.reason]
    if done:
        path = session.inventory.path
        reporter.note(
            f"Forgotten: {few(done, NAMED)}. Remove {'it' if len(done) == 1 else 'them'} from {path}; otherwise the next provision sets up GPUs there again."
        )
    if left:
        them = "it" if len(left) == 1 else "them"
        reporter.note(f"Not forgotten: {few(left, NAMED)}. The same command continues with {them}.")
    if api is not None and not keep:
        with suppress(ClusterError):
            if not fetch(api, labels=GPU_LABEL):
                text = "No node has the device plugin any more. `"
                reporter.note(
                    Advice(text, Command("plugin remove"), "` removes its objects from the cluster.")
                )
    reporter.summary(outcomes(members), cluster=0 if api else None)
    return exit_codes.of_run((*members, *strangers))
