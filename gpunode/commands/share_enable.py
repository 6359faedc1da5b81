"""The scheduler extender: deploys it and makes the cluster's scheduler ask it, or removes it."""

import getpass
import secrets
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Literal

from gpunode.cluster import control_plane, lease, rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.lease import Held
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.apply import Component
from gpunode.cluster.objects.difference import Difference
from gpunode.commands import unscheduled_pods
from gpunode.engine import converge, exit_codes, nodes, proof
from gpunode.engine.fleet import Visit
from gpunode.engine.member import Member, outcomes
from gpunode.engine.reporter import Reporter, confirm, progress
from gpunode.engine.session import Session
from gpunode.errors import AgentFailed, CannotPlan, ClusterError, GpunodeError, Refused, UsageError
from gpunode.links import plugin
from gpunode.links.scheduler import deployment
from gpunode.links.scheduler import plan as schedulers
from gpunode.links.scheduler.configuration import MANIFEST
from gpunode.model import Change, File, Inventory, OnEvent, Outcome, Plan, SecondScheduler, Share, StepPlan
from gpunode.wording import few

READY = 180.0  # seconds for a replica of the extender to lead, and for a second scheduler
API_SECONDS = 60.0  # for which the API server may be away before a host is begun
NAMED = 5
SIMULATED = (
    "This cluster is simulated and has no kube-scheduler. To try sharing here, put `sharing` into the file of "
    "`cluster.plugin.config`; then run `gpunode share inspect`, `fsck` and `simulate`. For a real cluster run `make try` in a "
    "checkout of gpunode."
)
STEP = "scheduler"


def enable(session: Session, *, yes: bool) -> int:
    """Deploy the extender, then configure the schedulers to ask it; the exit code."""
    desired, namespace = _share(session.inventory), session.inventory.cluster.namespace
    nodes.image_of(session.inventory)
    api = nodes.connect(session.inventory)
    applied = deployment.rights_to_apply(api, namespace, second=desired.scheduler is not None)
    later = (*nodes.rights_to_deploy(api, session.inventory), *applied)
    rights.demand(api, (*rights.LEASE, *rights.of_share(namespace)), later)
    with _hold_lease(api, session.reporter) as held:
        return _enable(session, api, held, yes=yes)


def _enable(session: Session, api: Api, held: Held, *, yes: bool) -> int:
    reporter, inventory = session.reporter, session.inventory
    desired, notify = _share(inventory), progress(reporter)
    spec = nodes.spec_of(inventory)
    minor = int(api.version().removeprefix("v").split(".")[1])
    wanted = deployment.spec(api, spec.namespace, spec.image, desired)
    extender = deployment.extender(wanted, seconds=READY)

    def scheduler(beside: SecondScheduler) -> Component[None]:
        return deployment.second_scheduler(api, wanted, beside, minor, seconds=READY)

    if (
        desired.scheduler is not None
    ):  # its address may not be known yet, but the user's rights to its roles are
        _refuse_asking_hosts(api)
        scheduler(desired.scheduler).plan(api, before=extender.manifests)
    hosts, code = ([], 0) if desired.scheduler else _schedulers(session, api)
    differences = *plugin.plan(api, spec, notify=reporter.note), *extender.plan(api)
    _confirm(api, reporter, differences, [*spec.manifests, *extender.manifests], yes=yes)
    rollout = plugin.deploy(api, spec, seconds=proof.PLUGIN_SECONDS, notify=notify)
    for name, state in rollout.states.items():
        if state.reason:
            reporter.problem(replace(state.reason, subject=name))
    extender.deploy(api, notify)
    if desired.scheduler is not None:
        name, second = desired.scheduler.name, scheduler(desired.scheduler)
        _confirm(api, reporter, second.plan(api), second.manifests, "the second scheduler ", yes=yes)
        second.deploy(api, notify)
        text = f"the extender leads, and the scheduler {name} asks it for pods with `schedulerName: {name}`"
        reporter.total(text, {"schedulers": 1, "asking": 1})
        unscheduled_pods.note(inventory, api.find("Pod")[0], reporter)
        return 0 if rollout.good else 1
    secret = schedulers.Access(deployment.address(api, spec.namespace), desired.resource, wanted.secret)
    done = _change(session, api, held, hosts, lambda files: schedulers.enable(files, minor, secret), yes=yes)
    reporter.total(
        f"the extender leads, and {done} of {len(hosts)} schedulers ask it",
        {"schedulers": len(hosts), "asking": done},
    )
    return code or (0 if rollout.good else 1)


