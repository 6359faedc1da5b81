"""One batch of hosts, from their accepted plans to their proof: no work lost, all rounds, the node and its GPUs back."""

import queue
import signal
import threading
import time
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType
from typing import Any

from gpunode.cluster.api import Api, side_by_side
from gpunode.cluster.api.watch import repeat, wait_for_api
from gpunode.engine import control_plane, gate, plan_file, rounds, work
from gpunode.engine.fleet import Visit
from gpunode.engine.impact import Act
from gpunode.engine.member import PAUSED, Member, Members, update
from gpunode.engine.phases import WAITS, Laps, Spent
from gpunode.engine.plan_file import PlanFile
from gpunode.engine.proof import Walk, prove
from gpunode.engine.record import RIGHT, Record, State
from gpunode.engine.reporter import Reporter, progress, report_reason, stages
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, Problem
from gpunode.links.node import taint
from gpunode.model import Event, OnEvent, Outcome, Plan
from gpunode.wording import Advice, Command, few, lines

BY_INTERRUPT = Problem(PAUSED, "the run was interrupted")
CHANGES = "changes"  # of all hosts: no phase of a host
FAILED = "failed"  # code: the cluster did not do what was asked
KEPT = "an undo can restore none of the run's changes there"
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
        return replace(BY_INTERRUPT, fix=self.interrupt.continues) if self.interrupt.set else None

    def hold_taint(self, member: Member, emit: OnEvent, *, changing: bool) -> Member:
        """The member, as of `work.taint_until_proven`. Without vectoradd none is tainted: nothing would remove the taint."""
        if self.api is None or not self.prove:
            return member
        earlier = taint.run_of(member.node) if member.node else ""
        if member.node and earlier not in ("", taint.JOINING):  # an undo gives it back
            own = {taint.UNVERIFIED: self.record.id}
            self.record.marks(member.node.name, taint.UNVERIFIED, {taint.UNVERIFIED: earlier}, own)
        return work.taint_until_proven(self.api, member, self.record.id, self.taint, emit, changing=changing)


class Turns:
    """A batch changes hosts or proves them, never both at once: a node that is down would hold up the plugin's rollout to others. A proof
    begins when each of the `hosts` has ended or waits for work, or for one of the `forks` while all wait for work."""

    def __init__(self, hosts: Collection[str], forks: int) -> None:
        self._busy, self.waiting, self._forks = set(hosts), set[str](), forks
        self._proof = threading.Lock()

    def take(self, host: str) -> None:
        """Before the host's changes: wait for the end of a proof that goes on."""
        with self._proof:
            self._busy.add(host)
            self.waiting.discard(host)

    def wait(self, host: str) -> None:
        self.waiting.add(host)
        self._busy.discard(host)

    def begin_proof(self, ended: Collection[str]) -> bool:
        """Whether a proof may begin, of hosts that have `ended`; if so, no other takes its turn until `end_proof`."""
        self.waiting.difference_update(ended)
        self._busy.difference_update(ended)
        self._proof.acquire()
        if self._busy and len(self.waiting) < self._forks:
            self._proof.release()
            return False
        return True

    def end_proof(self) -> None:
        self._proof.release()


def finish(run: Run, members: Members) -> Members:
    """The members after all their stages; the end of each is recorded. Each host is changed as soon as its work has ended, and proven while
    others still wait for theirs."""
    reporter, masters, begun = run.session.reporter, control_plane.disturbed_hosts(members), time.monotonic()
    members = control_plane.healthy_before(run.api, members, masters, reporter)
    with closing(_change(run, members)) as parts:
        try:
            for part in parts:
                members = update(members, _finish_part(run, part, masters, Laps(begun)))
        except BaseException:
            run.interrupt.set = True  # hosts that still wait give their nodes back
            raise
    return members


