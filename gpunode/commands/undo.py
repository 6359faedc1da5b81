"""Takes the changes of a recorded run back: on the hosts by their journals, in batches as `provision` does; then in the cluster."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from gpunode.commands.history import rfc3339
from gpunode.engine import (
    batch,
    converge,
    exit_codes,
    gate,
    impact,
    rollout,
    rounds,
    undo_cluster,
)
from gpunode.engine import undo as planning
from gpunode.engine.batch import Run
from gpunode.engine.batch_order import Size
from gpunode.engine.cluster_diff import ClusterPlan
from gpunode.engine.estimate import report_costs
from gpunode.engine.fleet import Planner, Visit
from gpunode.engine.member import PAUSED, Members
from gpunode.engine.record import Progress, RecordedRun, RunOptions
from gpunode.engine.reporter import Moment, Reporter
from gpunode.engine.session import Session
from gpunode.errors import Refused
from gpunode.wording import Advice, Command, few

NAMED = 5


@dataclass(frozen=True, slots=True)
class UndoOptions:
    """`rest`: unfinished hosts of the undo that it `resumes`; `begun`: see `rebooting`; `undone`: those that it has undone. `note`: on the
    choice of the run."""

    yes: bool = False
    size: Size | None = None
    rest: tuple[str, ...] = ()
    begun: Mapping[str, float] = field(default_factory=dict)
    undone: Mapping[str, Progress] = field(default_factory=dict)
    resumes: str | None = None
    note: str = ""

    @classmethod
    def of_recorded_run(cls, run: RecordedRun, *, yes: bool, now: float) -> "UndoOptions":
        """The options that resume a recorded undo. `now`: in seconds since the epoch."""
        size = Size.parse(run.options.batch) if run.options.batch else None
        undone = {name: run.hosts[name] for name in run.in_state("undone", "kept")}
        return cls(yes, size, run.not_done, rollout.rebooting(run, now), undone, run.id)


def undo(session: Session, recorded: RecordedRun, options: UndoOptions) -> int:
    """Undo this run on the session's hosts. Returns the exit code. Nothing is proven: what the run brought is gone."""
    reporter, run_id = session.reporter, recorded.id
    began, by = Moment(rfc3339(recorded.began)), recorded.by or "an older gpunode"
    reporter.note(f"Undoes run {run_id}: began {began}, by {by}, of {recorded.inventory}.{options.note}")
    for name, visit in session.visits.items():
        visit.choose_planner = partial(_choose_planner, run_id, recorded.has_changed(name))
    api = rollout.connect(session, proves=False, deploys=False)
    hosts = rollout.plan_hosts(
        session,
        api,
        rounds.probe_all(session, options.begun),
        begun=options.begun,
        size=options.size,
        undone=tuple(options.undone),
    )
    members = hosts.members
    planned = undo_cluster.show_plan(session, api, members, hosts.placed, recorded, options.undone)
    kept = kept_hosts(members, planned)
    gate.show(session.inventory, reporter)
    rollout.check_rights(session, api, members)
    cluster = ClusterPlan(len(planned.changes), (), changes=planned.changes)
    costs = report_costs(
        session, hosts.order, members, cluster, size=options.size, run=False, accepted=options.yes
    )
    asked = answered = ""
    if costs or cluster.objects:
        question = f"{costs or 'Only the cluster'}. Undo run {run_id}?"
        asked, answered = rollout.ask(reporter, question, yes=options.yes)
    batch = options.size.text if options.size else None
    known = RunOptions(run=False, batch=batch, undo=run_id, resumes=options.resumes)
    record = rollout.begin_record(
        session, members, known, asked, answered, rest=options.rest, undone=options.undone
    )
    record.cluster(cluster.changes, {member.node.name: member.host.name for member in members if member.node})
    with rollout.hold_cluster(session, api, record, members) as (lease, interrupt):
        last = undo_cluster.make_stage(session, api, record, recorded) if api else None
        run = Run(
            session, api, record, interrupt, impact.accepted_acts(members), prove=False, last=last, kept=kept
        )
        members = rollout.run_batches(run, lease, hosts)
        why, restored = rollout.stop_reason(run, lease, members, hosts), True
        if api and planned.objects:
            restored = undo_cluster.restore(
                api, reporter, why.what if why else "", members, recorded, planned.objects
            )
    if restored or not all(member.host_ok and member.reason is None for member in members):
        record.end()  # or the undo still owes its objects, and `resume` continues it
    rollout.report_lost(api if hosts.order else None, run, lease)
    stay = [name for name, progress in options.undone.items() if progress.state == "kept"]
    stay += [member.host.name for member in members if member.host.name in kept]
    report_undone(members, stay, reporter)
    rollout.report_results(session, members)
    paused = bool(why and why.code == PAUSED)
    return exit_codes.of_undo(members, restored=restored, paused=paused, kept=bool(stay))


def kept_hosts(members: Members, planned: undo_cluster.ClusterPlan) -> frozenset[str]:
    """The hosts of which the undo can put nothing back, nor of their nodes. While it changes objects of the cluster, there are none."""
    if planned.objects:
        return frozenset()
    changed = {name for name, node in planned.nodes.items() if node.lines}
    return frozenset(
        member.host.name
        for member in members
        if member.outcome and member.outcome.kept and not (member.node and member.node.name in changed)
    )


def _choose_planner(run: str, changed: bool, visit: Visit) -> Planner:
    """Read the host's journals, and extend what its probes read. Raises Refused where they have nothing of a run that `changed` it."""
    journal = converge.read_journal(visit, run)
    if changed and not any(entry.run == run for entry in journal):
        raise Refused(
            visit.host.name,
            f"its journal has no entry of run {run}: the host was forgotten or reinstalled, or an older gpunode made the run",
            hint=f"`gpunode show {run} --diff` shows its changes: undo them by hand.",
        )
    visit.watch = planning.watch(visit.watch, journal, run)
    return partial(planning.plan_host, visit.host, journal, run)


def report_undone(members: Members, kept: Sequence[str], reporter: Reporter) -> None:
    """Report the hosts that are undone, those that were changed for it first, and that nothing is verified; of `kept` ones, that all
    stays."""
    if kept:
        reporter.note(f"Not undone: {few(kept, NAMED)}: {batch.KEPT}.")
    undone = [
        member
        for member in members
        if batch.end_state(member)[0] == "undone" and member.host.name not in kept
    ]
    mine = [member.host.name for member in undone if member.outcome and member.outcome.applied]
    same = [member.host.name for member in undone if member.host.name not in mine]
    if undone:
        first = f"Undone: {few(mine, NAMED)}. " if mine else ""
        first += f"No change needed: {few(same, NAMED)}. " if same else ""
        reporter.note(Advice(f"{first}An undo does not verify: run `", Command("verify"), "`."))
