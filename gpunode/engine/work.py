"""The work on a host: who would lose its GPUs, waiting for it or moving it away, and giving the node back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import answering
from gpunode.engine import converge, ending, nodes, stake
from gpunode.engine.listener import Listener, problem
from gpunode.engine.member import Member, Members
from gpunode.engine.record import Record
from gpunode.engine.session import Session
from gpunode.engine.visit import Visit
from gpunode.errors import ClusterError, Problem
from gpunode.links.node import GPU_LABEL, cordon, labels
from gpunode.links.node import parse as node_of
from gpunode.links.plugin import pause
from gpunode.model import Event, OnEvent, Outcome
from gpunode.wording import Advice, Command, few

BUSY = "busy"  # code: work did not end in time
CORDONED = "cordoned"  # code: nor could its node be given back
API_SECONDS = 600.0  # for which an API server may be away
NOT_CHANGED, NOT_FINISHED = "not changed", "not finished"
NAMED = 3


def cleared(
    api: Api | None, session: Session, members: Members, record: Record, *, stopped: Callable[[], bool]
) -> Members:
    """The members whose work has ended or moved away, cordoned and probed again; a member is out where that did not
    happen in time, and its cordon is lifted again. Without a node only processes outside Kubernetes are waited for.
    A pod of which nothing runs is not waited for: see `again`."""
    going = [one for one in members if one.waits and one.reason is None]
    heavy = [one for one in going if stake.disturbance(one).ends_gpu_work]
    reasons: dict[str, Problem] = {}
    spared: dict[str, bool] = {}
    by_host = {one.host.name: one for one in heavy}

    def story(visit: Visit, tell: OnEvent) -> Outcome:
        one = by_host[visit.host.name]
        assert one.outcome is not None
        node = one.node.name if api and one.node else ""
        try:
            if api and node:
                answering(
                    api, seconds=API_SECONDS, tell=lambda text: tell(Event("stage", visit.host.name, text))
                )
                cordon.cordon(api, node, record.owner)
                record.host(one.host.name, "cordoned")
            end = ending.ended(api, one, visit, tell, stopped)
            outcome, spared[one.host.name] = end.outcome, end.spared
            if end.left:
                reasons[one.host.name] = lifted(api, one, _busy(one, end.left, stopped()), tell)
                return one.outcome
            if api and one.node:
                cordon.cordon(
                    api, node, record.owner
                )  # the node may have been deleted meanwhile, or uncordoned
                outcome = _unplugged(api, session, replace(one, outcome=outcome), visit, record.owner, tell)
        except ClusterError as error:
            reasons[one.host.name] = lifted(api, one, _named(one, error), tell)
            return one.outcome
        record.host(one.host.name, "drained")
        return outcome

    after = {one.host.name: one for one in session.probed(story, heavy)} if heavy else {}
    for host, reason in reasons.items():
        problem(session.listener, host, reason)
    return tuple(
        replace(
            after.get(one.host.name, one).out(reasons.get(one.host.name)),
            spared=spared.get(one.host.name, False),
        )
        for one in members
    )


def again(
    api: Api | None, one: Member, visit: Visit, tell: OnEvent, *, stopped: Callable[[], bool]
) -> Member:
    """The member right before its changes. Of pods that stood still, something may run by now: its end is waited for, and
    the host probed again. Where it does not come in time the member is out, or failed if the host is changed in part."""
    if not one.spared or one.outcome is None or not stake.disturbance(one).ends_gpu_work:
        return one
    before = one.outcome
    what = NOT_FINISHED if before.applied else NOT_CHANGED
    try:
        end = ending.ended(api, one, visit, tell, stopped)
        if not end.left:
            changed = before.applied and end.outcome.status in ("right", "planned")
            status = "changed" if changed else end.outcome.status
            outcome = replace(end.outcome, status=status, applied=before.applied)
            return replace(one, outcome=outcome, spared=end.spared)
        reason = _busy(one, end.left, stopped(), what)
    except ClusterError as error:
        reason = _named(one, error, what)
    if not before.applied:
        return one.out(lifted(api, one, reason, tell))
    return replace(one, outcome=replace(before, status="failed", error=reason.what, hint=reason.fix))


def released(api: Api, members: Members) -> None:
    """Lift gpunode's cordons from the nodes of members that are proven."""
    for one in members:
        if one.proven and one.node is not None and cordon.TAINT in one.node.taints:
            cordon.uncordon(api, one.node.name)


