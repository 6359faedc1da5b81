"""`gpunode run`: sample workloads on the GPUs, cleaned up afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gpunode.cli import options

app = typer.Typer(help="Run sample workloads on the nodes' GPUs.", no_args_is_help=True)


@app.callback()
def workloads() -> None:
    """Run sample workloads on the nodes' GPUs."""


@app.command(short_help="Add vectors on every free GPU, one pod a GPU.")
def vectoradd(
    inventory: options.InventoryPath = Path("inventory.yaml"),
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    image: Annotated[
        str | None,
        typer.Option(help="Another image, such as NVIDIA's vectoradd sample; exit status 0 passes."),
    ] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Show each pod's log.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Add vectors on every free GPU of the hosts' nodes, one pod a GPU, and clean up.

    Example: gpunode run vectoradd inventory.yaml --limit gpu-01 --logs
    """
    from gpunode import inventory as inventories
    from gpunode import report
    from gpunode.cli import cluster

    loaded = inventories.load(inventory)
    hosts = inventories.select(loaded, limit or (), exclude or ())
    out = report.make(json=json, quiet=quiet)
    api = cluster.connect(loaded)
    found, missing = cluster.find(api, hosts, {}, seconds=0, tell=out.note)
    for why in missing.values():
        out.note(f"✗ {why}")
    results = cluster.vectoradd(api, loaded, {node.name: () for node in found.values()}, out, image=image)
    cluster.show(results, out)
    if logs:
        for result in results:
            for one in result.results:
                out.rows("log", ("node", "pod", "log"), [(one.node, one.pod, line) for line in one.log])
    raise typer.Exit(0 if not missing and all(result.passed for result in results) else 1)
