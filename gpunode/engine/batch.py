"""One batch of hosts, from their accepted plans to their proof: no work lost, all rounds, the node and its GPUs back."""

import signal
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import FrameType
from typing import Any

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import repeat, wait_for_api
from gpunode.engine import control_plane, gate, plan_file, rounds, work
from gpunode.engine.fleet import Visit
from gpunode.engine.impact import Act
from gpunode.engine.member import PAUSED, Member, Members
from gpunode.engine.phases import WAITS, Laps, Spent
from gpunode.engine.plan_file import PlanFile
from gpunode.engine.proof import Walk, prove
from gpunode.engine.record import RIGHT, Record, State
from gpunode.engine.reporter import Reporter, progress, report_reason
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, Problem
from gpunode.links.node import taint
from gpunode.model import OnEvent, Plan
from gpunode.wording import Advice, Command, few, lines

BY_INTERRUPT = Problem(PAUSED, "the run was interrupted")
CHANGES = "changes"  # of all hosts: no phase of a host
FAILED = "failed"  # code: the cluster did not do what was asked
KEPT = "all that the run changed there stays"
NOT_BEGUN = (work.BUSY, PAUSED, rounds.STOPPED, gate.CLOSED)  # codes


@dataclass(frozen=True, slots=True)
class Run:
    """The input of every batch. `accepted`: host → the acts that its plan showed. `prove`: with vectoradd. `taint`: all nodes, until
    their proof. `accept`: see `Walk`. `reviewed`: the plan that was accepted, if one was reviewed. `before`: called right before a host's
    changes; `last`: the stage in the cluster after them, in the place of the proof; `done`: how a host ends then; `kept`: the hosts of an undo that can put nothing back."""

    session: Session
    api: Api | None
    record: Record
    interrupt: "Interrupt"
    accepted: Mapping[str, frozenset[Act]]
    prove: bool
    taint: bool = False
    accept: str = ""
    reviewed: PlanFile | None = None
    before: Callable[[Member, OnEvent], Member] | None = None
    last: Callable[[Members], Members] | None = None
    done: State = "undone"
    kept: frozenset[str] = frozenset()

    @property
    def stopped(self) -> Problem | None:
        """Why no work is waited for any more; None: it is."""
        if self.record.lost:
            return Problem(rounds.STOPPED, self.record.lost)
        return BY_INTERRUPT if self.interrupt.set else None

    def hold_taints(self, members: Members, *, changing: bool) -> Members:
        """The members, as of `work.taint_until_proven`. Without vectoradd none is tainted: nothing would remove the taint."""
        if self.api is None or not self.prove:
            return members
        reporter = self.session.reporter
        for member in members:
            earlier = taint.run_of(member.node) if member.node else ""
            if member.node and earlier not in ("", taint.JOINING):  # an undo gives it back
                own = {taint.UNVERIFIED: self.record.id}
                self.record.marks(member.node.name, taint.UNVERIFIED, {taint.UNVERIFIED: earlier}, own)
        return work.taint_until_proven(
            self.api, members, self.record.id, self.taint, reporter, changing=changing
        )


def finish(run: Run, members: Members) -> Members:
    """The members after all their stages; the end of each is recorded."""
    reporter, masters = run.session.reporter, control_plane.disturbed_hosts(members)
    laps = Laps()
    members = control_plane.healthy_before(run.api, members, masters, reporter)
    members = work.clear(run.api, run.session, members, run.record, stopped=lambda: run.stopped)
    cordoned = run.record.begun
    for member in members:
        if member.has_changes and member.reason is None:
            run.record.host(member.host.name, "changing")
    if run.record.lost:
        members = tuple(_give_back(run, member, cordoned) for member in members)
    else:
        members = run.hold_taints(members, changing=True)
    begun = [member.host.name for member in members if member.host.name in masters and member.reason is None]
    laps.end(WAITS)
    members = rounds.converge_all(
        run.session,
        members,
        run.accepted,
        lambda member, visit, emit: _clear_again(run, member, visit, emit),
        run.record.id,
    )
    changing = laps.end(CHANGES)
    members = control_plane.healthy_after(run.api, members, begun, reporter)
    able = [member.host.name for member in members if member.host_ok]
    before = Spent(laps.seconds)
    if run.api is not None and any(member.host_ok for member in members):
        for member in members:
            if member.host_ok:
                run.record.host(member.host.name, "changed")
        try:
            wait_for_api(run.api, seconds=work.API_SECONDS, notify=progress(reporter))
            members = run.last(members) if run.last else _prove(run, run.api, members, laps)
        except ClusterError as error:
            reporter.problem(error.problem)
            members = tuple(
                member.exclude(replace(error.problem, code=FAILED)) if member.host_ok else member
                for member in members
            )
    laps.end(WAITS)
    members = tuple(
        replace(member, spent=_sum_up(member, laps.seconds if member.host.name in able else before, changing))
        for member in members
    )
    for member in members:
        state, why = end_state(member)
        if state == "undone":
            state, why = ("kept", KEPT) if member.host.name in run.kept else (run.done, why)
        gpus = member.addresses if state in RIGHT else ()
        applied = member.outcome.applied if member.outcome else ()
        run.record.host(member.host.name, state, why, gpus, member.spent, applied)
    return members


