"""The bundled device plugin on the nodes of a session's hosts: deployed, inspected, removed."""

import time
from collections.abc import Sequence

from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object, title
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects import apply
from gpunode.engine import cluster_diff, nodes, proof
from gpunode.engine.member import Member
from gpunode.engine.reporter import Reporter, confirm, progress, report_reason
from gpunode.engine.session import Session
from gpunode.errors import ApiConnectionLost, ClusterError
from gpunode.links import plugin
from gpunode.links.capacity import overview
from gpunode.links.capacity.link import wait_allocatable
from gpunode.links.capacity.overview import Row
from gpunode.links.plugin import Scope, expected, other_owners
from gpunode.links.plugin.other_owners import dra_owners
from gpunode.model import Inventory
from gpunode.wording import advise, few, lines

NAMED = 5  # nodes that a note names


def deploy(session: Session, *, yes: bool, replace: str = "") -> int:
    """Label the nodes, deploy the plugin, and wait until each node offers GPUs; the exit code. `replace`: NAMESPACE/NAME of
    another plugin's DaemonSet, which is deleted first."""
    reporter, inventory = session.reporter, session.inventory
    spec = nodes.spec_of(inventory)  # or nothing is begun
    api, notify = nodes.connect(inventory), progress(reporter)
    members = nodes.identify(api, session, notify)
    missing = [member for member in members if member.node is None]
    placed = [member for member in members if member.node is not None]
    going: tuple[Member, ...] = ()
    if placed:
        names = [member.node.name for member in placed if member.node]
        other = other_owners.find_replaceable(api, replace, names) if replace else None
        waiting = cluster_diff.show(api, inventory, placed, reporter, other=other)
        going = tuple(member for member in waiting.members if member.active)
        if other and going:
            _check_replacement(other, waiting, names)
        gone = [other] if other else []
        deletion = (*rights.of_deletion(gone), *rights.of_wait(gone))
        rights.demand(api, (*rights.of_rollout(spec.namespace), *deletion))
        if going and waiting.objects:
            confirm(reporter, f"Apply to the cluster ({api.access.context})?", yes=yes)
        going = nodes.apply_labels(api, going)
        if other and all(member.active for member in going) and len(going) == len(placed):
            apply.delete(api, other, seconds=proof.PLUGIN_SECONDS, notify=notify)
        elif other:
            reporter.note(f"{title(other)} stays: it also serves nodes that do not get this plugin.")
    refused = len(going) < len(placed)  # `show` has reported them
    problems = [*missing, *(member for member in going if member.reason)]
    going = tuple(member for member in going if member.active)
    good = True
    if going:
        names = [member.node.name for member in going if member.node]
        scope = Scope(only=names)
        rollout = plugin.deploy(api, spec, scope, seconds=proof.PLUGIN_SECONDS, notify=notify)
        good = rollout.good
        running = [
            member for member in going if member.node and rollout.states[member.node.name].reason is None
        ]
        problems += _without_gpus(api, inventory, running, notify)
        proof.report_made(reporter, rollout.differences)
        rows = overview.status(api, spec.namespace, spec.config)
        show([row for row in rows if row.node in names], reporter)
    for member in problems:
        report_reason(reporter, member.host.name, member.reason)
    return 1 if problems or refused or not good else 0


def _without_gpus(
    api: Api, inventory: Inventory, members: Sequence[Member], notify: OnProgress
) -> list[Member]:
    """Members whose nodes offer no GPU in time, with the reason."""
    config, end = inventory.cluster.plugin_config, time.monotonic() + proof.PLUGIN_SECONDS
    late = []
    for member in members:
        if member.node is None:
            continue
        wanted, left = expected.memory(config, member.labels) or None, max(0.0, end - time.monotonic())
        namespace = inventory.cluster.namespace
        try:
            wait_allocatable(
                api,
                member.node.name,
                wanted,
                namespace=namespace,
                seconds=left,
                notify=notify,
                waited=proof.PLUGIN_SECONDS - left,
            )
        except ApiConnectionLost:
            raise
        except ClusterError as error:
            late.append(member.exclude(error.problem))
    return late


def inspect(session: Session, *, selected: bool) -> int:
    """Report the plugin on every GPU node of the cluster, or of the session's hosts (`selected`); the exit code."""
    reporter, cluster = session.reporter, session.inventory.cluster
    api = nodes.connect(session.inventory)
    rows = overview.status(api, cluster.namespace, cluster.plugin_config, dra_owners(api))
    missing: list[Member] = []
    if selected:
        members = nodes.identify(api, session, progress(reporter))
        missing = [member for member in members if member.node is None]
        names = {member.node.name for member in members if member.node}
        rows = tuple(row for row in rows if row.node in names)
    show(rows, reporter)
    for member in missing:
        report_reason(reporter, member.host.name, member.reason)
    if not rows:
        reporter.note(
            advise("No node has the plugin; `gpunode provision` or `gpunode plugin deploy` puts it there.")
        )
    return 1 if not rows or missing or any(row.wrong for row in rows) else 0


def remove(inventory: Inventory, reporter: Reporter, *, yes: bool) -> None:
    """Remove the plugin and all its objects from the cluster."""
    api, namespace = nodes.connect(inventory), inventory.cluster.namespace
    notify, stays = progress(reporter), list[str]()
    there = plugin.find_removable(api, namespace, notify=stays.append)
    for why in stays if not (yes and there) else ():  # else it is reported when it happens
        notify(why)
    if not there:
        reporter.note("there is nothing to remove")
        return
    if not yes:
        reporter.rows("object", ("action", "object"), [("remove", title) for title in there])
    question = f"Remove these from {api.access.context}? No node offers GPUs afterwards."
    confirm(reporter, question, yes=yes)
    removed = plugin.remove(api, namespace, seconds=proof.PLUGIN_SECONDS, notify=notify)
    reporter.rows("object", ("action", "object"), [("removed", title) for title in removed])


def _check_replacement(other: Object, waiting: cluster_diff.ClusterPlan, names: Sequence[str]) -> None:
    """Raises ClusterError if this plugin is known not to start in the other's place."""
    without = [name for name in waiting.imageless if name in names]
    refused = [
        what for what in waiting.obstructed if not what.endswith(f"/{cluster_diff.PROOF}")
    ]  # it runs none
    if refused:
        raise ClusterError(
            f"{title(other)} stays: {refused[0]} would not be admitted in its place; nothing was changed",
            hint="Follow the advice above for these pods, then repeat the command.",
        )
    if without:
        raise ClusterError(
            f"{title(other)} stays: the kubelet reports no image of this plugin on {few(without, NAMED)}; "
            "nothing was changed",
            hint=advise("`gpunode provision` of these hosts loads it; then give the same command again."),
        )


def show(rows: Sequence[Row], reporter: Reporter) -> None:
    """Report a row per node, its fixes and its notes."""
    reporter.rows(
        "plugin",
        ("node", "pod", "phase", "restarts", "resource", "capacity", "allocatable", "trouble", "log"),
        [
            (
                row.node,
                row.pod,
                row.phase,
                row.restarts,
                row.resource,
                row.capacity,
                row.allocatable,
                row.wrong,
                row.last_line if row.wrong else "",  # else it is no news
            )
            for row in rows
        ],
    )
    fixes: dict[str, list[str]] = {}
    for row in rows:
        if row.reason and row.reason.fix:
            fixes.setdefault(row.reason.fix, []).append(row.node)
    for fix, names in fixes.items():
        reporter.note(lines((f"{few(names, NAMED)}:", fix), " "))
    for row in rows:
        if row.note:
            reporter.note(f"{row.node}: {row.note}")