def _confirm(
    api: Api,
    reporter: Reporter,
    differences: Sequence[Difference],
    manifests: Sequence[Object],
    what: str = "",
    *,
    yes: bool,
) -> None:
    """Show the cluster's changes, and ask. Raises Declined."""
    changes = [difference for difference in differences if difference.is_change]
    reporter.cluster(api.access.context, changes)
    if warning := apply.unguarded_note(api, manifests, changes):
        reporter.note(warning)
    if changes:
        confirm(reporter, f"Apply {what}to the cluster ({api.access.context})?", yes=yes)


def disable(session: Session, *, yes: bool) -> int:
    """Remove the extender from the schedulers, then from the cluster; the exit code."""
    api, namespace = nodes.connect(session.inventory), session.inventory.cluster.namespace
    removal = deployment.rights_to_remove(api, namespace)
    rights.demand(api, (*rights.LEASE, *removal, *rights.SCHEDULERS))
    with _hold_lease(api, session.reporter) as held:
        return _disable(session, api, held, yes=yes)


def _hold_lease(api: Api, reporter: Reporter) -> AbstractContextManager[Held]:
    """Hold the cluster's lease, so that no other run changes its nodes."""
    holder = f"share {secrets.token_hex(2)} of {getpass.getuser()}@{socket.gethostname()}"
    return lease.hold(api, holder, progress(reporter))


def _disable(session: Session, api: Api, held: Held, *, yes: bool) -> int:
    reporter, notify = session.reporter, progress(session.reporter)
    namespace = session.inventory.cluster.namespace
    everything = deployment.all_objects(namespace)
    asking = deployment.asking_nodes(api)
    if not apply.find_removable(api, everything, notify=notify) and not asking:
        text = "nothing to disable: the cluster has no extender, and no scheduler asks for it"
        reporter.total(text, {"schedulers": 0, "removed": 0})
        return 0
    share = session.inventory.cluster.share
    if share and share.scheduler:
        _refuse_asking_hosts(api)
    # Whatever the inventory names: where a second scheduler asks alone, no host is needed.
    beside = (share and share.scheduler) or (
        not asking and apply.find_present(api, deployment.second_objects(namespace))
    )
    hosts, code = ([], 0) if beside else _schedulers(session, api)
    _change(session, api, held, hosts, lambda files: (schedulers.disable(files), ""), yes=yes)
    there = apply.find_removable(api, everything, notify=notify)
    if there:
        reporter.rows("object", ("action", "object"), [("remove", title) for title in there])
        confirm(reporter, f"Remove these from {api.access.context}?", yes=yes)
    removed = deployment.remove(api, namespace, seconds=proof.PLUGIN_SECONDS, notify=notify)
    reporter.total(
        f"no scheduler asks the extender, and {len(removed)} objects were removed",
        {"schedulers": len(hosts), "removed": len(removed)},
    )
    return code


def _share(inventory: Inventory) -> Share:
    if inventory.cluster.share is None:
        raise UsageError(
            f"{inventory.path} has no `cluster.share`",
            hint="Add `share: {}` below `cluster`: the device plugin then follows what the extender promises.",
        )
    return inventory.cluster.share


def _refuse_asking_hosts(api: Api) -> None:
    """Raises ClusterError where schedulers on the control plane's hosts ask the extender beside a second scheduler."""
    if names := deployment.asking_nodes(api):
        raise ClusterError(
            f"the schedulers of {few(sorted(names), NAMED)} ask the extender, too: nothing was changed",
            hint="Leave `scheduler` out of `cluster.share`, and add these control plane nodes to the inventory. Then `gpunode share disable` removes both.",
        )


def _schedulers(session: Session, api: Api) -> tuple[list[Member], int]:
    """The hosts with a scheduler's manifest, with their nodes, and the exit code for hosts that were not probed."""

    def probe(visit: Visit, emit: OnEvent) -> Outcome:
        files = (*visit.watch.files, *schedulers.FILES)
        visit.watch = replace(visit.watch, files=files)
        outcome = converge.probe_and_plan(visit, emit)
        more = schedulers.named_configuration(outcome.facts.files) if outcome.facts else ()
        if not more:
            return outcome
        visit.watch = replace(visit.watch, files=(*files, *more))
        return converge.probe_and_plan(visit, emit)

    members = session.for_each_host(probe)
    unseen = [member for member in members if member.facts is None]
    session.reporter.failures(outcomes(unseen))
    seen = [replace(member, reason=None) for member in members if member.facts]
    placed = nodes.locate(api, seen, seconds=0, notify=session.reporter.note)
    masters = [member for member in placed if _files(member).get(MANIFEST, _NONE).exists]
    if not masters:
        raise ClusterError(
            f"none of these hosts has {MANIFEST}",
            hint=SIMULATED
            if api.simulated
            else "Add the hosts of the control plane to the inventory, with `control_plane: true`. If the control plane is not yours, name a second scheduler: `scheduler: {image: …}` below `cluster.share`.",
        )
    for member in masters:
        if not member.host.control_plane:
            raise Refused(
                member.host.name,
                "it belongs to the control plane, and its scheduler would restart",
                hint="Set `control_plane: true` for it in the inventory.",
            )
    if others := sorted(
        control_plane.schedulers(api) - {member.node.name for member in placed if member.node}
    ):
        raise ClusterError(
            f"the schedulers of {few(others, NAMED)} were not inspected: nothing was changed",
            hint="Add these control plane nodes to the inventory, make them reachable, and leave out --limit. Either all schedulers ask the extender, or none.",
        )
    return masters, exit_codes.worst(unseen)


