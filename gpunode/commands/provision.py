"""The whole job: shows the plan, asks, then works on batch after batch, each to its proof."""

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from gpunode.cluster.api import Api
from gpunode.cluster.lease import Held
from gpunode.engine import (
    batch,
    cluster_diff,
    exit_codes,
    gate,
    impact,
    nodes,
    plan_file,
    prerequisites,
    proof,
    rollout,
    rounds,
)
from gpunode.engine.batch import Run
from gpunode.engine.batch_order import Size
from gpunode.engine.estimate import report_costs
from gpunode.engine.member import Members, outcomes
from gpunode.engine.plan_file import PlanFile
from gpunode.engine.record import DONE, Record, RecordedRun, RunOptions
from gpunode.engine.reporter import ANSWER, Headline, Reporter, confirm
from gpunode.engine.rollout import Hosts
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, StalePlan, UsageError
from gpunode.links.node import fetch, taint
from gpunode.model import Host
from gpunode.wording import Advice, Command, few, several

NAMED = 5


@dataclass(frozen=True, slots=True)
class ProvisionOptions:
    """How a fleet is worked on. `run`: with vectoradd. `size`, `canary`: see `split_batches`. `max_fail`: hosts that may end badly,
    those that the plan showed as refused or unreachable included, before no further batch begins; None: only those. `fingerprints`:
    of keys that the user trusts, in full. `taint`: all nodes until their proof. `accept`: the level of the acceptance after the proof; "":
    none. `reviewed`: the plan that was accepted beforehand, in this `file`. `rest`: unfinished hosts of the run that it `resumes`; `begun`: see `rebooting`."""

    yes: bool = False
    run: bool = True
    size: Size | None = None
    canary: int = 0
    max_fail: int | None = None
    fingerprints: tuple[str, ...] = ()
    taint: bool = False
    accept: str = ""
    reviewed: PlanFile | None = None
    file: Path = Path()
    resumes: str | None = None
    rest: tuple[str, ...] = ()
    begun: Mapping[str, float] = field(default_factory=dict)

    @property
    def recorded(self) -> RunOptions:
        return RunOptions(
            run=self.run,
            max_fail=self.max_fail,
            canary=self.canary,
            batch=self.size.text if self.size else None,
            fingerprints=self.fingerprints,
            taint=self.taint,
            accept=self.accept or None,
            resumes=self.resumes,
        )

    @classmethod
    def of_recorded_run(cls, run: RecordedRun, *, yes: bool, now: float) -> "ProvisionOptions":
        """The options that resume a recorded run. `now`: in seconds since the epoch."""
        known = run.options
        options = cls(
            yes=yes,
            max_fail=known.max_fail,
            fingerprints=known.fingerprints or (),
            accept=known.accept or "",
            resumes=run.id,
            rest=run.not_done,
            begun=rollout.rebooting(run, now),
        )._as_planned(known)
        done = sum(name in run.planned for name in run.in_state(*DONE))
        return replace(options, canary=max(0, options.canary - done))

    def with_plan(self, reviewed: PlanFile, file: Path, given: Collection[str]) -> "ProvisionOptions":
        """These options, with those of the plan in this file. Raises UsageError where one that the user has `given` differs."""
        known = reviewed.options
        planned = plan_file.written_options(known)
        for name, text in plan_file.written_options(self.recorded).items():
            if name in given and text != planned[name]:
                raise UsageError(
                    f"{text.split()[0]}: {file} was reviewed with {plan_file.write_options(known) or 'no options'}",
                    hint=f"`gpunode provision {shlex.quote(str(file))}` takes these options from the plan. For others, plan again.",
                )
        return replace(self._as_planned(known), reviewed=reviewed, file=file)

    def _as_planned(self, known: RunOptions) -> "ProvisionOptions":
        """These options, with those that a plan depends on from a record or a plan file."""
        return replace(
            self,
            run=known.run is not False,
            size=Size.parse(known.batch) if known.batch else None,
            canary=known.canary or 0,
            taint=bool(known.taint),
        )


def provision(session: Session, options: ProvisionOptions) -> int:
    """Provision the session's hosts batch by batch. Returns the exit code.

    Nothing changes before the whole plan was shown and accepted, except that a missing Python is installed first, after a question.
    """
    proves = options.run or bool(options.accept)
    api = rollout.connect(session, proves=proves, deploys=True)  # before any host is touched
    hosts = _plan_hosts(session, api, options)
    members, order = hosts.members, hosts.order
    cluster = _plan_cluster(session, api, hosts, options)
    rollout.check_rights(session, api, members)
    if _too_many_failed(session, hosts):
        return exit_codes.of_run(members)
    asked, answered = _ask(session, order, members, cluster, options)
    shown = options.reviewed and plan_file.make(Path(session.inventory.path), members, ())
    reviewed = plan_file.as_accepted(options.reviewed, shown) if options.reviewed and shown else None
    record = rollout.begin_record(session, members, options.recorded, asked, answered, rest=options.rest)
    record.cluster(cluster.changes, {member.node.name: member.host.name for member in members if member.node})
    with rollout.hold_cluster(session, api, record, members) as (lease, interrupt):
        run = Run(
            session,
            api,
            record,
            interrupt,
            impact.accepted_acts(members),
            prove=options.run,
            taint=options.taint,
            accept=options.accept,
            reviewed=reviewed,
        )
        members = rollout.run_batches(run, lease, hosts)
    record.end()
    _report_end(session, api if order else None, run, lease, members)
    return exit_codes.of_run(members)


