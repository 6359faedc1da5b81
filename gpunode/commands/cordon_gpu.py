"""Take one GPU of a host out of scheduling, or give it back; its running pods stay."""

import getpass
import socket
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

from gpunode.cluster.api import Api
from gpunode.contract.cordons import Cordon
from gpunode.contract.times import utc
from gpunode.engine import converge, exit_codes, nodes
from gpunode.engine.member import Member, outcomes
from gpunode.engine.reporter import confirm, progress
from gpunode.engine.session import Session
from gpunode.errors import CannotPlan, ClusterError, Refused, UsageError
from gpunode.links.plugin import cordons
from gpunode.links.plugin.usage import WHOLE, GpuName, NodeUsage, parse_gpu, read_usage
from gpunode.model import Plan, StepPlan
from gpunode.wording import advise, few

STEP = "cordon"


def cordon_gpu(session: Session, text: str, reason: str | None, *, yes: bool) -> int:
    """Cordon the GPU, or uncordon it (`reason` None), on the session's host that has it; the exit code. `text`: the GPU's name."""
    reporter = session.reporter
    name = parse_gpu(text)
    members = session.for_each_host(converge.probe_and_plan, _choose_hosts(session, name), plans=False)
    unseen = [member for member in members if member.facts is None]
    reporter.failures(outcomes(unseen))
    member, uuid = _find_gpu(session, members, name)
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


def _choose_hosts(session: Session, name: GpuName) -> Sequence[Member]:
    """The host of the GPU's node; of a whole UUID, of the node that lists it. Every host, where the cluster does not know."""
    members = [Member(host) for host in session.hosts]
    if name.node is None and (len(members) == 1 or not name.is_whole):
        return members
    named = [member for member in members if name.node and name.node in (member.host.name, member.host.node)]
    if named:
        return named
    with suppress(ClusterError):
        api = nodes.connect(session.inventory)
        node = name.node
        if node is None:
            usages = _ask_plugins(session, api)
            node = next((usage.node for usage in usages for gpu in usage.gpus if gpu.uuid == name.uuid), None)
        located = nodes.locate(api, members, seconds=0, notify=progress(session.reporter))
        named = [member for member in located if member.node and member.node.name == node]
    return named if named or name.node else members


def _ask_plugins(session: Session, api: Api, only: Sequence[str] | None = None) -> Sequence[NodeUsage]:
    """The usage of each node, as of `read_usage`."""
    there, pods = api.find("Node")[0], api.find("Pod")[0]
    return read_usage(api, session.inventory.cluster.namespace, there, pods, only)


def _ask_plugin(session: Session, member: Member, index: str) -> str | None:
    """The UUID of the GPU with this index, as the plugin of the host's node has it; None if it does not know."""
    with suppress(ClusterError):
        api = nodes.connect(session.inventory)
        (placed,) = nodes.locate(api, [member], seconds=0, notify=progress(session.reporter))
        for usage in _ask_plugins(session, api, [placed.node.name] if placed.node else []):
            return next((gpu.uuid for gpu in usage.gpus if gpu.index == index), None)
    return None


def _find_gpu(session: Session, members: Sequence[Member], name: GpuName) -> tuple[Member, str]:
    """The host that has this GPU, or has it cordoned, and its whole UUID. A lost GPU is not listed: its whole UUID counts on the one
    host that was selected.

    Raises Refused, and UsageError for the start of several UUIDs.
    """
    uuid = str(name)
    known = {
        each: member
        for member in members
        if member.facts
        for each, index in (
            *((gpu.uuid, str(gpu.index)) for gpu in member.facts.gpus),
            *((each, "") for each in cordons.read(member.facts)),
        )
        if name.fits(name.node or "", index, each)
    }
    if uuid in known:
        return known[uuid], uuid
    if len(known) > 1:
        raise UsageError(f"several UUIDs begin with {uuid}", hint=f"Name one: {few(sorted(known), 5)}.")
    if known:
        ((whole, member),) = known.items()
        return member, whole
    seen = [member for member in members if member.facts]
    if len(session.hosts) == 1 and seen and WHOLE.fullmatch(uuid):
        session.reporter.note(f"{seen[0].host.name} does not list {uuid} now.")
        return seen[0], uuid
    if name.index and len(seen) == 1:
        facts = seen[0].facts
        assert facts
        if facts.smi_error and (lost := _ask_plugin(session, seen[0], name.index)):
            session.reporter.note(f"{seen[0].host.name}'s driver does not answer. Its plugin lists {lost}.")
            return seen[0], lost
        there = few([f"{gpu.index} ({gpu.uuid})" for gpu in facts.gpus], 16) or "none"
        hint = f"Its GPUs: {there}. Name a lost GPU by its whole UUID."
        if facts.smi_error:
            hint = f"Its driver does not answer: {facts.smi_error.strip().splitlines()[0]}. Name the GPU by its whole UUID."
        raise Refused(seen[0].host.name, f"{seen[0].host.name} lists no GPU {name.index}", hint=hint)
    names = few([host.name for host in session.hosts], 5)
    raise Refused(
        names,
        f"none of these hosts lists {uuid}",
        hint="`nvidia-smi -L` on a host shows its GPUs. Name a lost GPU by its whole UUID, and its host by --limit.",
    )


def _report(session: Session, member: Member, uuid: str, result: str) -> None:
    session.reporter.rows("cordon", ("host", "uuid", "result"), [(member.host.name, uuid, result)])
