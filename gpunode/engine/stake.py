"""The work on the GPUs that the hosts' plans disturb: found before anything is shown or asked."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gpunode import packages
from gpunode.cluster.api import AT_ONCE, Api
from gpunode.engine import acts, nodes
from gpunode.engine import chain as pipeline
from gpunode.engine.member import Member, Members
from gpunode.errors import ClusterError
from gpunode.links.driver.on_host.gpus import DAEMONS
from gpunode.links.node import drain
from gpunode.links.node.drain import Work
from gpunode.links.plugin import pause
from gpunode.model import Disturbance, Disturbed, GpuUser, Reboot


def disturbance(one: Member) -> Disturbance:
    """What the host's plan interrupts."""
    system = packages.system_of_host(one.facts) if one.facts else None
    installed = system.NAMES.driver_family(one.facts.packages) if system and one.facts else {}
    return acts.disturbance(one.changes, driver=installed)


def booted(one: Member) -> str:
    """The boot id of the host; "" where that is not known."""
    return one.facts.boot_id if one.facts else ""


def work_of(users: Iterable[GpuUser]) -> tuple[GpuUser, ...]:
    """Those users of GPUs that are work: not the driver's own daemons."""
    return tuple(one for one in users if not one.command.startswith(DAEMONS))


def located(api: Api | None, members: Sequence[Member]) -> Members:
    """Those of the members that may be in the cluster, with their nodes or why there is none; () without a cluster."""
    able = [one for one in members if one.outcome and one.outcome.status in ("right", "planned")]
    return nodes.located(api, able, seconds=0, tell=lambda _: None) if api and able else ()


def disturbed(
    api: Api | None, namespace: str, members: Sequence[Member], found: Sequence[Member], *, strict: bool
) -> Members:
    """The members with the nodes that were `found`, and what each plan disturbs there. Not `strict`: whose work it is
    remains unknown where the API server does not say. `namespace`: of the device plugin."""
    node = {one.host.name: one.node for one in found}
    placed = [replace(one, node=node.get(one.host.name)) for one in members]
    plugins = (
        _plugins(api, namespace, strict=strict) if any(disturbance(one).reboot for one in placed) else {}
    )

    def asked(one: Member) -> Member:
        if not one.waits or one.outcome is None:
            return one
        mine = plugins.get(one.node.name, frozenset()) if one.node else frozenset[str]()
        return replace(one, outcome=replace(one.outcome, disturbs=_disturbed(api, one, mine, strict=strict)))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(asked, placed))


def _disturbed(api: Api | None, one: Member, plugin: Collection[str], *, strict: bool) -> Disturbed:
    what, users = disturbance(one), one.facts.gpu_users if one.facts else ()
    if not what:
        return Disturbed(what, pods={})
    pods = _pods(api, one, strict=strict)
    return Disturbed(
        what,
        work=one.host.work if what.ends_gpu_work else "stays",
        timeout=one.host.work_timeout,
        pods=None if pods is None else {pod.name: pod.asks for pod in pods if not pod.service},
        users=work_of(users),
        reload=what.reboot and _reloads(one, pods, plugin),
        standstill={pod.name: pod.standstill for pod in pods or () if pod.standstill and not pod.service},
    )


def _pods(api: Api | None, one: Member, *, strict: bool) -> tuple[Work, ...] | None:
    if api is not None and one.bare:
        return ()
    if api is None or one.node is None:
        return None
    try:
        return drain.on_node(api, one.node.name, booted(one), whole=one.host.work == "drain")
    except ClusterError:
        if strict:
            raise
        return None


def _plugins(api: Api | None, namespace: str, *, strict: bool) -> Mapping[str, Collection[str]]:
    """UIDs of the device plugin's pods by node."""
    try:
        return pause.everywhere(api, namespace) if api else {}
    except ClusterError:
        if strict:
            raise
        return {}


def _reloads(one: Member, pods: Sequence[Work] | None, plugin: Collection[str]) -> bool:
    """Whether the plan has no reboot any more once those users of the GPUs are gone that are waited for or make way."""
    if one.outcome is None or one.facts is None or one.outcome.desired is None:
        return False
    services = {key for pod in pods or () if pod.service for key in (pod.uid, pod.name)}

    def leaves(user: GpuUser) -> bool:
        if user.pod in plugin:
            return True
        if one.host.work == "kill" or user not in work_of([user]):
            return False
        return user.pod is None or (
            pods is not None and user.pod not in services and user.name not in services
        )

    stay = tuple(user for user in one.facts.gpu_users if not leaves(user))
    if len(stay) == len(one.facts.gpu_users):
        return False
    # What the users hold is free then; whether the kernel itself holds more shows only when they are gone.
    unheld = {name: replace(module, refcnt=0) for name, module in one.facts.modules.items()}
    facts = replace(one.facts, gpu_users=stay, modules=unheld)
    left = pipeline.plan(one.host, facts, one.outcome.desired).changes
    return not any(isinstance(change, Reboot) for change in left)
