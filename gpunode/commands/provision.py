"""The whole job: what would change is shown and accepted, then batch after batch is worked on, each to its proof."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path

from gpunode.cluster import lease, rights
from gpunode.cluster.api import Api
from gpunode.cluster.lease import Held
from gpunode.cluster.reason import Reason
from gpunode.engine import (
    acts,
    batch,
    control_plane,
    exit_codes,
    gate,
    nodes,
    planned,
    prove,
    python,
    repositories,
    rounds,
    stake,
    work,
)
from gpunode.engine.batch import Run
from gpunode.engine.batches import Size
from gpunode.engine.converge import REBOOT_SECONDS
from gpunode.engine.interrupt import Interrupt
from gpunode.engine.listener import Listener, accepted, progress
from gpunode.engine.member import Member, Members, outcomes
from gpunode.engine.record import BAD, BEGUN, DONE, FINISHED, Record, RecordedRun
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, GpunodeError
from gpunode.links.node import cordon
from gpunode.links.pod import left as pods
from gpunode.model import Host
from gpunode.wording import Advice, Command, few, lines

NAMED = 5
INTERRUPTED = "it was interrupted"
RESUME = Advice("`", Command("resume"), "` continues with them.")


@dataclass(frozen=True, slots=True)
class Wish:
    """How a fleet is worked on. `run`: with vectoradd. `size`, `canary`: see `batches`. `max_fail`: so many hosts may end
    badly, those included that the plan showed refused or unreachable, before no further batch is begun; None: none but
    those that the plan showed. `fingerprints`: whole ones of keys that the user trusts. `rest`: hosts that the run which this one resumes has not finished; `begun`: those of them
    that it had begun → seconds for which they may still reboot."""

    yes: bool = False
    run: bool = True
    size: Size | None = None
    canary: int = 0
    max_fail: int | None = None
    fingerprints: tuple[str, ...] = ()
    rest: tuple[str, ...] = ()
    begun: Mapping[str, float] = field(default_factory=dict)

    @property
    def options(self) -> Mapping[str, object]:
        """As the record of a run keeps it."""
        size = self.size and self.size.text
        return {
            "run": self.run,
            "max_fail": self.max_fail,
            "batch": size,
            "canary": self.canary,
            "fingerprints": list(self.fingerprints),
        }

    @classmethod
    def again(cls, run: RecordedRun, *, yes: bool, now: float) -> Wish:
        """To go on with a run as it was begun. `now`: in seconds since the epoch."""
        size, known = run.options.get("batch"), run.options
        hosts = {name: run.hosts[name].since for name in run.having(*BEGUN)}
        return cls(
            yes=yes,
            run=bool(known.get("run", True)),
            size=Size.parse(size) if size else None,
            canary=max(0, int(known.get("canary") or 0) - len(run.having(DONE))),
            max_fail=known.get("max_fail"),
            fingerprints=tuple(known.get("fingerprints") or ()),
            rest=run.not_done,
            # A clock that was set back makes no run wait longer than for a reboot.
            begun={name: max(0.0, REBOOT_SECONDS - max(0.0, now - since)) for name, since in hosts.items()},
        )


def provision(session: Session, wish: Wish) -> int:
    """Do it, and tell; the exit code."""
    wanted = session.inventory.cluster.plugin is not None
    api = nodes.connect(session.inventory) if wanted else None  # before any host is touched
    members = repositories.added(
        session,
        python.installed(session, rounds.probed(session, wish.begun), yes=wish.yes),
        wish.fingerprints,
    )
    found, namespace = stake.located(api, members), session.inventory.cluster.namespace
    members = control_plane.guarded(
        session.inventory, stake.disturbed(api, namespace, members, found, strict=True)
    )
    session.listener.plans(outcomes(members))
    if api is None:
        session.listener.note(nodes.WITHOUT_PLUGIN)
    order = _ordered(members, wish, cordon.left(api) if api else {})
    shown = (
        planned.plan(api, session.inventory, found, session.listener, order=order)
        if api and found
        else planned.Planned(0, ())
    )
    gate.show(session.inventory, session.listener)
    waiting = [one for one in members if one.waits]
    if api is not None:
        drains = any(one.host.work == "drain" and one.disturbs.what.ends_gpu_work for one in waiting)
        rights.demanded(api, rights.of_run(namespace, drains=drains, proves=wish.run))
    able = [one.host for one in members if one.good or one.waits]
    judged = {one.name for one in (session.hosts if wish.max_fail is not None else able)} | wish.begun.keys()
    if wish.max_fail is not None and able and len(bad := _bad(members, judged)) > wish.max_fail:
        return _nothing_begins(session, members, bad, wish.max_fail)
    _asked(session, order, waiting, shown, wish)
    record = Record.begin(
        Path(session.inventory.path),
        list(dict.fromkeys([*wish.rest, *(one.host.name for one in members)])),
        wish.options,
    )
    for one in members:
        if not (one.good or one.waits):  # no batch has it, but the next run may
            record.host(one.host.name, *batch.end(one))
    with _operator(api, session, record) as held, Interrupt(session.listener, lambda: record.begun) as stop:
        work.show_left(api, session.listener, members)
        if api is not None and held.exclusive:
            pods.sweep(api, namespace, progress(session.listener), holder=record.owner)
        run = Run(
            session,
            api,
            record,
            stop,
            {one.host.name: acts.acts(one.changes) for one in waiting},
            prove=wish.run,
        )
        shut, tell = "", progress(session.listener)

        def sure() -> str:
            return held.sure(work.API_SECONDS, tell, lambda: stop.set) or record.lost

        for number, part in enumerate(order, 1):
            now = tuple(one for one in members if one.host in part)
            why = _unhealthy(members) or _too_many(members, judged, wish.max_fail) or sure()
            why = why or (INTERRUPTED if stop.set else "")
            if not why and not shut:
                where = (number, len(order))
                shut = gate.closed(session.inventory, now, where, record, session.listener)
                why = sure() or (INTERRUPTED if stop.set else "")  # meanwhile
            code = gate.CLOSED if shut and not why else rounds.STOPPED
            why = why or shut
            now = _not_begun(run, now, code, why) if why else batch.finished(run, now)
            after = {one.host.name: one for one in now}
            members = tuple(after.get(one.host.name, one) for one in members)
    record.end()
    _tell_lost(held, session.listener)
    if record.lost:
        _tell_unwritten(api, record, session.listener)
    if api is not None and able:
        prove.verdicts(members, session.listener)
    _tell_left(members, session.listener)
    session.listener.summary(outcomes(members), cluster=0 if wanted else None)
    return exit_codes.of_run(members)


def _nothing_begins(session: Session, members: Members, bad: Sequence[Member], most: int) -> int:
    """Say so, where too many have ended badly before anything is asked or recorded; the exit code."""
    names = few([f"{one.host.name}: {batch.end(one)[0]}" for one in bad], NAMED)
    session.listener.note(
        f"Nothing begins: {_hosts(bad)} ended badly already ({names}), and --max-fail allows {most}. Fix what is wrong there, "
        "exclude it with --exclude, or allow more. Nothing was changed, and no run is recorded."
    )
    session.listener.summary(
        outcomes(members), cluster=0 if session.inventory.cluster.plugin is not None else None
    )
    return exit_codes.of_run(members)


def _ordered(members: Members, wish: Wish, left: Collection[str]) -> tuple[tuple[Host, ...], ...]:
    """The hosts that can be worked on, batch by batch. `left`: nodes that an earlier run left cordoned."""
    return rounds.ordered(members, begun=_begun(members, wish, left), size=wish.size, canary=wish.canary)


def _asked(
    session: Session,
    order: tuple[tuple[Host, ...], ...],
    waiting: Sequence[Member],
    cluster: planned.Planned,
    wish: Wish,
) -> None:
    """Show the batches, and raise Declined unless they are accepted."""
    parts = rounds.rows(order, waiting)
    session.listener.rows("batch", ("batch", "hosts", "changes", "disturbed", "words"), parts)
    busy = [part for part in parts if part[2]]
    if way := rounds.faster(busy, wish.size):
        session.listener.note(way)
    if waiting or cluster.objects:
        question = rounds.question(
            waiting, cluster.objects, session.inventory.path, len(busy), cluster.replaced
        )
        accepted(session.listener, question, yes=wish.yes)


def _operator(api: Api | None, session: Session, record: Record) -> AbstractContextManager[Held]:
    """Hold the cluster's lease, so that no other run changes its nodes; without a cluster there is none to hold."""
    if api is None:
        return nullcontext(Held(record.owner))
    return lease.hold(api, record.owner, progress(session.listener))


