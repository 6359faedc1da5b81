"""The fleet as it is now: what the cluster answers, and the record of the last run, as one `Overview`."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from gpunode.cluster.api import Api
from gpunode.commands import status
from gpunode.engine import history, nodes, record
from gpunode.engine.member import Member
from gpunode.engine.overview import NOT_PROVISIONED, Overview, make_cell, sort_cells, sum_up_run
from gpunode.engine.record import Progress
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, GpunodeError, Problem
from gpunode.links.plugin.usage import NodeUsage, read_usage
from gpunode.model import Share

NO_PLUGIN = Problem("no-plugin", "gpunode's device plugin does not run there")


def follow(session: Session, *, selected: bool, recorded: bool) -> Callable[[], Overview]:
    """A function that returns the fleet as it is now. While the cluster does not answer, its figures are the last ones.

    `selected`: only the session's hosts, without the cluster's other GPU nodes. `recorded`: with the inventory's last run.
    """
    api: Api | None = None
    usages: Mapping[str, NodeUsage] = {}
    fleet = ""

    def look() -> Overview:
        nonlocal api, usages, fleet
        error = ""
        try:
            api = api or nodes.connect(session.inventory)
            usages, fleet = _ask(api, session, selected=selected)
        except ClusterError as lost:
            error = lost.message
        return _join(session, usages, Overview(fleet, error=error), recorded=recorded)

    return look


def _ask(api: Api, session: Session, *, selected: bool) -> tuple[dict[str, NodeUsage], str]:
    """The usage by host, in the inventory's order, then of other GPU nodes; and the sums as `status` has them."""
    cluster = session.inventory.cluster
    there, pods = api.find("Node")[0], api.find("Pod")[0]
    members = nodes.locate(api, [Member(host) for host in session.hosts], seconds=0, notify=lambda _: None)
    only = [member.node.name for member in members if member.node] if selected else None
    usages, back = status.leave_taken_back(
        api, session, read_usage(api, cluster.namespace, there, pods, only)
    )
    left = {usage.node: usage for usage in usages}
    cells: dict[str, NodeUsage] = {}
    for member in members:
        name = member.node.name if member.node else member.host.name
        if when := back.get(member.host.name):
            left[name] = NodeUsage(name, reason=Problem(NOT_PROVISIONED, when))
        cells[member.host.name] = left.pop(name, NodeUsage(name, reason=member.reason or NO_PLUGIN))
    parts = status.shares(usages, there, pods, (cluster.share or Share()).resource)
    return {**cells, **left}, status.sentence(status.totals(usages), parts, status.by_model(usages))


def _join(session: Session, usages: Mapping[str, NodeUsage], seen: Overview, *, recorded: bool) -> Overview:
    """What was seen, with the hosts as they are and as their last run has them."""
    run, hosts, path = None, dict[str, Progress](), Path(session.inventory.path)
    try:
        run = history.last_run(path, every=True) if recorded else None
        hosts |= run.hosts if run else {}
        if run and run.options.command and (before := history.last_run(path)):
            hosts = {**before.hosts, **hosts}
            run = before if history.is_running(before) else run
    except GpunodeError as error:  # of a damaged record
        seen = replace(seen, error=seen.error or error.message)
    running = run is not None and history.is_running(run)
    unknown = {host.name: NodeUsage(host.name, reason=Problem("not asked", "")) for host in session.hosts}
    cells = [
        make_cell(name, usage, hosts.get(name), running=running)
        for name, usage in (unknown | dict(usages)).items()
    ]
    paused = run is not None and record.pause_file(run.folder, run.id).exists()
    line = sum_up_run(run, running=running, paused=paused, now=time.time()) if run else None
    return replace(seen, cells=sort_cells(cells), run=line, command=run.command if run else "")
