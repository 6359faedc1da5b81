"""Converges one host: probe → decide → plan → apply → probe.

A round is one exec: the answer to an apply holds new facts. Changes that depend on them (a driver after a reboot) are
planned in the next round, which is shown and accepted like the first.
"""

import getpass
import secrets
import socket
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any

from gpunode.engine import chain
from gpunode.engine.chain import decide
from gpunode.engine.fleet import Visit, failure, unexpected_answer
from gpunode.engine.phases import IMAGES, PROBES, REBOOTS, WORK, Laps, Spent
from gpunode.errors import AgentFailed, ConnectionLost, HostError, PasswordRefused, Refused, Unreachable
from gpunode.host import answers, diff, wire
from gpunode.model import (
    Change,
    Entry,
    Event,
    Facts,
    Host,
    OnEvent,
    Outcome,
    Plan,
    PluginImage,
    Reboot,
    Service,
)
from gpunode.packages import hint_of
from gpunode.wording import advise, moment

ROUNDS = 3
LOCKED = advise("Wait for that run to end, then repeat this command. `gpunode abort` ends that run.")
REBOOT_SECONDS = 900.0
RECONNECT_SECONDS = 60.0
CONFIRM_SECONDS = 120.0  # after which a host that cannot be reached puts the files of a restart back


def probe_and_plan(visit: Visit, emit: OnEvent) -> Outcome:
    """Probe the host and plan. Refusals are outcomes that keep the facts."""
    emit(Event("stage", visit.host.name, "probe"))
    if visit.choose_planner and visit.planner is None:
        visit.planner = visit.choose_planner(visit)
    return _plan(visit, _probe(visit))


def read_journal(visit: Visit, run: str) -> tuple[Entry, ...]:
    """The journals of all applies on the host, with the originals of this run of an operator's record, which the visit then undoes;
    "": of all."""
    answers = visit.ask(wire.journal_job(run))
    journal = tuple(entry for answer in answers if answer["type"] == "journal" for entry in answer["entries"])
    visit.known, visit.undoes = tuple(dict.fromkeys(entry.apply for entry in journal)), run
    return journal


def wait_until_back(visit: Visit, seconds: float, emit: OnEvent) -> Outcome:
    """`probe_and_plan` for a host that may reboot for `seconds`: waits for it, unless it refuses the login."""
    end = time.monotonic() + seconds
    while True:
        try:
            return probe_and_plan(visit, emit)
        except Unreachable as error:
            if error.problem.code or time.monotonic() >= end:
                raise
        emit(Event("stage", visit.host.name, "wait until it answers: an earlier run was changing it"))
        time.sleep(2)


def follow_running_apply(visit: Visit, outcome: Outcome, emit: OnEvent) -> Outcome:
    """If an earlier apply still runs on the host, wait for its end and probe again."""
    run = outcome.facts.running if outcome.facts else None
    if run is None:
        return outcome
    emit(Event("stage", visit.host.name, f"follow the apply that {run.by} started", {"run": run.run}))
    for message in _messages(visit, wire.follow_job(run.run), run.run, emit):
        if message["type"] == "progress":
            emit(Event("progress", visit.host.name, message["text"]))
    visit.planner = None  # it may rest on what that apply has done
    return probe_and_plan(visit, emit)


def confirm_restarts(visit: Visit, outcome: Outcome, emit: OnEvent) -> Outcome:
    """Confirm restarts that earlier applies left unconfirmed. The visit's connection must be younger, as after `probe_and_plan`."""
    runs = sorted({restart.run for restart in outcome.facts.unconfirmed}) if outcome.facts else []
    if runs:
        emit(Event("stage", visit.host.name, "confirm what an earlier apply could not"))
        for _ in visit.ask(wire.confirm_job(runs)):
            pass
    return outcome


def apply(visit: Visit, outcome: Outcome, emit: OnEvent, record: str = "") -> Outcome:
    """Apply `outcome.plan`, then plan again from the new state. `record`: the run that the host's journal names.

    The outcome is `changed`, with the remaining plan (empty when the host is right), or how it ended before; it has what was applied
    by then. If the connection is lost, the apply continues on the host; this reconnects and follows it to its end.
    """
    if not outcome.plan or outcome.facts is None:
        return outcome
    applied, laps = list[Change](), Laps()
    try:
        after = _apply(visit, outcome.plan, outcome.facts, emit, record, applied, laps)
    except HostError as error:
        after = failure(error)
    return replace(after, applied=(*outcome.applied, *applied), spent=Spent(outcome.spent, laps.seconds))