def _tell_lost(held: Held, listener: Listener) -> None:
    """What may have become of the test pods, where the lease was lost; perhaps within the last batch."""
    if held.lost:
        listener.note(f"Meanwhile {held.lost}. Whoever holds it may have deleted this run's test pods.")


def _tell_unwritten(api: Api | None, record: Record, listener: Listener) -> None:
    """Report the record that cannot be written, and which of the run's cordons stand."""
    nodes = ""
    try:
        mine = [node for node, owner in cordon.left(api).items() if owner == record.owner] if api else []
        nodes = f" Still cordoned: {', '.join(mine)}." if mine else ""
    except ClusterError as error:
        nodes = f" Nodes may still be cordoned: {error.words}."
    hint = Advice("Free space there or make it writable, then `", Command("resume"), "` continues.")
    listener.problem(GpunodeError(f"No further host was begun: {record.lost}.{nodes}", hint=hint))


def _tell_left(members: Members, listener: Listener) -> None:
    """The commands that go on with hosts that this run has not finished; nothing where there is none."""
    ends = {one.host.name: batch.end(one)[0] for one in members}
    bad = [name for name, state in ends.items() if state in BAD]
    left = [name for name, state in ends.items() if state not in FINISHED]
    if not left:
        return
    first = "Fix what is wrong there, then `" if bad else "`"
    them = "it" if len(left) == 1 else "them"
    words = [Advice(f"Not done: {few(left, NAMED)}. {first}", Command("resume"), f"` continues with {them}")]
    if bad and len(bad) < len(left):
        words += [Advice("`", Command("provision", "--limit @failed"), f"` with {few(bad, NAMED)} alone")]
    listener.note(lines((lines(words, ", "), "."), ""))


