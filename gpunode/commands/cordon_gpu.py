"""Take one GPU of a host out of scheduling, or give it back; its running pods stay."""

from __future__ import annotations

import getpass
import re
import socket
from collections.abc import Sequence
from dataclasses import replace

from gpunode.contract.cordons import Cordon
from gpunode.contract.times import utc
from gpunode.engine import converge, exit_codes
from gpunode.engine.member import Member, outcomes
from gpunode.engine.reporter import confirm
from gpunode.engine.session import Session
from gpunode.errors import CannotPlan, Refused, UsageError
from gpunode.links.plugin import cordons
from gpunode.model import Plan, StepPlan
from gpunode.wording import advise, few

STEP = "cordon"
WHOLE = re.compile(r"GPU-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def cordon_gpu(session: Session, uuid: str, reason: str | None, *, yes: bool) -> int:
    """Cordon the GPU, or uncordon it (`reason` None), on the session's host that has it; the exit code. `uuid`: or the start of one."""
    reporter = session.reporter
    if not uuid.startswith("GPU-"):
        raise UsageError(
            f"{uuid} is no UUID of a GPU",
            hint="It begins with GPU-, as `nvidia-smi -L` shows it. A MIG device goes with its GPU.",
        )
    members = session.for_each_host(converge.probe_and_plan, plans=False)
    unseen = [member for member in members if member.facts is None]
    reporter.failures(outcomes(unseen))
    member, uuid = _find_gpu(session, members, uuid)
    assert member.facts is not None
    assert member.outcome is not None
    cordon = None
    if reason is not None:
        since = utc()
        cordon = Cordon(f"{getpass.getuser()}@{socket.gethostname()}", reason, since)
    try:
        changes = cordons.plan(member.facts, uuid, cordon)
    except CannotPlan as error:
        raise error.refusal(member.host.name, "plugin") from None
    result = "cordoned" if cordon else "uncordoned"
    if not changes:
        _report(session, member, uuid, f"already {result}")
        return 0
    plan = Plan(member.host.name, (StepPlan(STEP, changes),))
    planned = replace(member.outcome, status="planned", plan=plan, problem=None)
    reporter.plans([planned], diff=True)
    what = (
        f"Take {uuid} of {member.host.name} out of scheduling"
        if cordon
        else f"Give {uuid} of {member.host.name} back"
    )
    confirm(reporter, f"{what}? Running pods stay.", yes=yes)
    (after,) = session.for_each_host(lambda visit, emit: converge.apply(visit, planned, emit), [member])
    outcome = after.outcome
    if outcome is None or len(outcome.applied) < len(changes):
        reporter.failures(outcomes([after]))
        return exit_codes.worst([after]) or 1
    _report(session, member, uuid, result)
    if cordon:
        reporter.note(
            advise(f"It takes no new pods until `gpunode uncordon-gpu {uuid}`, also after a reboot.")
        )
    return 0


def _find_gpu(session: Session, members: Sequence[Member], uuid: str) -> tuple[Member, str]:
    """The host that has this GPU, or has it cordoned, and its whole UUID. A lost GPU is not listed: its whole UUID counts on the one
    host that was selected.

    Raises Refused, and UsageError for the start of several UUIDs.
    """
    known = {
        each: member
        for member in members
        if member.facts
        for each in (*(gpu.uuid for gpu in member.facts.gpus), *cordons.read(member.facts))
        if each.startswith(uuid)
    }
    if uuid in known:
        return known[uuid], uuid
    if len(known) > 1:
        raise UsageError(f"{uuid} is the start of several UUIDs", hint=f"Name one: {few(sorted(known), 5)}.")
    if known:
        ((whole, member),) = known.items()
        return member, whole
    seen = [member for member in members if member.facts]
    if len(session.hosts) == 1 and seen and WHOLE.fullmatch(uuid):
        session.reporter.note(f"{seen[0].host.name} does not list {uuid} now.")
        return seen[0], uuid
    names = few([host.name for host in session.hosts], 5)
    raise Refused(
        names,
        f"none of these hosts lists {uuid}",
        hint="`nvidia-smi -L` on a host shows its GPUs. A lost GPU takes its whole UUID, and its host by --limit.",
    )


def _report(session: Session, member: Member, uuid: str, result: str) -> None:
    session.reporter.rows("cordon", ("host", "uuid", "result"), [(member.host.name, uuid, result)])
