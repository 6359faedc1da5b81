"""The work on a host: who would lose its GPUs, waiting for it or moving it away, and giving the node back."""

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import repeat, wait_for_api
from gpunode.engine import converge, impact, nodes
from gpunode.engine.fleet import Visit, failure
from gpunode.engine.member import Member, Members
from gpunode.engine.record import Record
from gpunode.engine.reporter import Reporter, stages
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, HostError, Problem
from gpunode.links.node import GPU_LABEL, cordon, drain, fetch, labels, taint
from gpunode.links.node import parse as node_of
from gpunode.links.node.drain import Work
from gpunode.links.plugin import daemonset
from gpunode.links.plugin.other_owners import OTHER_OWNER
from gpunode.model import Event, GpuUser, OnEvent, Outcome
from gpunode.wording import advise, few, lasting, several

BUSY = "busy"  # code: work did not end in time
CORDONED = "cordoned"  # code: nor could its node be given back
WAIT = "work"  # what a host's stages are news of, while it waits for that
API_SECONDS = 600.0  # for which an API server may be away
NOT_CHANGED, NOT_FINISHED = "not changed", "not finished"
NAMED = 3


def clear(
    api: Api | None,
    session: Session,
    member: Member,
    visit: Visit,
    record: Record,
    emit: OnEvent,
    *,
    stopped: Callable[[], Problem | None],
) -> Member:
    """The member, cordoned and probed again after its work ended or moved away; as it is if its changes end no work. If that takes too
    long, or the host cannot be probed or planned any more, the member is excluded and its cordon lifted. Without a node only processes
    outside Kubernetes are waited for. Idle pods are not waited for: see `clear_again`."""
    if member.outcome is None or not impact.disturbance(member).ends_gpu_work:
        return member
    node = member.node.name if api and member.node else ""
    idle = False
    try:
        if api and node:
            act = partial(cordon.cordon, api, node, record.owner)
            repeat(api, act, seconds=API_SECONDS, notify=stages(emit, member.host.name))
            record.host(member.host.name, "cordoned")
        end = wait_for_end(api, member, visit, emit, stopped)
        outcome, idle = end.outcome, end.idle_pods_left
        if end.left:
            return member.exclude(lift_cordon(api, member, _busy(member, end.left, stopped()), emit))
        if api and member.node:
            # The node may have been deleted meanwhile, or uncordoned
            cordon.cordon(api, node, record.owner)
            outcome = _pause_plugin(api, session, replace(member, outcome=outcome), visit, record.owner, emit)
    except ClusterError as error:
        return member.exclude(lift_cordon(api, member, cluster_problem(member, error), emit))
    except HostError as error:
        outcome = failure(error)
    if outcome.problem:  # it has no plan any more
        outcome = replace(outcome, problem=lift_cordon(api, member, outcome.problem, emit))
        return replace(member, outcome=outcome)
    record.host(member.host.name, "drained")
    return replace(member, outcome=outcome, idle_pods_left=idle)


def clear_again(
    api: Api | None, member: Member, visit: Visit, emit: OnEvent, *, stopped: Callable[[], Problem | None]
) -> Member:
    """The member right before its changes. Idle pods may run by now: waits for their end, and probes the host again. If that
    takes too long, the member is excluded, or failed if the host is partly changed."""
    if not member.idle_pods_left or member.outcome is None or not impact.disturbance(member).ends_gpu_work:
        return member
    before = member.outcome
    what = NOT_FINISHED if before.applied else NOT_CHANGED
    try:
        end = wait_for_end(api, member, visit, emit, stopped)
        if not end.left:
            changed = before.applied and end.outcome.status in ("right", "planned")
            status = "changed" if changed else end.outcome.status
            outcome = replace(end.outcome, status=status, applied=before.applied)
            return replace(member, outcome=outcome, idle_pods_left=end.idle_pods_left)
        reason = _busy(member, end.left, stopped(), what)
    except ClusterError as error:
        reason = cluster_problem(member, error, what)
    if not before.applied:
        return member.exclude(lift_cordon(api, member, reason, emit))
    return replace(member, outcome=replace(before, status="failed", problem=reason))


