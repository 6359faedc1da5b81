"""The cluster's half of an undo, by the run's record: labels and taints of its hosts' nodes, and gpunode's objects, as before it."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import is_ours
from gpunode.cluster.api.watch import OnProgress, repeat
from gpunode.cluster.objects import apply, difference
from gpunode.cluster.objects.difference import Difference
from gpunode.engine import batch, nodes, work
from gpunode.engine.member import Member, Members
from gpunode.engine.record import (
    CLUSTER,
    Record,
    RecordedChange,
    RecordedMarks,
    RecordedRun,
)
from gpunode.engine.reporter import Reporter, progress, report_reason
from gpunode.engine.session import Session
from gpunode.engine.undo import SOMEBODY
from gpunode.errors import ClusterError, Problem
from gpunode.links.node import GPU_LABEL, TAINTS, Node, fetch, labels, parse, taint
from gpunode.links.plugin import marks
from gpunode.model import Left, Title
from gpunode.wording import few

NAMED = 3
OBJECT_SECONDS = 180.0  # for a removed object to be gone


@dataclass(frozen=True, slots=True)
class NodePlan:
    """`wanted`: writer, of those that change something → all that it has set on the node then. `lines`: as of a Difference."""

    wanted: Mapping[str, Mapping[str, str]]
    lines: tuple[str, ...]
    left: tuple[Left, ...]


def plan(recorded: Sequence[RecordedMarks], node: Node) -> NodePlan:
    """What takes these marks of a run back from the node. What was changed since stays."""
    wanted, lines, left = dict[str, Mapping[str, str]](), list[str](), list[Left]()
    for writer in dict.fromkeys(each.writer for each in recorded if each.node == node.name):
        if writer == taint.UNVERIFIED:  # which is given back, to its run
            continue
        mine = [each for each in recorded if (each.node, each.writer) == (node.name, writer)]
        first, last, now = mine[0].before, mine[-1].after, nodes.own_marks(node, writer)
        after = dict(now)
        for key in sorted(first.keys() | last.keys()):
            before, here = first.get(key), now.get(key)
            if before in (last.get(key), here):
                continue
            if here != last.get(key):
                left.append(Left("kept", f"{_text(writer, key, here)} of node {node.name}", SOMEBODY))
                continue
            after.pop(key, None)
            after |= {} if before is None else {key: before}
            signs = [("-", here), ("+", before)]
            lines += [f"{sign}{_text(writer, key, value)}" for sign, value in signs if value is not None]
        if after != now:
            wanted[writer] = after
    return NodePlan(wanted, tuple(lines), tuple(left))


def _text(writer: str, key: str, value: str | None) -> str:
    return key if writer == TAINTS or value is None else f"{key}={value}"


def take_back(api: Api, run: RecordedRun, member: Member, record: Record, notify: OnProgress) -> Member:
    """The member, with its node as before the run. A node that loses the plugin while pods use its GPUs, and whose host had no change
    that waited for them, stays as it is: its member is excluded."""
    if member.node is None or member.reason is not None or not member.host_ok:
        return member
    name, leaves = member.node.name, False

    def take() -> Problem | None:
        nonlocal leaves  # a node that has lost the label is still to lose the rest
        item = api.get("Node", name)
        if item is None:
            return None
        node = parse(item)
        wanted, had = plan(run.marks, node).wanted, nodes.own_marks(node, labels.PROVISION)
        if GPU_LABEL in had and GPU_LABEL not in wanted.get(labels.PROVISION, had):
            if busy := work.why_busy(api, member):
                return busy
            leaves = True
        for writer, after in wanted.items():
            record.marks(node.name, writer, nodes.own_marks(node, writer), after)
            if writer == TAINTS:
                taint.write(api, node, tuple(after))
            else:
                labels.write(api, node, after, writer=writer)
        if leaves:
            marks.remove_plugin(api, node.name, notify=notify)
        mine = (each for each in run.marks if (each.node, each.writer) == (node.name, taint.UNVERIFIED))
        earlier = next((each.before[taint.UNVERIFIED] for each in mine), "")
        taint.release(api, node.name, run.id, earlier)
        return None

    try:
        return member.exclude(repeat(api, take, seconds=work.API_SECONDS, notify=notify))
    except ClusterError as error:
        return member.exclude(replace(error.problem, code=batch.FAILED))


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """`nodes`: by name. `objects`: their changes, and those that stay. `known`: what the record has the state before of, so that it is
    in one of these."""

    nodes: Mapping[str, NodePlan] = field(default_factory=dict)
    objects: tuple[Difference, ...] = ()
    left: tuple[Left, ...] = ()
    known: frozenset[Title] = frozenset()

    @property
    def changes(self) -> tuple[Difference, ...]:
        """Of nodes, then of objects."""
        labelled = [(Title("Node", name), node.lines) for name, node in self.nodes.items() if node.lines]
        return (*(Difference(title, "labelled", lines) for title, lines in labelled), *self.objects)


def plan_cluster(api: Api, run: RecordedRun, members: Sequence[Member], *, objects: bool) -> ClusterPlan:
    """What takes the run back on the members' nodes and, if asked for, its `objects`, with what stays."""
    planned = {member.node.name: plan(run.marks, member.node) for member in members if member.node}
    left = tuple(each for node in planned.values() for each in node.left)
    known = {Title("Node", each.node) for each in run.marks if each.node in planned}
    if not objects:
        return ClusterPlan(planned, (), left, frozenset(known))
    changes, stays = _plan_objects(api, run, planned)
    return ClusterPlan(
        planned, changes, left + stays, frozenset(known | {each.title for each in run.objects})
    )


