"""Who uses GPUs outside Kubernetes: the device plugin counts such processes, only their host can name them."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.cluster.api import Api
from gpunode.engine import converge, nodes
from gpunode.engine.listener import progress
from gpunode.engine.member import Member, outcomes
from gpunode.engine.session import Session
from gpunode.links.plugin.usage import NodeUsage

COLUMNS = ("node", "pid", "command", "container", "gpus")


def strange(found: Sequence[NodeUsage]) -> tuple[str, ...]:
    """Nodes with a GPU that processes use and no pod has."""
    return tuple(
        one.node
        for one in found
        if any(gpu.processes and gpu.users is not None and not gpu.users for gpu in one.gpus)
    )


def show(api: Api, session: Session, names: Sequence[str]) -> None:
    """Ask the hosts of these nodes, and report a row for each process outside pods; hosts that do not answer are failures."""
    members = nodes.located(
        api, [Member(host) for host in session.hosts], seconds=0, tell=progress(session.listener)
    )
    theirs = {one.host.name: one.node.name for one in members if one.node and one.node.name in names}
    if not theirs:
        return
    asked = session.probed(
        converge.look, [Member(one.host) for one in members if one.host.name in theirs], plans=False
    )
    session.listener.failures(outcomes([one for one in asked if one.facts is None]))
    rows = [
        (
            theirs[one.host.name],
            user.pid,
            user.command,
            user.name or user.container or "",
            " ".join(user.gpus),
        )
        for one in asked
        if one.facts is not None
        for user in one.facts.gpu_users
        if user.pod is None
    ]
    session.listener.rows("process", COLUMNS, rows)