def _clear_again(run: Run, member: Member, visit: Visit, emit: OnEvent) -> Member:
    """The member right before a round of its changes, which are recorded as they are planned now."""
    member = work.clear_again(run.api, member, visit, emit, stopped=lambda: run.stopped)
    if run.reviewed and (reason := why_not_reviewed(run.reviewed, member)):
        return member.exclude(work.lift_cordon(run.api, member, reason, emit))
    run.record.plans(shown_plans([member]))
    return run.before(member, emit) if run.before and member.reason is None else member


def why_not_reviewed(accepted: PlanFile, member: Member) -> Problem | None:
    """Why the member's first changes are not applied: they are not those that were reviewed. None: they are, or there are none."""
    if not member.has_changes or member.reason is not None or (member.outcome and member.outcome.applied):
        return None
    text = plan_file.describe_unaccepted(accepted, member)
    what = f"{work.NOT_CHANGED}: its plan is no longer the accepted one: {text}"
    return Problem(rounds.STOPPED, what, fix=plan_file.AGAIN, subject=member.host.name) if text else None


def shown_plans(members: Sequence[Member]) -> dict[str, tuple[Plan, bool]]:
    """The plans of the members with changes, for the record of the run."""
    return {
        member.host.name: (member.outcome.plan, member.disturbs.reload)
        for member in members
        if member.has_changes and member.outcome and member.outcome.plan
    }


def _sum_up(member: Member, stages: Mapping[str, float], changing: float) -> Spent:
    """The member's seconds by phase, of its own changes and of the batch's stages. While other hosts are changed it waits."""
    own = member.outcome.spent if member.outcome else {}
    return Spent(own, stages, {WAITS: max(0.0, changing - sum(own.values()))})


def _give_back(run: Run, member: Member, cordoned: Collection[str]) -> Member:
    """The member, excluded before any change; its node takes pods again."""
    if not member.has_changes or member.reason is not None:
        return member
    reporter, host = run.session.reporter, member.host.name
    reason = Problem(rounds.STOPPED, f"{work.NOT_CHANGED}: {run.record.lost}", subject=host)
    if host in cordoned:
        reason = work.lift_cordon(run.api, member, reason, reporter.event)
    report_reason(reporter, host, reason)
    return member.exclude(reason)


def _prove(run: Run, api: Api, members: Members, laps: Laps) -> Members:
    """The members after their proof, with their nodes given back."""
    reporter = run.session.reporter

    def attempt() -> Members:
        walk = Walk(
            api,
            run.session.inventory,
            reporter,
            acts=True,
            run=run.prove,
            holder=run.record.owner,
            taint=lambda located: run.hold_taints(located, changing=False),
            accept=run.accept,
            note=run.record.marks,
            laps=laps,
        )
        after = prove(walk, members)
        work.release(api, after, run.record.id if run.prove else "")
        return after

    return repeat(api, attempt, seconds=work.API_SECONDS, notify=progress(reporter))


def end_state(member: Member) -> tuple[State, str]:
    """How far the member has come, and why no further."""
    why = member.problem.what if member.problem else (member.outcome.why if member.outcome else "")
    if member.reason is not None and member.reason.code in NOT_BEGUN:
        return "skipped", why
    if member.reason is not None and member.reason.code == control_plane.UNHEALTHY and member.has_changes:
        return "skipped", why
    status = member.outcome.status if member.outcome else "failed"
    if status in ("failed", "refused", "unreachable"):
        return status, why
    why = why or (member.result.why if member.result else "")
    if member.in_use:
        return "in use", why
    if member.proven:
        if member.outcome is not None and member.outcome.left is not None:
            return "undone", ""
        return ("proven" if member.result else "finished"), ""
    return "failed", why


NAMED = 5
RESUME = Advice("`", Command("resume"), "` continues with them.")


class Interrupt:
    """Within its block: `set` is True once Ctrl-C was pressed; the second Ctrl-C raises KeyboardInterrupt. `begun`: hosts that
    are left then before they are finished; they are named with what continues with them."""

    def __init__(
        self, reporter: Reporter, begun: Callable[[], Sequence[str]], continues: str = RESUME
    ) -> None:
        self.set = False
        self.continues = continues
        self._reporter, self._begun = reporter, begun
        self._before: Any = None

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._on_sigint)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
        if kind is KeyboardInterrupt and (hosts := self._begun()):
            first = f"Unfinished: {few(hosts, NAMED)}; cordoned nodes stay cordoned."
            self._reporter.note(lines((first, self.continues), " "))

    def _on_sigint(self, _number: int, _frame: FrameType | None) -> None:
        if self.set:
            raise KeyboardInterrupt
        self.set = True
        self._reporter.note(
            "Interrupted: hosts already started are finished, no other is started. Press Ctrl-C again to exit now and leave them unfinished."
        )