def _plan_objects(
    api: Api, run: RecordedRun, planned: Mapping[str, NodePlan]
) -> tuple[tuple[Difference, ...], tuple[Left, ...]]:
    """What takes the run's objects back, and what stays: what was changed since, and what serves nodes that keep the plugin after what
    is `planned` for them."""
    labelled = [node.name for node in fetch(api, labels=GPU_LABEL)]
    others = [
        name
        for name in labelled
        if name not in planned or GPU_LABEL in planned[name].wanted.get(labels.PROVISION, {GPU_LABEL: ""})
    ]
    changes, left = list[Difference](), list[Left]()
    for each in reversed(run.objects):
        known = dict(each.manifest or each.before or {})
        live = api.get(known["kind"], known["metadata"]["name"], known["metadata"].get("namespace"))
        now = difference.as_manifest(live) if live else None
        if now == each.before or (each.before is None and live is None):
            continue
        if each.manifest is None and live is None:
            changes.append(difference.creation(dict(each.before or {})))
        elif (
            live is None
            or each.manifest is None
            or not is_ours(live)
            or apply.diff(api, [known])[0].action != "same"
        ):
            left.append(Left("kept", str(each.title), SOMEBODY))
        elif each.before is not None:
            part = difference.own_part(each.before, each.manifest, difference.as_manifest(live))
            changes += [change for change in apply.diff(api, [part]) if change.action != "same"]
        elif others:
            left.append(Left("kept", str(each.title), f"it serves {few(others, NAMED)}"))
        else:
            changes.append(difference.removal(live))
    return tuple(changes), tuple(left)


def restore_objects(
    api: Api, run: RecordedRun, shown: Sequence[Difference], *, seconds: float, notify: OnProgress
) -> None:
    """Make these changes that the plan of the run's undo has shown, as far as they are the same now that its nodes are undone. An object
    that others use stays; `notify` gets the reason. Raises ClusterError, with those that are not the same now, after the others."""
    planned, left = _plan_objects(api, run, {})
    same = {(change.what, change.lines) for change in shown}
    changes = [change for change in planned if (change.what, change.lines) in same]
    apply.apply(api, [change.manifest for change in changes if change.manifest is not None])
    gone = [change.before for change in changes if change.manifest is None and change.before is not None]
    apply.remove(api, gone, seconds=seconds, notify=notify)
    due = {change.what for change in shown}
    stays = {each.what: each.why for each in left if each.what in due}
    stays |= {
        each.what: "changed since the plan" for each in planned if each.what in due and each not in changes
    }
    if stays:
        raise ClusterError(
            "; ".join(f"{what} stays: {why}" for what, why in stays.items()),
            hint="Run the undo again: it plans from the current state.",
        )