def _apply(
    visit: Visit, plan: Plan, facts: Facts, emit: OnEvent, record: str, applied: list[Change], laps: Laps
) -> Outcome:
    """The outcome of one apply. `applied` and `laps` get what was done, and how long it took. Raises HostError."""
    host = visit.host
    run = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
    by = f"{getpass.getuser()}@{socket.gethostname()}"
    job = wire.apply_job(
        run, by, plan.changes, visit.watch, CONFIRM_SECONDS, record, visit.known, visit.undoes
    )
    archives = wire.archives(plan.changes)
    seen: Facts | None = None
    error: AgentFailed | None = None
    guarded = any(isinstance(change, Service) and change.guards for change in plan.changes)
    for message in _messages(visit, job, run, emit, archives, guarded=guarded):
        kind = message["type"]
        if kind == "start":
            laps.end(IMAGES if archives and message["n"] == 0 else PROBES)  # the archives are on the host now
            change = _change(host, plan, message)
            data = {"n": message["n"], "of": len(plan.changes), "kind": type(change).__name__}
            emit(Event("change", host.name, diff.headline(change), data))
        elif kind == "progress":
            emit(Event("progress", host.name, message["text"], {"percent": message["percent"]}))
        elif kind == "done":
            change = _change(host, plan, message)
            applied.append(change)
            laps.add(WORK[type(change).__name__], message["seconds"])
            laps.add(PROBES, -message["seconds"])  # which is the rest of the apply
        elif kind == "failed":
            error = _failure(host, _change(host, plan, message), message)
        elif kind == "locked":
            raise Refused(
                host.name,
                f"{message['by']} has been changing this host since {moment(message['since'])}",
                hint=LOCKED,
            )
        elif kind == "unknown":
            raise ConnectionLost(
                host.name,
                "the connection was lost before the apply began: nothing was changed",
                hint="Run again.",
            )
        elif kind == "facts":
            seen = message["facts"]
    if error is None and any(isinstance(change, Reboot) for change in applied):
        reboot = next(change for change in applied if isinstance(change, Reboot))
        laps.end(PROBES)
        seen, refused = _reboot(visit, run, facts.boot_id, emit)
        laps.end(REBOOTS)
        if refused is not None:
            applied.remove(reboot)
            error = _failure(host, reboot, refused)
    after = _plan(visit, seen or _probe(visit))
    laps.end(PROBES)
    if error is not None:
        return replace(after, status="failed", problem=error.problem)
    return replace(after, status="changed") if after.status in ("right", "planned") else after


@dataclass(frozen=True, slots=True)
class Ended:
    """The apply that an abort ended; empty if none ran. `results`: restored files, and those that could not be."""

    by: str = ""
    since: str = ""
    doing: str = ""
    results: tuple[str, ...] = ()


def abort(visit: Visit, emit: OnEvent) -> Ended:
    """End the running apply on the host. It restores files whose restart was not verified."""
    emit(Event("stage", visit.host.name, "abort"))
    ended = Ended()
    for message in visit.ask(wire.abort_job()):
        if message["type"] == "aborting":
            ended = Ended(message["by"], moment(message["since"]), message["doing"])
            emit(Event("stage", visit.host.name, f"ending the apply of {ended.by}: {ended.doing}"))
        elif message["type"] == "failed":
            back = [f"restored {path}" for path in message["restored"]]
            ended = replace(ended, results=(*ended.results, *back, *message["detail"]))
        elif message["type"] == "progress":
            ended = replace(ended, results=(*ended.results, message["text"]))
    return ended


def _failure(host: Host, change: Change, message: Mapping[str, Any]) -> AgentFailed:
    first = f"{diff.headline(change)}: {message['error']}"
    lines = [first, *(f"  {line}" for line in message["detail"] if line.strip() not in first)]
    if message["restored"]:
        lines.append(f"Restored: {', '.join(message['restored'])}")
    code = message["code"]
    return AgentFailed(host.name, "\n".join(lines), hint=hint_of(code), code=code)


