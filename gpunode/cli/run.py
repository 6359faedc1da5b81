"""`gpunode run`: sample workloads on the GPUs, cleaned up afterwards."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import session

app = typer.Typer(help="Run sample workloads on the nodes' GPUs.", no_args_is_help=True)


@app.callback()
def workloads() -> None:
    """Run sample workloads on the nodes' GPUs."""


@app.command(short_help="Add vectors on every free GPU, one pod a GPU.")
def vectoradd(
    inventory: options.InventoryPath = options.INVENTORY,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    image: Annotated[
        str | None,
        typer.Option(help="Another image, such as NVIDIA's vectoradd sample; exit status 0 passes."),
    ] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Show each pod's log.")] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """Add vectors on every free GPU of the hosts' nodes, one pod a GPU, and clean up.

    A host is asked for its own name over SSH when neither its name nor its address in the inventory is a node's.

    Example: gpunode run vectoradd inventory.yaml --limit gpu-01 --logs
    """
    from gpunode.cluster.results import Target
    from gpunode.rollout import nodes, prove
    from gpunode.rollout.listener import tells

    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as work:
        api, out = nodes.connect(work.inventory), work.report
        found, missing = nodes.find_or_ask(api, work, tells(out))
        for host, error in missing.items():
            out.problem(error, host)
        results = prove.vectoradd(
            api, work.inventory, [Target(node.name) for node in found.values()], tells(out), image=image
        )
        prove.show(results, out)
        if logs:
            for result in results:
                for one in result.results:
                    out.rows("log", ("node", "pod", "log"), [(one.node, one.pod, line) for line in one.log])
    raise typer.Exit(0 if not missing and all(result.passed for result in results) else 1)