def show_plan(
    session: Session,
    api: Api | None,
    members: Members,
    placed: Members,
    recorded: RecordedRun,
    undone: Collection[str],
) -> ClusterPlan:
    """Show what the undo of a run changes in the cluster, and what it leaves as it is. Objects are every host's: they change where all
    of the run's hosts are among the session's, or `undone` already. Raises ClusterError without the rights for it."""
    planned = ClusterPlan()
    if api is not None:
        known = {host.name for host in session.inventory.hosts} & recorded.hosts.keys()
        every = known <= {*undone, *(host.name for host in session.hosts)}
        planned = plan_cluster(api, recorded, placed, objects=every)
        session.reporter.cluster(api.access.context, planned.changes)
        gone = [dict(change.before) for change in planned.objects if change.before and not change.manifest]
        rights.demand(api, (*rights.of_deletion(gone), *rights.of_wait(gone)))
    _show_left(session, members, recorded, planned, undone)
    return planned


def make_stage(
    session: Session, api: Api, record: Record, recorded: RecordedRun
) -> Callable[[Members], Members]:
    """The stage of the undo of a run on the nodes, which take pods again after it."""
    reporter = session.reporter

    def take(member: Member) -> Member:
        after = take_back(api, recorded, member, record, progress(reporter))
        if member.reason is None:
            report_reason(reporter, member.host.name, after.reason)
        return _reopen(api, after, reporter)

    return lambda members: tuple(map(take, members))


def _reopen(api: Api, member: Member, reporter: Reporter) -> Member:
    """The member after its undo; its node takes pods again."""
    if not member.host_ok:
        return member
    reason = work.lift_cordon(api, member, Problem("", "undone"), reporter.event)
    return member.exclude(reason) if reason.code == work.CORDONED else member


def restore(
    api: Api,
    reporter: Reporter,
    why: str,
    members: Members,
    recorded: RecordedRun,
    objects: Sequence[Difference],
) -> bool:
    """The last stage of the undo of a run, once all hosts are undone; whether it was made. `why`: nothing further may begin; "": it may."""
    if not all(member.host_ok and member.reason is None for member in members):
        why = why or "some hosts of the run are not undone"
    if why:
        reporter.note(
            f"The cluster's objects stay: {why}. Once all hosts are undone, `gpunode undo {recorded.id}` restores them."
        )
        return False
    try:
        restore_objects(api, recorded, objects, seconds=OBJECT_SECONDS, notify=progress(reporter))
    except ClusterError as error:
        reporter.problem(error.problem)
        return False
    return True


def _show_left(
    session: Session,
    members: Members,
    recorded: RecordedRun,
    planned: ClusterPlan,
    undone: Collection[str] = (),
) -> None:
    """Show what an undo leaves as it is: on hosts, and in the cluster."""
    known = {host.name for host in session.inventory.hosts}
    rows = [
        (name, "kept", "its changes", "the host has left the inventory")
        for name in recorded.hosts
        if name not in known and recorded.has_changed(name)
    ]
    rows += [("", left.code, left.what, left.why) for left in planned.left]
    rows += [
        ("", "cluster", change.what, why)
        for change in (recorded.changes[number] for number in recorded.planned.get(CLUSTER, ()))
        if change.title not in planned.known and change.kind != "replaced"
        if (why := _why_left(session, recorded, change, undone))
    ]
    show_left(session.reporter, members, rows)


def _why_left(
    session: Session, recorded: RecordedRun, change: RecordedChange, undone: Collection[str]
) -> str:
    """Why a change in the cluster stays; "" where the run has not made it, or an undo has taken it back."""
    owners = [change.of] if change.of in recorded.hosts else list(recorded.hosts)
    marked = {Title("Node", each.node) for each in recorded.marks}
    unmade = not any(recorded.hosts[name].started for name in owners)
    unmarked = marked and change.title not in marked
    if unmade or change.of in undone or (unmarked and change.title and change.title.kind == "Node"):
        return ""
    known = {host.name for host in session.inventory.hosts}.intersection(owners)
    if not known:
        return "the host has left the inventory"
    if not known <= {*undone, *(host.name for host in session.hosts)}:
        return "--limit excludes its host" if change.of else "--limit excludes other hosts of the run"
    noted = {*marked, *(each.title for each in recorded.objects)}
    return "this undo does not reach it" if change.title in noted else "its earlier state was not recorded"


def show_left(reporter: Reporter, members: Members, others: Sequence[tuple[str, str, str, str]] = ()) -> None:
    """Show what stays on the members' hosts, and the `others`: host, code, what and why."""
    rows = [
        (member.host.name, left.code, left.what, left.why)
        for member in members
        if member.outcome
        for left in member.outcome.left or ()
    ]
    reporter.rows("left", ("host", "code", "what", "why"), [*rows, *others])