def show_left(api: Api | None, listener: Listener, members: Sequence[Member]) -> None:
    """Tell of nodes that an earlier run cordoned and did not finish; those of this run are taken over."""
    here = {one.node.name for one in members if one.node}
    if api is None:
        return
    for node, owner in cordon.left(api).items():
        if node not in here:
            listener.note(
                Advice(
                    f"{node} is still cordoned by {owner}, which did not finish. `",
                    Command("resume"),
                    f"` continues with it; `kubectl uncordon {node}` gives it back as it is.",
                )
            )
    for node, owner in pause.left(api).items():
        if node not in here:
            listener.note(
                Advice(
                    f"{node} has no device plugin since {owner or 'another user'} paused it for a driver change. `",
                    Command("provision"),
                    f"` brings it back; so does `kubectl label node {node} {GPU_LABEL}=true --overwrite`.",
                )
            )


def lifted(api: Api | None, one: Member, reason: Problem, tell: OnEvent) -> Problem:
    """The reason why a host is not changed, once gpunode's cordon of its node is lifted and the device plugin is back there;
    with why it still stands: the host is disturbed then, and counts as one that ended badly."""
    if api is None or one.node is None:
        return reason
    node = one.node.name
    try:
        answering(api, seconds=API_SECONDS, tell=lambda text: tell(Event("stage", None, text)))
        if (item := api.get("Node", node)) is not None:
            if (now := node_of(item)).labels.get(GPU_LABEL) == pause.PAUSED:
                labels.write(api, now, nodes.wished(one.host))
            cordon.uncordon(api, node)
    except ClusterError as error:
        return replace(
            reason, code=CORDONED, what=f"{reason.what}; {node} is still cordoned: {error.problem.what}"
        )
    return reason


def _named(one: Member, error: ClusterError, what: str = NOT_CHANGED) -> Problem:
    found = replace(error.problem, code=BUSY)
    return replace(found, what=f"{what}: {found.what}", subject=one.host.name)


def _unplugged(api: Api, session: Session, one: Member, visit: Visit, owner: str, tell: OnEvent) -> Outcome:
    """The host as it is without gpunode's device plugin, where that is in the way of another driver: then the modules are
    reloaded, and nothing reboots for it. Other services that use the GPUs are named."""
    assert one.node is not None
    assert one.outcome is not None
    what, namespace = stake.disturbance(one), session.inventory.cluster.namespace
    pods = pause.on(api, namespace, one.node.name)
    users = one.facts.gpu_users if one.facts else ()
    if not (what.reboot or what.modules or what.packages) or not any(user.pod in pods for user in users):
        return one.outcome

    def sentence(text: str) -> None:
        tell(Event("stage", one.host.name, text))

    try:
        gone = pause.pause(api, namespace, one.node, nodes.wished(one.host), owner, sentence)
    except ClusterError as error:
        sentence(f"the device plugin stays: {error.problem.what}")
        return one.outcome
    outcome = converge.look(visit, tell)
    users = outcome.facts.gpu_users if outcome.facts else ()
    if gone and users and stake.disturbance(replace(one, outcome=outcome)).reboot:
        sentence(
            f"no reload of the modules, as these use the GPUs: {few([str(user) for user in users], NAMED)}"
        )
    return outcome


def _busy(one: Member, left: str, interrupted: bool, what: str = NOT_CHANGED) -> Problem:
    after = "interrupted while" if interrupted else f"after {one.host.work_timeout / 60:.0f} min"
    hint = "Run again when it has ended, or change `work` or `work_timeout` in the inventory."
    return Problem(BUSY, f"{what}: {after} {left} still used its GPUs", fix=hint, subject=one.host.name)