def _change(run: Run, members: Members) -> Generator[Members, None, None]:
    """The members after their changes, in parts: those that are done whenever no other is at work. Members without changes are in the
    first. No other begins its changes while the caller has a part."""
    now = {member.host.name: member for member in members}
    going = {member.host.name for member in members if rounds.may_change(member)}
    if not going:
        yield members
        return
    turns = Turns(going, run.session.forks)

    def change(visit: Visit, emit: OnEvent) -> Outcome:
        name = visit.host.name
        before = now[name]

        def watch(event: Event) -> None:
            if event.data.get("wait") == work.WAIT:
                turns.wait(name)
            emit(event)

        now[name] = after = work.clear(
            run.api, run.session, before, visit, run.record, watch, stopped=lambda: run.stopped
        )
        turns.take(name)
        now[name] = after = _change_host(run, after, visit, emit, cleared=after is not before)
        assert after.outcome is not None
        return after.outcome

    hosts = [member.host for member in members if member.host.name in going]
    for done in run.session.in_parts(change, hosts, turns.begin_proof):
        try:
            for outcome in done:
                now[outcome.host] = after = replace(now[outcome.host], outcome=outcome)
                report_reason(run.session.reporter, outcome.host, after.reason)
                going.remove(outcome.host)
            run.session.reporter.failures(done)
            if going:
                text = f"still in use: {few(sorted(turns.waiting), NAMED)}; the batch's other hosts are finished now"
                run.session.reporter.event(Event("stage", None, text))
            yield tuple(now[member.host.name] for member in members if member.host.name not in going)
        finally:
            turns.end_proof()
        members = tuple(member for member in members if member.host.name in going)


def _change_host(run: Run, member: Member, visit: Visit, emit: OnEvent, *, cleared: bool) -> Member:
    """The member after its changes. `cleared`: its work has ended for them."""
    if not rounds.may_change(member):
        return member
    host = member.host.name
    unhealthy = control_plane.why_unhealthy(run.api, member, stages(emit, host)) if cleared else None
    reason = run.stopped or unhealthy
    if reason is None:
        run.record.host(host, "changing")  # from here on an interrupt lets it end
        reason = Problem(rounds.STOPPED, run.record.lost) if run.record.lost else None
    if reason:
        reason = replace(reason, what=f"{work.NOT_CHANGED}: {reason.what}", subject=host)
        return member.exclude(work.lift_cordon(run.api, member, reason, emit) if cleared else reason)
    member, accepted = run.hold_taint(member, emit, changing=True), run.accepted.get(host, frozenset())
    ready = partial(_clear_again, run, visit, emit)
    return rounds.converge_host(visit, member, accepted, emit, ready, run.record.id)


def _finish_part(run: Run, members: Members, masters: Collection[str], laps: Laps) -> Members:
    """The members after the stages that follow their changes. `laps`: since their batch began."""
    reporter = run.session.reporter
    changing = laps.end(CHANGES)
    begun = [member.host.name for member in members if member.host.name in masters and member.reason is None]
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


def _clear_again(run: Run, visit: Visit, emit: OnEvent, member: Member) -> Member:
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


def _prove(run: Run, api: Api, members: Members, laps: Laps) -> Members:
    """The members after their proof, with their nodes given back."""
    reporter = run.session.reporter

    def hold_taints(located: Members) -> Members:
        after = side_by_side(lambda member: run.hold_taint(member, reporter.event, changing=False), located)
        for now, before in zip(after, located, strict=True):
            report_reason(reporter, now.host.name, None if before.reason else now.reason)
        return tuple(after)

    def attempt() -> Members:
        walk = Walk(
            api,
            run.session.inventory,
            reporter,
            acts=True,
            run=run.prove,
            holder=run.record.owner,
            taint=hold_taints,
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
        # A handler may not print: it can interrupt the print of another line, within its lock.
        self._notes: queue.SimpleQueue[str] = queue.SimpleQueue()
        self._printer = threading.Thread(target=self._print, name="interrupt", daemon=True)

    def __enter__(self) -> "Interrupt":
        if threading.current_thread() is threading.main_thread():
            self._printer.start()
            self._before = signal.signal(signal.SIGINT, self._on_sigint)
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)
            self._notes.put("")
            self._printer.join()
        if kind is KeyboardInterrupt and (hosts := self._begun()):
            first = f"Unfinished: {few(hosts, NAMED)}; cordoned nodes stay cordoned."
            self._reporter.note(lines((first, self.continues), " "))

    def _on_sigint(self, _number: int, _frame: FrameType | None) -> None:
        if self.set:
            raise KeyboardInterrupt
        self.set = True
        self._notes.put(
            "Interrupted: hosts already started are finished, no other is started. Press Ctrl-C again to exit now and leave them unfinished."
        )

    def _print(self) -> None:
        while text := self._notes.get():
            with suppress(OSError):  # the run's next line meets it, too, and says so
                self._reporter.note(text)