_NONE = File("", exists=False)


def _files(member: Member) -> Mapping[str, File]:
    return member.facts.files if member.facts else {}


def _change(
    session: Session,
    api: Api,
    held: Held,
    members: Sequence[Member],
    planner: Callable[[Mapping[str, File]], tuple[tuple[Change, ...], str]],
    *,
    yes: bool,
) -> int:
    """Show the plans, and make the changes one host after the other, each until its scheduler is back; how many have it.
    `planner`: by the host's files, its changes and the volume that its scheduler then has."""
    reporter, todo = session.reporter, list[tuple[Member, str]]()
    for member in members:
        try:
            changes, volume = planner(_files(member))
        except CannotPlan as error:
            raise Refused(member.host.name, error.message, hint=error.hint) from None
        if changes:
            todo.append((_with_plan(member, changes), volume))
    if todo:
        reporter.plans(outcomes([member for member, _ in todo]))
        hosts = ", ".join(member.host.name for member, _ in todo)
        confirm(reporter, f"Change the scheduler's configuration on {hosts}, and restart it?", yes=yes)
    for member, volume in todo:
        if why := held.lost_reason(API_SECONDS, progress(reporter), lambda: False):
            raise ClusterError(f"not started: {why}", hint="Run this again.", subject=member.host.name)
        _apply(session, api, member, volume)
    return len(members)


def _with_plan(member: Member, changes: tuple[Change, ...]) -> Member:
    assert member.outcome is not None
    plan = Plan(member.host.name, (StepPlan(STEP, changes),) if changes else ())
    status: Literal["planned", "right"] = "planned" if changes else "right"
    return replace(member, outcome=replace(member.outcome, status=status, plan=plan, problem=None))


def _apply(session: Session, api: Api, member: Member, volume: str) -> None:
    """Apply the changes; revert them if the scheduler does not come back, or this process ends before. Raises GpunodeError."""
    node = member.node.name if member.node else member.host.name
    try:
        _make(session, member)
        why = deployment.wait_for_scheduler(api, node, volume, progress(session.reporter))
    except BaseException:
        session.reporter.note(f"{member.host.name}: {_restore(session, member)}.")
        raise
    if why:
        raise AgentFailed(
            member.host.name,
            f"the scheduler did not come back within {deployment.BACK:.0f} s: {why}; {_restore(session, member)}",
            hint=f"See `kubectl -n kube-system logs kube-scheduler-{node}`, and the kubelet's log on the host.",
        )


def _restore(session: Session, member: Member) -> str:
    """Restore the scheduler's files; returns the result as a sentence."""
    session.reporter.note(f"{member.host.name}: restoring the scheduler's earlier configuration.")
    try:
        now = _inspect(session, member)
        changes = schedulers.restore(_files(member), _files(now))
        if changes:
            _make(session, _with_plan(now, changes))
    except GpunodeError as error:
        return f"its earlier configuration could not be restored: {error.message}"
    return "its earlier configuration was restored" if changes else "its configuration is unchanged"


def _inspect(session: Session, member: Member) -> Member:
    """The member with its files as they are now. Raises AgentFailed."""

    def probe(visit: Visit, emit: OnEvent) -> Outcome:
        visit.watch = replace(visit.watch, files=(*visit.watch.files, *_files(member)))
        return converge.probe_and_plan(visit, emit)

    return _run(session, member, probe)


def _make(session: Session, member: Member) -> Member:
    """The member after its plan, with new facts. Raises AgentFailed if not all of it was applied."""
    outcome = member.outcome
    assert outcome is not None
    return _run(
        session, member, lambda visit, emit: converge.apply(visit, outcome, emit), len(member.changes)
    )


def _run(
    session: Session, member: Member, task: Callable[[Visit, OnEvent], Outcome], changes: int = 0
) -> Member:
    (after,) = session.for_each_host(task, [member])
    if after.facts is None or after.outcome is None or len(after.outcome.applied) < changes:
        problem = after.outcome.problem if after.outcome else None
        what, fix = (problem.what, problem.fix) if problem else ("", "")
        raise AgentFailed(
            member.host.name,
            what or ("not all was changed" if changes else "it cannot be inspected"),
            hint=fix,
        )
    return after