def _change(host: Host, plan: Plan, message: Mapping[str, Any]) -> Change:
    n: int = message["n"]
    if 0 <= n < len(plan.changes):
        return plan.changes[n]
    expected = f"the number of one of {len(plan.changes)} changes"
    raise unexpected_answer(host, answers.unexpected_value(n, expected, f"{message['type']}.n"))


def _messages(
    visit: Visit,
    job: Mapping[str, Any],
    run: str,
    emit: OnEvent,
    archives: Sequence[str] = (),
    *,
    guarded: bool = True,
) -> Generator[dict[str, Any], None, None]:
    """The messages of an apply to its end, across lost connections, and those that are opened to confirm a restart.

    `guarded`: it may have cut the host from its network, and will put its files back then.
    """
    patience = RECONNECT_SECONDS + (CONFIRM_SECONDS if guarded else 0)
    count = 0
    deadline = None
    confirms: int | None = None
    while True:
        skip = count  # `follow` sends the messages from the first one
        try:
            with closing(visit.ask(job, archives)) as messages:
                for message in messages:
                    if skip:
                        skip -= 1
                        continue
                    count += 1
                    deadline = None
                    if message["type"] == "confirm":
                        confirms = message["n"]
                        break
                    yield message
                else:
                    return
            emit(Event("progress", visit.host.name, f"confirm {message['unit']} over a new connection"))
            visit.close()
            job, archives = wire.follow_job(run, confirms), ()
        except Unreachable as error:
            deadline = deadline or time.monotonic() + patience
            if time.monotonic() > deadline:
                raise ConnectionLost(
                    visit.host.name,
                    f"the connection was lost while changing the host: {error.message}",
                    hint=advise(
                        "The apply continues there; `gpunode provision` follows it when the host answers again."
                    ),
                ) from error
            if isinstance(error, ConnectionLost):
                emit(Event("stage", visit.host.name, "connection lost; the apply continues; reconnecting"))
            time.sleep(1)
            job, archives = wire.follow_job(run, confirms), ()


def _reboot(visit: Visit, run: str, boot_id: str, emit: OnEvent) -> tuple[Facts, Mapping[str, Any] | None]:
    """Wait until the host is back with another boot id; with the failure's message if it did not reboot."""
    visit.close()
    deadline = time.monotonic() + REBOOT_SECONDS
    emit(Event("stage", visit.host.name, "reboot"))
    while time.monotonic() < deadline:
        time.sleep(2)
        try:
            seen = _probe(visit)
            # A reboot fails after the apply's `end`, so only its record has that failure.
            story = [] if seen.boot_id != boot_id else list(visit.ask(wire.follow_job(run)))
        except PasswordRefused:
            raise
        except HostError:
            continue
        refused = next((message for message in story if message.get("code") == "reboot-failed"), None)
        if seen.boot_id != boot_id or refused is not None:
            return seen, refused
    raise Unreachable(
        visit.host.name,
        f"it did not come back within {REBOOT_SECONDS / 60:.0f} minutes of its reboot",
        hint=advise("Check its console; then run `gpunode provision` again."),
    )


def _probe(visit: Visit) -> Facts:
    seen: Facts | None = None
    for message in visit.ask(wire.probe_job(visit.watch)):
        if message["type"] == "facts":
            seen = message["facts"]
    if seen is None:
        raise AgentFailed(visit.host.name, "the agent's answer holds no facts")
    return seen


def _plan(visit: Visit, seen: Facts) -> Outcome:
    return visit.planner(seen) if visit.planner else plan_host(visit.host, seen, visit.image)


def plan_host(host: Host, seen: Facts, image: PluginImage | None) -> Outcome:
    """The outcome for these facts: planned, right, or refused."""
    try:
        desired = decide(host, seen, image)
        plan = chain.plan(host, seen, desired)
    except Refused as refused:
        return Outcome(host.name, "refused", seen, problem=refused.problem, repository=refused.repository)
    return Outcome(host.name, "planned" if plan else "right", seen, desired, plan)