def release(api: Api, members: Members, run: str) -> None:
    """Remove this run's taints and gpunode's cordons from the nodes of members that are proven. `run`: "" if no pod proved them.
    GPUs that a DRA driver allocates are not gpunode's to prove, so their node keeps no taint."""
    for member in members:
        if member.node is None:
            continue
        owned = member.problem is not None and member.problem.code == OTHER_OWNER
        if run and (member.proven or owned) and taint.run_of(member.node):
            taint.release(api, member.node.name, run)
        if member.proven and cordon.TAINT in member.node.taints:
            cordon.uncordon(api, member.node.name)


def taint_until_proven(
    api: Api, member: Member, run: str, asked: bool, emit: OnEvent, *, changing: bool
) -> Member:
    """The member, with its node tainted for this run if no pod may use it before its proof. `asked`: by the user, for all hosts.
    `changing`: right before its changes; if the node cannot be tainted, the member is not changed then."""
    if member.node is None or member.reason is not None:
        return member
    if not (is_tainted_until_proven(member, asked) or taint.run_of(member.node)):
        return member
    act = partial(taint.hold, api, member.node.name, run)
    try:
        after = repeat(api, act, seconds=API_SECONDS, notify=stages(emit, None))
    except ClusterError as error:
        reason = cluster_problem(member, error) if changing else error.problem
        return member.exclude(lift_cordon(api, member, reason, emit) if changing else reason)
    return replace(member, node=node_of(after)) if after and not changing else member


def is_tainted_until_proven(member: Member, asked: bool) -> bool:
    """True if the user wants the node tainted until its proof, and it takes no GPU work yet, or changes what that needs, or its
    required acceptance ran out. Otherwise it stays open: if all its GPUs are in use, nothing could prove it and remove the taint."""
    if member.node is None or not (asked or member.host.taint_until_verified):
        return False
    if member.node.labels.get(GPU_LABEL) != "true" or member.closes:
        return True
    applied = member.outcome.applied if member.outcome else ()
    changes = (*applied, *(member.changes if member.has_changes else ()))
    return impact.outdates_pods(changes, member.facts) or impact.disturbance_of(changes).ends_gpu_work


