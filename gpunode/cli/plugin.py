"""`gpunode plugin`: the bundled device plugin in the cluster."""

from __future__ import annotations

from pathlib import Path

import typer

from gpunode.cli import options

app = typer.Typer(help="Deploy, inspect or remove the bundled device plugin.", no_args_is_help=True)


@app.command(short_help="Run the plugin on the nodes of the inventory's hosts.")
def deploy(
    inventory: options.InventoryPath = Path("inventory.yaml"),
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Label the nodes of the inventory's hosts and run the device plugin on them; wait until it serves.

    Touches no host. Example: gpunode plugin deploy inventory.yaml
    """
    from gpunode import inventory as inventories
    from gpunode import report
    from gpunode.cli import cluster
    from gpunode.cluster import plugin

    loaded = inventories.load(inventory)
    hosts = inventories.select(loaded, limit or (), exclude or ())
    out = report.make(json=json, quiet=quiet)
    api = cluster.connect(loaded)
    found, missing = cluster.find(api, hosts, {}, seconds=0, tell=out.note)
    _, conflicts = cluster.label(api, hosts, found)
    for why in (*missing.values(), *conflicts.values()):
        out.note(f"✗ {why}")
    rollout = plugin.deploy(
        api,
        loaded.cluster.namespace,
        cluster.image_of(loaded),
        seconds=cluster.PLUGIN_SECONDS,
        tell=cluster.tells(out),
        only=[node.name for host, node in found.items() if host not in conflicts],
    )
    out.rows(
        "object",
        ("action", "object"),
        [(one.action, one.what) for one in rollout.differences if one.action != "same"],
    )
    _rows(out, rollout.rows)
    raise typer.Exit(0 if rollout.good and not missing and not conflicts else 1)


@app.command(short_help="Show the plugin on every GPU node, and what is wrong.")
def status(
    inventory: options.InventoryPath = Path("inventory.yaml"),
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Show the plugin on every GPU node: pod, restarts, GPUs offered, and what is wrong.

    Example: gpunode plugin status inventory.yaml
    """
    from gpunode import inventory as inventories
    from gpunode import report
    from gpunode.cli import cluster
    from gpunode.cluster import plugin

    loaded = inventories.load(inventory)
    out = report.make(json=json, quiet=quiet)
    rows = plugin.status(cluster.connect(loaded), loaded.cluster.namespace)
    _rows(out, rows)
    if not rows:
        out.note("No node has the plugin; `gpunode provision` or `gpunode plugin deploy` puts it there.")
    raise typer.Exit(1 if not rows or any(row.trouble for row in rows) else 0)


@app.command(short_help="Take the plugin out of the cluster.")
def remove(
    inventory: options.InventoryPath = Path("inventory.yaml"),
    yes: options.Yes = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Take the plugin and everything gpunode made for it out of the cluster. Labels of nodes stay.

    Example: gpunode plugin remove inventory.yaml --yes
    """
    from gpunode import inventory as inventories
    from gpunode import report
    from gpunode.cli import cluster
    from gpunode.cluster import plugin
    from gpunode.errors import Declined

    loaded = inventories.load(inventory)
    out = report.make(json=json, quiet=quiet)
    api = cluster.connect(loaded)
    if not yes and not out.ask(
        f"Remove the device plugin from {api.access.context}? No node offers GPUs afterwards."
    ):
        raise Declined("nothing was removed", hint="Accept with `y`, or give --yes where nobody can answer.")
    removed = plugin.remove(
        api, loaded.cluster.namespace, seconds=cluster.PLUGIN_SECONDS, tell=cluster.tells(out)
    )
    out.rows("object", ("action", "object"), [("removed", title) for title in removed])
    if not removed:
        out.note("there was nothing to remove")


def _rows(out, rows) -> None:  # type: ignore[no-untyped-def]
    out.rows(
        "plugin",
        ("node", "pod", "phase", "restarts", "capacity", "allocatable", "trouble", "log"),
        [
            (
                row.node,
                row.pod,
                row.phase,
                row.restarts,
                row.capacity,
                row.allocatable,
                row.trouble,
                row.last_line,
            )
            for row in rows
        ],
    )