def _unhealthy(members: Members) -> str:
    """Why no further batch is begun: the control plane; "" while it may go on."""
    found = [one.reason for one in members if one.reason and one.reason.code == control_plane.UNHEALTHY]
    return found[0].words if found else ""


def _begun(members: Members, wish: Wish, left: Collection[str]) -> list[str]:
    """Hosts that are disturbed already: an earlier run had begun them, or left their nodes cordoned."""
    return [
        one.host.name
        for one in members
        if one.host.name in wish.begun or (one.node and one.node.name in left)
    ]


def _too_many(members: Members, judged: Collection[str], most: int | None) -> str:
    """Why no further batch is begun: how many hosts have ended badly; "" while it may go on."""
    bad = _bad(members, judged)
    if len(bad) <= (most or 0):
        return ""
    return f"{_hosts(bad)} ended badly ({few([one.host.name for one in bad], NAMED)})"


def _bad(members: Members, judged: Collection[str]) -> list[Member]:
    found = [one for one in members if one.host.name in judged]
    return [one for one in found if (one.reason or not one.waits) and batch.end(one)[0] in BAD]


def _hosts(bad: Sequence[Member]) -> str:
    return f"{len(bad)} host{'s' if len(bad) > 1 else ''}"


def _not_begun(run: Run, members: Members, code: str, why: str) -> Members:
    """The members, out before anything was changed there."""
    out = tuple(
        one.out(Reason(code, f"not begun: {why}", fix=RESUME, subject=one.host.name)) for one in members
    )
    for one in out:
        run.record.host(one.host.name, "skipped", one.reason.words if one.reason else "")
    names = few([one.host.name for one in out], NAMED)
    run.session.listener.note(lines((f"Not begun: {names}: {why}.", RESUME), " "))
    return out
