"""`gpunode plugin`: the bundled device plugin in the cluster."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import typer

from gpunode.cli import options
from gpunode.cli.session import accepted, loaded, session

if TYPE_CHECKING:
    from gpunode.cluster.plugin import Row
    from gpunode.report import Report

app = typer.Typer(help="Deploy, inspect or remove the bundled device plugin.", no_args_is_help=True)


@app.command(short_help="Run the plugin on the nodes of the inventory's hosts.")
def deploy(
    inventory: options.InventoryPath = options.INVENTORY,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    yes: options.Yes = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """Label the nodes of the inventory's hosts, run the device plugin on them, and wait until each offers GPUs.

    Shows what it will change in the cluster and asks. Changes no host; one is asked for its own name over SSH when neither
    its name nor its address in the inventory is a node's.

    Example: gpunode plugin deploy inventory.yaml --limit gpu-01
    """
    from gpunode.cluster import expected, plugin
    from gpunode.errors import ClusterError
    from gpunode.rollout import bring_up, nodes, planned
    from gpunode.rollout.listener import tells

    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as work:
        image = nodes.image_of(work.inventory)  # or nothing is begun
        api = nodes.connect(work.inventory)
        namespace, tell = work.inventory.cluster.namespace, tells(work.report)
        found, missing = nodes.find_or_ask(api, work, tell)
        troubles: nodes.Troubles = missing
        names: dict[str, str] = {}
        refused = False
        if found:
            waiting = planned.show(api, work.inventory, work.hosts, found, work.report)
            hosts = [host for host in work.hosts if host.name in found.keys() - waiting.conflicts.keys()]
            if hosts and waiting.objects:
                accepted(work.report, f"Apply to the cluster ({api.access.context})?", yes=yes)
            conflicts = nodes.label(api, [(host, found[host.name]) for host in hosts])
            names = {host.name: found[host.name].name for host in hosts if host.name not in conflicts}
            troubles = {**missing, **conflicts}
            refused = bool(waiting.conflicts)  # of which `show` has told
        good = True
        if names:
            rollout = plugin.deploy(
                api,
                namespace,
                image,
                work.inventory.cluster.plugin_config,
                work.inventory.cluster.plugin_voice,
                seconds=bring_up.PLUGIN_SECONDS,
                tell=tell,
                only=list(names.values()),
            )
            good = rollout.good
            config = work.inventory.cluster.plugin_config
            labels = {
                node.name: {**node.labels, **nodes.wished(host)}
                for host in work.hosts
                if (node := found.get(host.name))
            }
            counts = {
                row.node: expected.memory(config, labels[row.node]) or None
                for row in rollout.rows
                if not row.trouble
            }
            late = bring_up.waited(api, namespace, counts, tell)
            for host, name in names.items():
                if why := late.get(name):
                    troubles[host] = ClusterError(why.words, hint=why.fix)
            work.report.rows(
                "object",
                ("action", "object"),
                [(one.action, one.what) for one in rollout.differences if one.action != "same"],
            )
            rows = plugin.status(api, namespace, config)
            _rows(work.report, [row for row in rows if row.node in names.values()])
        for host, error in troubles.items():
            work.report.problem(error, host)
    raise typer.Exit(1 if troubles or refused or not good else 0)


@app.command(short_help="Show the plugin on every GPU node, and what is wrong.")
def status(
    inventory: options.InventoryPath = options.INVENTORY,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """Show the plugin on every GPU node of the cluster: pod, restarts, GPUs offered, and what is wrong.

    With --limit or --exclude only on the nodes of those hosts. Exit code 1 when something is wrong, GPUs that a node
    does not offer included.

    Example: gpunode plugin status inventory.yaml --limit gpu-01
    """
    from gpunode.cluster import plugin
    from gpunode.rollout import nodes
    from gpunode.rollout.listener import tells

    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as work:
        api = nodes.connect(work.inventory)
        rows = plugin.status(api, work.inventory.cluster.namespace, work.inventory.cluster.plugin_config)
        missing: nodes.Troubles = {}
        if limit or exclude:
            found, missing = nodes.find_or_ask(api, work, tells(work.report))
            names = {node.name for node in found.values()}
            rows = tuple(row for row in rows if row.node in names)
        _rows(work.report, rows)
        for host, error in missing.items():
            work.report.problem(error, host)
        if not rows:
            work.report.note(
                "No node has the plugin; `gpunode provision` or `gpunode plugin deploy` puts it there."
            )
    raise typer.Exit(1 if not rows or missing or any(row.wrong for row in rows) else 0)


@app.command(short_help="Take the plugin out of the cluster.")
def remove(
    inventory: options.InventoryPath = options.INVENTORY,
    yes: options.Yes = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Take the plugin and everything gpunode made for it out of the cluster: of all nodes, since it is one DaemonSet.

    Shows what it will delete and asks. Labels of nodes stay.

    Example: gpunode plugin remove inventory.yaml
    """
    from gpunode import report
    from gpunode.cluster import plugin
    from gpunode.errors import Declined
    from gpunode.rollout import bring_up, nodes
    from gpunode.rollout.listener import tells

    read = loaded(inventory)
    out = report.make(json=json, quiet=quiet)
    api = nodes.connect(read)
    tell, stays = tells(out), list[str]()
    there = plugin.removable(api, read.cluster.namespace, tell=stays.append)
    for why in stays if not (yes and there) else ():  # else it is told when it is so
        tell(why)
    if not there:
        out.note("there is nothing to remove")
        return
    if not yes:
        out.rows("object", ("action", "object"), [("remove", title) for title in there])
        if not out.ask(f"Remove these from {api.access.context}? No node offers GPUs afterwards."):
            raise Declined(
                "nothing was removed", hint="Accept with `y`, or give --yes where nobody can answer."
            )
    removed = plugin.remove(api, read.cluster.namespace, seconds=bring_up.PLUGIN_SECONDS, tell=tell)
    out.rows("object", ("action", "object"), [("removed", title) for title in removed])


def _rows(out: Report, rows: Sequence[Row]) -> None:
    out.rows(
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
    for row in rows:
        if row.note:
            out.note(f"{row.node}: {row.note}")