def too_many_tainted(api: Api, members: Members, asked: bool, percent: int) -> str:
    """Why these members are not begun: with their nodes more than `percent` of the GPU nodes would have gpunode's taint; "" if they
    may be. One node always may, and nodes that are tainted already. Nodes that never took GPU work do not count."""
    every = [node for node in fetch(api) if GPU_LABEL in node.labels]
    known = {node.name for node in every}
    due = {member.node.name for member in members if member.node and is_tainted_until_proven(member, asked)}
    before = {node.name for node in every if taint.run_of(node)}
    tainted = before | (due & known)
    most = max(1, len(known) * percent // 100)
    if len(tainted) <= most or tainted == before:
        return ""
    return (
        f"{len(tainted)} of {several(len(known), 'GPU node')} would be tainted ({few(sorted(tainted), NAMED)}), and "
        f"cluster.max_tainted: {percent}% allows {most}; a smaller --batch taints fewer at a time"
    )


def show_unfinished(api: Api | None, reporter: Reporter, members: Sequence[Member]) -> None:
    """Report nodes that an earlier run cordoned or tainted and did not finish, except those that this run takes over."""
    here = {member.node.name for member in members if member.node}
    if api is None:
        return
    for item in api.find("Node")[0]:
        node = item["metadata"]["name"]
        if node in here:
            continue
        if owner := cordon.owner_of(item):
            reporter.note(
                advise(
                    f"{node} is still cordoned by {owner}, which did not finish. `gpunode resume` continues with it; "
                    f"`kubectl uncordon {node}` releases it unverified."
                )
            )
        if run := taint.run_of(node_of(item)):
            reporter.note(
                advise(
                    f"{node} still has the taint {taint.text(run)}: its GPUs are not verified. `gpunode provision` of its "
                    "host verifies them."
                )
            )
    for node, owner in daemonset.paused_nodes(api).items():
        if node not in here:
            reporter.note(
                advise(
                    f"{node} has no device plugin since {owner or 'another user'} paused it for a driver change. "
                    f"`gpunode provision` restores it, or `kubectl label node {node} {GPU_LABEL}=true --overwrite`."
                )
            )


def lift_cordon(api: Api | None, member: Member, reason: Problem, emit: OnEvent) -> Problem:
    """Lift gpunode's cordon and bring the device plugin back to the node of a host that is not changed. Returns `reason`, or, if the
    cordon stays, a reason that says so: such a host counts as failed."""
    if api is None or member.node is None:
        return reason
    node, before = member.node.name, taint.run_of(member.node)

    def lift() -> None:
        if (item := api.get("Node", node)) is not None:
            if (now := node_of(item)).labels.get(GPU_LABEL) == daemonset.PAUSED:
                labels.write(api, now, nodes.desired_labels(member.host))
            if not before:
                taint.release(api, node, taint.run_of(now))
            cordon.uncordon(api, node)

    try:
        repeat(api, lift, seconds=API_SECONDS, notify=stages(emit, None))
    except ClusterError as error:
        return replace(
            reason, code=CORDONED, what=f"{reason.what}; {node} is still cordoned: {error.problem.what}"
        )
    return reason


def why_busy(api: Api, member: Member) -> Problem | None:
    """Why the plugin stays on the node of a host whose changes waited for no work: pods use its GPUs. Raises ClusterError."""
    if member.outcome and impact.disturbance(member, member.outcome.applied).ends_gpu_work:
        return None
    pods = drain.work_on(api, member.node.name, impact.boot_id(member)) if member.node else ()
    busy = [pod.name for pod in pods if pod.asks and not pod.service and not pod.standstill]
    what = f"{NOT_CHANGED}: {few(busy, NAMED)} still used its GPUs"
    return Problem(BUSY, what, fix="Run again when it has ended.") if busy else None


def cluster_problem(member: Member, error: ClusterError, what: str = NOT_CHANGED) -> Problem:
    problem = replace(error.problem, code=BUSY)
    return replace(problem, what=f"{what}: {problem.what}", subject=member.host.name)


def end_plugin(api: Api, namespace: str, member: Member, owner: str, emit: OnEvent) -> bool:
    """Take the plugin off the member's node. False if its pod stays; the kubelet of a node that is not Ready ends none. Raises
    ClusterError."""
    item = api.get("Node", member.node.name) if member.node else None
    if item is None or item["metadata"]["name"] not in daemonset.uids_by_node(api, namespace):
        return True
    notify = stages(emit, member.host.name, "plugin")
    node, desired = node_of(item), nodes.desired_labels(member.host)
    return daemonset.pause(api, namespace, node, desired, owner, notify) or not node.ready


def plugin_stays(namespace: str, node: str) -> ClusterError:
    return ClusterError(
        f"the device plugin did not leave {node} within {daemonset.PAUSE_SECONDS:.0f} s",
        hint=f"See why its pod does not end: `kubectl -n {namespace} describe pods`. Then run again.",
    )


def _pause_plugin(
    api: Api, session: Session, member: Member, visit: Visit, owner: str, emit: OnEvent
) -> Outcome:
    """Pause gpunode's device plugin on the node if it prevents a change of the driver or of MIG devices: the modules can then be reloaded without a
    reboot. Returns the host's new outcome. Names other services that use the GPUs. Raises ClusterError where the plugin stays and the
    toolkit goes, without which its pod would never end."""
    assert member.node is not None
    assert member.outcome is not None
    what, namespace = impact.disturbance(member), session.inventory.cluster.namespace
    pods = daemonset.uids_by_node(api, namespace).get(member.node.name, set())
    users = member.facts.gpu_users if member.facts else ()
    toolkit = impact.removed_toolkit(member.facts, member.changes)
    held = (what.reboot or what.modules or what.mig or what.packages) and any(
        user.pod in pods for user in users
    )
    if not (held or toolkit):
        return member.outcome
    notify = stages(emit, member.host.name)
    try:
        gone = end_plugin(api, namespace, member, owner, emit)
        if toolkit and not gone:
            raise plugin_stays(namespace, member.node.name)
    except ClusterError as error:
        if toolkit:
            raise
        notify(f"the device plugin stays: {error.problem.what}")
        return member.outcome
    outcome = converge.probe_and_plan(visit, emit)
    users = outcome.facts.gpu_users if outcome.facts else ()
    if gone and users and impact.disturbance(replace(member, outcome=outcome)).reboot:
        notify(f"no driver reload, as these use the GPUs: {few([str(user) for user in users], NAMED)}")
    return outcome


def _busy(member: Member, left: str, stopped: Problem | None, what: str = NOT_CHANGED) -> Problem:
    """Why a host whose GPUs are in use is not changed. `stopped`: why the run waits for nothing any more."""
    after = f"{stopped.what} while" if stopped else f"after {lasting(member.host.work_timeout)}"
    hint = "Run again when it has ended, or change `work` or `work_timeout` in the inventory."
    code = stopped.code if stopped else BUSY
    return Problem(code, f"{what}: {after} {left} still used its GPUs", fix=hint, subject=member.host.name)


PROBE_SECONDS = 5.0  # seconds between two looks at the processes of a host


@dataclass(frozen=True, slots=True)
class End:
    """How the wait for a host's work ended. `left`: users of the GPUs when the time was over, as text; "" for none. `outcome`: of the
    last probe. `idle_pods_left`: idle pods were left there."""

    left: str
    outcome: Outcome
    idle_pods_left: bool = False


def wait_for_end(
    api: Api | None, member: Member, visit: Visit, emit: OnEvent, stopped: Callable[[], Problem | None]
) -> End:
    """Wait until no work uses the GPUs, in the way that the host's `work` sets."""
    assert member.outcome is not None
    mode, seconds = member.host.work, member.host.work_timeout
    if mode == "kill":
        return End("", member.outcome)
    notify, end = stages(emit, member.host.name, WAIT), time.monotonic() + seconds
    emit_probe = emit
    # pods, by uid and by name: that of a static pod's processes is not its object's
    services: set[str] | None = None
    idle: Sequence[Work] = ()
    while True:
        if api and member.node and (services is None or idle):  # what stood still may run by now
            node, concerns, boot = member.node.name, _concerns(mode), impact.boot_id(member)
            seconds, evict, before = max(0.0, end - time.monotonic()), mode == "drain", idle
            wait_for_api(api, seconds=seconds, notify=notify)
            idle = drain.wait(
                api,
                node,
                concerns,
                evict=evict,
                seconds=seconds,
                notify=notify,
                stopped=lambda: stopped() is not None,
                boot=boot,
            )
            if left := [pod for pod in idle if not pod.standstill]:
                blocked = "; ".join(pod.obstacle for pod in left if pod.obstacle)
                names = few([pod.name for pod in left], NAMED)
                return End(names + (f" ({blocked})" if blocked else ""), member.outcome)
            services = {key for pod in drain.work_on(api, node) if pod.service for key in (pod.uid, pod.name)}
            if idle and not before:
                names = few([f"{pod.name} ({pod.standstill})" for pod in idle], NAMED)
                notify(f"not waited for, since they do not run: {names}")
        outcome = converge.probe_and_plan(visit, emit_probe)
        users = users_of(outcome.facts.gpu_users if outcome.facts else (), services)
        if not users or time.monotonic() >= end or stopped():
            return End(users, outcome, bool(idle))
        notify(f"waiting for {users} to leave the GPUs")
        emit_probe = _ignore  # the next ones are of this wait
        time.sleep(PROBE_SECONDS)


def _ignore(_event: Event) -> None: ...


def users_of(users: Iterable[GpuUser], services: Collection[str] | None) -> str:
    """Processes that use the GPUs, without those of services. `services` None: pods are unknown, and not waited for."""
    work = [
        user
        for user in impact.work_of(users)
        if (user.pod is None if services is None else user.pod not in services and user.name not in services)
    ]
    return few([str(user) for user in work], NAMED)


def _concerns(mode: str) -> Callable[[Work], bool]:
    return lambda pod: not pod.service and (bool(pod.asks) or mode == "drain")
