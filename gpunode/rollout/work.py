"""The work on a host: who would lose its GPUs, waiting for it or moving it away, and giving the node back."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from gpunode import converge, packages
from gpunode.cluster.api import AT_ONCE, Api
from gpunode.cluster.nodes import cordon, drain
from gpunode.cluster.nodes.drain import Work
from gpunode.cluster.reason import Reason, of
from gpunode.converge import Visit
from gpunode.errors import ClusterError
from gpunode.model import Event, GpuUser, OnEvent, Outcome
from gpunode.rollout import acts
from gpunode.rollout.acts import Disturbance
from gpunode.rollout.listener import Listener, problem
from gpunode.rollout.member import Member, Members
from gpunode.rollout.record import Record
from gpunode.rollout.session import Session
from gpunode.wording import Advice, Command, few

BUSY = "busy"  # code: work did not end in time
LOOK = 5.0  # seconds between two looks at the processes of a host
NAMED = 3
DAEMONS = (
    "nvidia-persistenced",
    "nv-fabricmanager",
    "nvidia-imex",
    "nv-hostengine",
)  # the driver's, and DCGM

Stake = Mapping[str, tuple[Work, ...] | None]


def disturbance(one: Member) -> Disturbance:
    """What the host's plan interrupts."""
    system = packages.of(one.facts) if one.facts else None
    installed = system.NAMES.driver_family(one.facts.packages) if system and one.facts else {}
    return acts.disturbance(one.changes, driver=installed)


def at_stake(api: Api | None, members: Sequence[Member]) -> Stake:
    """By host, for those whose plans disturb: the pods of its node but DaemonSets'; None where nobody can say."""

    def of_host(one: Member) -> tuple[Work, ...] | None:
        return None if api is None or one.node is None else _movable(drain.on_node(api, one.node.name))

    disturbed = [one for one in members if disturbance(one)]
    with ThreadPoolExecutor(AT_ONCE) as pool:
        found = list(pool.map(of_host, disturbed))
    return {one.host.name: pods for one, pods in zip(disturbed, found, strict=True)}


def show(listener: Listener, members: Sequence[Member], stake: Stake) -> None:
    """Tell what the plans disturb, and what becomes of the work there."""
    busy = [one for one in members if stake.get(one.host.name)]
    if busy:
        listener.note(
            f"Disturbs {few([one.host.name for one in busy], NAMED)}, one host at a time per group unless --batch says "
            f"otherwise: {'; '.join(_words(one, stake[one.host.name] or ()) for one in busy[:NAMED])}."
        )


def _words(one: Member, pods: Sequence[Work]) -> str:
    heavy, mode = disturbance(one).ends_gpu_work, one.host.work
    minutes = f"{one.host.work_timeout / 60:.0f} min"
    concerned = [pod.name for pod in pods if _concerns(mode)(pod)]
    if not heavy or not concerned:
        return f"{one.host.name} has {len(pods)} pod{'s' if len(pods) > 1 else ''}, which restart at most"
    verb = {"wait": f"waits for {minutes} at most for", "drain": "evicts", "kill": "ends"}[mode]
    return f"{one.host.name} {verb} {few(concerned, NAMED)}"


def cleared(
    api: Api, session: Session, members: Members, record: Record, *, stopped: Callable[[], bool]
) -> Members:
    """The members whose work has ended or moved away, cordoned and probed again; a member is out where that did not
    happen in time, and its cordon is lifted again."""
    heavy = [one for one in members if one.node is not None and disturbance(one).ends_gpu_work]
    reasons: dict[str, Reason] = {}
    by_host = {one.host.name: one for one in heavy}

    def story(visit: Visit, tell: OnEvent) -> Outcome:
        one = by_host[visit.host.name]
        assert one.node is not None
        assert one.outcome is not None
        try:
            cordon.cordon(api, one.node.name, record.owner)
            record.host(one.host.name, "cordoned")
            left, outcome = _ended(api, one, visit, tell, stopped)
            if left:
                cordon.uncordon(api, one.node.name)
                reasons[one.host.name] = _busy(one, left, stopped())
                return one.outcome
        except ClusterError as error:
            reasons[one.host.name] = of(BUSY, error)
            return one.outcome
        record.host(one.host.name, "drained")
        return outcome

    after = {one.host.name: one for one in session.probed(story, heavy)} if heavy else {}
    for host, reason in reasons.items():
        problem(session.listener, host, reason)
    return tuple(after.get(one.host.name, one).out(reasons.get(one.host.name)) for one in members)


def released(api: Api, members: Members) -> None:
    """Lift gpunode's cordons from the nodes of members that are proven."""
    for one in members:
        if one.proven and one.node is not None and cordon.TAINT in one.node.taints:
            cordon.uncordon(api, one.node.name)


def show_left(api: Api | None, listener: Listener, members: Sequence[Member]) -> None:
    """Tell of nodes that an earlier run cordoned and did not finish; those of this run are taken over."""
    here = {one.node.name for one in members if one.node}
    left = {node: owner for node, owner in cordon.left(api).items() if node not in here} if api else {}
    for node, owner in left.items():
        listener.note(
            Advice(
                f"{node} is still cordoned by {owner}, which did not finish. `",
                Command("resume"),
                f"` goes on with it; `kubectl uncordon {node}` gives it back as it is.",
            )
        )


def _ended(
    api: Api, one: Member, visit: Visit, tell: OnEvent, stopped: Callable[[], bool]
) -> tuple[str, Outcome]:
    """What still uses the GPUs when the time is over, in words ("" for nothing), and the host as it was probed then."""
    assert one.node is not None
    assert one.outcome is not None
    mode, seconds, name = one.host.work, one.host.work_timeout, one.node.name
    if mode == "kill":
        return "", one.outcome

    def sentence(text: str) -> None:
        tell(Event("stage", one.host.name, text))

    end = time.monotonic() + seconds
    left = drain.wait(
        api, name, _concerns(mode), evict=mode == "drain", seconds=seconds, tell=sentence, stopped=stopped
    )
    if left:
        blocked = "; ".join(pod.obstacle for pod in left if pod.obstacle)
        return few([pod.name for pod in left], NAMED) + (f" ({blocked})" if blocked else ""), one.outcome
    services = {pod.uid for pod in drain.on_node(api, name) if pod.service}
    while True:
        outcome = converge.look(visit, tell)
        users = _users(outcome.facts.gpu_users if outcome.facts else (), services)
        if not users or time.monotonic() >= end or stopped():
            return users, outcome
        sentence(f"waiting for {users} to leave the GPUs")
        time.sleep(LOOK)


def _users(users: Iterable[GpuUser], services: Collection[str]) -> str:
    """Processes that use the GPUs and are no service's."""
    work = [one for one in users if one.pod not in services and not one.command.startswith(DAEMONS)]
    return few([f"{one.command} (pid {one.pid})" for one in work], NAMED)


def _concerns(mode: str) -> Callable[[Work], bool]:
    return lambda pod: not pod.service and (pod.gpus or mode == "drain")


def _movable(pods: Iterable[Work]) -> tuple[Work, ...]:
    return tuple(pod for pod in pods if not pod.service)


def _busy(one: Member, left: str, interrupted: bool) -> Reason:
    after = "interrupted while" if interrupted else f"after {one.host.work_timeout / 60:.0f} min"
    hint = "Run again when it has ended, or change `work` or `work_timeout` in the inventory."
    return Reason(BUSY, f"{one.host.name}: not changed: {after} {left} still used its GPUs", fix=hint)
