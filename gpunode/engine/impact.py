"""The work on the GPUs that the hosts' plans disturb: found before anything is shown or asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gpunode import packages
from gpunode.cluster.api import AT_ONCE, Api
from gpunode.engine import acts, chain, nodes
from gpunode.engine.member import Member, Members
from gpunode.errors import ClusterError
from gpunode.links.driver.on_host.gpus import DAEMONS
from gpunode.links.node import drain
from gpunode.links.node.drain import Work
from gpunode.links.plugin import daemonset
from gpunode.model import Disturbance, Disturbed, GpuUser, Reboot


def disturbance(member: Member) -> Disturbance:
    """What the host's plan interrupts."""
    system = packages.system_of_host(member.facts) if member.facts else None
    installed = system.names.driver_family(member.facts.packages) if system and member.facts else {}
    return acts.disturbance(member.changes, driver=installed)


def booted(member: Member) -> str:
    """The boot id of the host; "" where that is not known."""
    return member.facts.boot_id if member.facts else ""


def work_of(users: Iterable[GpuUser]) -> tuple[GpuUser, ...]:
    """Those users of GPUs that are work: not the driver's own daemons."""
    return tuple(user for user in users if not user.command.startswith(DAEMONS))


def locate(api: Api | None, members: Sequence[Member]) -> Members:
    """Those of the members that may be in the cluster, with their nodes or why there is none; () without a cluster."""
    able = [member for member in members if member.outcome and member.outcome.status in ("right", "planned")]
    return nodes.locate(api, able, seconds=0, tell=lambda _: None) if api and able else ()


def find_impact(
    api: Api | None, namespace: str, members: Sequence[Member], found: Sequence[Member], *, strict: bool
) -> Members:
    """The members with the nodes that were `found`, and what each plan disturbs there. Not `strict`: whose work it is
    remains unknown where the API server does not say. `namespace`: of the device plugin."""
    node = {member.host.name: member.node for member in found}
    placed = [replace(member, node=node.get(member.host.name)) for member in members]
    plugins = (
        _plugins(api, namespace, strict=strict) if any(disturbance(one).reboot for one in placed) else {}
    )

    def asked(member: Member) -> Member:
        if not member.has_changes or member.outcome is None:
            return member
        mine = plugins.get(member.node.name, frozenset()) if member.node else frozenset[str]()
        return replace(
            member, outcome=replace(member.outcome, disturbs=_disturbed(api, member, mine, strict=strict))
        )

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(asked, placed))


def _disturbed(api: Api | None, member: Member, plugin: Collection[str], *, strict: bool) -> Disturbed:
    what, users = disturbance(member), member.facts.gpu_users if member.facts else ()
    if not what:
        return Disturbed(what, pods={})
    pods = _pods(api, member, strict=strict)
    return Disturbed(
        what,
        work=member.host.work if what.ends_gpu_work else "stays",
        timeout=member.host.work_timeout,
        pods=None if pods is None else {pod.name: pod.asks for pod in pods if not pod.service},
        users=work_of(users),
        reload=what.reboot and _reloads(member, pods, plugin),
        standstill={pod.name: pod.standstill for pod in pods or () if pod.standstill and not pod.service},
    )


def _pods(api: Api | None, member: Member, *, strict: bool) -> tuple[Work, ...] | None:
    if api is not None and member.bare:
        return ()
    if api is None or member.node is None:
        return None
    try:
        return drain.on_node(api, member.node.name, booted(member), whole=member.host.work == "drain")
    except ClusterError:
        if strict:
            raise
        return None


def _plugins(api: Api | None, namespace: str, *, strict: bool) -> Mapping[str, Collection[str]]:
    """UIDs of the device plugin's pods by node."""
    try:
        return daemonset.uids_by_node(api, namespace) if api else {}
    except ClusterError:
        if strict:
            raise
        return {}


def _reloads(member: Member, pods: Sequence[Work] | None, plugin: Collection[str]) -> bool:
    """Whether the plan has no reboot any more once those users of the GPUs are gone that are waited for or make way."""
    if member.outcome is None or member.facts is None or member.outcome.desired is None:
        return False
    services = {key for pod in pods or () if pod.service for key in (pod.uid, pod.name)}

    def leaves(user: GpuUser) -> bool:
        if user.pod in plugin:
            return True
        if member.host.work == "kill" or user not in work_of([user]):
            return False
        return user.pod is None or (
            pods is not None and user.pod not in services and user.name not in services
        )

    stay = tuple(user for user in member.facts.gpu_users if not leaves(user))
    if len(stay) == len(member.facts.gpu_users):
        return False
    # What the users hold is free then; whether the kernel itself holds more shows only when they are gone.
    unheld = {name: replace(module, refcnt=0) for name, module in member.facts.modules.items()}
    facts = replace(member.facts, gpu_users=stay, modules=unheld)
    left = chain.plan(member.host, facts, member.outcome.desired).changes
    return not any(isinstance(change, Reboot) for change in left)
