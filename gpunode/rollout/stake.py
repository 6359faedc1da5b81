"""What the hosts' plans disturb, and whose work that is: known before anything is shown or asked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gpunode import packages
from gpunode.agent.gpus import DAEMONS
from gpunode.cluster.api import AT_ONCE, Api
from gpunode.cluster.nodes import drain
from gpunode.errors import ClusterError
from gpunode.model import Disturbance, Disturbed, GpuUser
from gpunode.rollout import acts, nodes
from gpunode.rollout.member import Member, Members


def disturbance(one: Member) -> Disturbance:
    """What the host's plan interrupts."""
    system = packages.of(one.facts) if one.facts else None
    installed = system.NAMES.driver_family(one.facts.packages) if system and one.facts else {}
    return acts.disturbance(one.changes, driver=installed)


def work_of(users: Iterable[GpuUser]) -> tuple[GpuUser, ...]:
    """Those users of GPUs that are work: not the driver's own daemons."""
    return tuple(one for one in users if not one.command.startswith(DAEMONS))


def located(api: Api | None, members: Sequence[Member]) -> Members:
    """Those of the members that may be in the cluster, with their nodes or why there is none; () without a cluster."""
    able = [one for one in members if one.outcome and one.outcome.status in ("right", "planned")]
    return nodes.located(api, able, seconds=0, tell=lambda _: None) if api and able else ()


def disturbed(
    api: Api | None, members: Sequence[Member], found: Sequence[Member], *, strict: bool
) -> Members:
    """The members with the nodes that were `found`, and what each plan disturbs there. Not `strict`: whose work it is
    remains unknown where the API server does not say."""
    node = {one.host.name: one.node for one in found}
    placed = [replace(one, node=node.get(one.host.name)) for one in members]

    def asked(one: Member) -> Member:
        if not one.waits or one.outcome is None:
            return one
        return replace(one, outcome=replace(one.outcome, disturbs=_disturbed(api, one, strict=strict)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(asked, placed))


def _disturbed(api: Api | None, one: Member, *, strict: bool) -> Disturbed:
    what, users = disturbance(one), one.facts.gpu_users if one.facts else ()
    if not what:
        return Disturbed(what, pods={})
    return Disturbed(
        what,
        work=one.host.work if what.ends_gpu_work else "stays",
        timeout=one.host.work_timeout,
        pods=_pods(api, one, strict=strict),
        users=work_of(users),
    )


def _pods(api: Api | None, one: Member, *, strict: bool) -> dict[str, int] | None:
    if api is None or one.node is None:
        return None
    try:
        return {pod.name: pod.gpus for pod in drain.on_node(api, one.node.name) if not pod.service}
    except ClusterError:
        if strict:
            raise
        return None