def _plan_hosts(session: Session, api: Api | None, options: ProvisionOptions) -> Hosts:
    """Probe, plan and show every host: its changes, the interrupted work, and the batches."""
    members = rounds.probe_all(session, options.begun)
    members = prerequisites.install_python(session, members, yes=options.yes)
    members = prerequisites.add_repositories(session, members, options.fingerprints)
    return rollout.plan_hosts(
        session,
        api,
        members,
        begun=options.begun,
        size=options.size,
        canary=options.canary,
        max_fail=options.max_fail,
    )


def _plan_cluster(
    session: Session, api: Api | None, hosts: Hosts, options: ProvisionOptions
) -> cluster_diff.ClusterPlan:
    """Show what changes in the cluster, and the gates."""
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


def _too_many_failed(session: Session, hosts: Hosts) -> bool:
    """True, with a note, if more hosts than --max-fail allows ended badly before anything is asked or recorded."""
    members, most = hosts.members, hosts.max_fail
    bad = rollout.failed_hosts(members, hosts)
    if (
        most is None
        or len(bad) <= most
        or not any(member.host_ok or member.has_changes for member in members)
    ):
        return False
    names = few([f"{member.host.name}: {batch.end_state(member)[0]}" for member in bad], NAMED)
    session.reporter.note(
        f"Nothing was started: {several(len(bad), 'host')} failed already ({names}), and --max-fail allows {most}. Fix the host, leave it out with --exclude, or raise --max-fail. No run is recorded."
    )
    session.reporter.summary(outcomes(members), cluster=rollout.changes_left(session))
    return True


def _ask(
    session: Session,
    order: tuple[tuple[Host, ...], ...],
    members: Members,
    cluster: cluster_diff.ClusterPlan,
    options: ProvisionOptions,
) -> tuple[str, str]:
    """Show the batches, and raise Declined unless they are accepted. The question and how it was answered; empty: none was asked."""
    costs = report_costs(
        session,
        order,
        members,
        cluster,
        size=options.size,
        canary=options.canary,
        run=options.run,
        accepted=options.yes,
    )
    yes, answered, hint = options.yes, "--yes" if options.yes else "yes", ANSWER
    if options.reviewed is not None:
        hint = plan_file.plan_again(options.reviewed, options.file, session.inventory)
        yes = _check_reviewed(session, members, cluster, options.reviewed, hint, yes=yes)
        answered = f"as reviewed, the plan of {options.reviewed.by}" if yes else answered
        if yes and not options.yes and costs:  # no question has them
            session.reporter.note(Headline(costs))
    if not (costs or cluster.objects):
        return "", ""
    path = session.inventory.path
    question = f"{costs}. Apply {path}?" if costs else f"Apply {path} to the cluster?"
    confirm(session.reporter, question, yes=yes, hint=hint)
    return question, answered


def _check_reviewed(
    session: Session,
    members: Members,
    cluster: cluster_diff.ClusterPlan,
    reviewed: PlanFile,
    hint: str,
    *,
    yes: bool,
) -> bool:
    """True if everything is as it was reviewed; else what is not is shown. Raises StalePlan with
    the hint for that if nobody is asked (`yes`)."""
    now = plan_file.make(Path(session.inventory.path), members, cluster.changes)
    deviations = plan_file.compare(reviewed, now)
    if not deviations:
        left = now.cluster or any(host.changes for host in now.hosts)
        end = "applied without a question" if left else "everything is done already"
        session.reporter.note(
            f"The plan matches the reviewed plan of {reviewed.by} ({reviewed.made}): {end}."
        )
        return True
    rows = [(each.host, each.code, "\n".join((each.what, *each.lines))) for each in deviations]
    session.reporter.rows("deviation", ("host", "code", "what"), rows)
    if yes:
        raise StalePlan(
            "nothing was changed: the plan differs from the reviewed one, and `--yes` applies only that",
            hint=hint,
        )
    return False


def _report_end(session: Session, api: Api | None, run: Run, lease: Held, members: Members) -> None:
    """Report the hosts' ends, and how to continue. `api`: None if no host reached the cluster's stages."""
    reporter = session.reporter
    rollout.report_lost(api, run, lease)
    if api is not None:
        proof.report_proofs(members, reporter)
        left = any(member.node and taint.run_of(member.node) for member in members)
        if run.taint or left or any(member.host.taint_until_verified for member in members):
            _report_tainted(api, run.record, reporter, members, proves=run.prove)
    rollout.report_results(session, members, alone=True)


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
            f"It is unknown which nodes still have the taint {taint.UNVERIFIED}: {error.problem.what}."
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
