"""`gpunode share`: GPUs shared by memory, placed GPU by GPU; and `kubectl inspect gpunode`, a program of its own."""

import re
import sys
from pathlib import Path
from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import load_inventory, session, tell_origin

app = typer.Typer(
    help="""Let the scheduler place pods on single GPUs by their memory.

    Example: gpunode share enable inventory.yaml""",
    no_args_is_help=True,
)


@app.command(short_help="Deploy the scheduler extender, and let the scheduler ask it.")
@visits_hosts
def enable(*, common: options.Common, yes: options.Yes = False) -> int:
    """Run the scheduler extender in the cluster, let the device plugin follow it, and add it to the scheduler's configuration
    on the hosts of the control plane.

    Shows what it will change, in the cluster and then on each host, and asks. If a scheduler does not come back, its earlier
    configuration is restored. Needs `cluster.share` in the inventory; with `cluster.share.scheduler` a second scheduler runs in
    the cluster instead, and hosts of the control plane are not contacted.

    Example: gpunode share enable inventory.yaml
    """
    from gpunode.commands import share_enable as share

    with session(common, accepted=yes) as work:
        return share.enable(work, yes=yes)


@app.command(short_help="Undo enable: scheduler first, then the extender.")
@visits_hosts
def disable(*, common: options.Common, yes: options.Yes = False) -> int:
    """Remove the extender from the schedulers' configuration, restoring their files, and from the cluster; also a second
    scheduler.

    Pods that it placed keep their GPUs. Shows what it will change and asks.

    Example: gpunode share disable inventory.yaml
    """
    from gpunode.commands import share_enable as share

    with session(common, accepted=yes) as work:
        return share.disable(work, yes=yes)


Details = Annotated[bool, typer.Option("--details", "-d", help="Also show a row for each container.")]


@app.command(short_help="Show the pods of each GPU, with their shares.")
@visits_hosts
def inspect(*, details: Details = False, common: options.InCluster) -> int:
    """Show every GPU of the cluster with its pods, however it is shared: the scheduler's promises, and the kubelet's
    allocations as read from the inventory's hosts, else from the device plugin. With --limit only the GPUs of these hosts. A
    kubeconfig is enough: then the plugin alone is asked, and --limit and --exclude take nodes.

    Example: gpunode share inspect inventory.yaml -d
    """
    from gpunode.commands import share_inspect as shares

    with session(common) as work:
        return shares.inspect(work, details=details, selected=common.selects, hosts=not common.alone)


@app.command(short_help="Show pods on another GPU than promised, and repair their annotations.")
@visits_hosts
def fsck(
    *,
    repair: Annotated[
        bool, typer.Option("--repair", help="Write the real GPUs into the pods' annotations.")
    ] = False,
    common: options.Common,
    yes: options.Yes = False,
) -> int:
    """Compare the promises to pods with the kubelets' allocations on the inventory's hosts: pods without a note, on another GPU
    or without devices, edited annotations, GPUs promised twice.

    --repair asks, then writes the kubelets' allocations into the pods' annotations; running containers are not touched. Exit
    code 1 if a problem remains. With --limit only the nodes of these hosts count.

    Example: gpunode share fsck inventory.yaml --repair
    """
    from gpunode.commands import share_inspect as shares

    with session(common) as work:
        return shares.fsck(work, repair=repair, yes=yes, selected=common.selects)


@app.command(short_help="Show where pods would go.")
def simulate(
    invocation: typer.Context,
    inventory: options.InventoryPath = options.INVENTORY,
    memory: Annotated[
        str,
        typer.Option(
            "--memory", help="Units for each container: 4, or 8,4 for two containers.", metavar="UNITS"
        ),
    ] = "1",
    pods: Annotated[int, typer.Option("--pods", help="How many pods.", min=1, max=10_000, metavar="N")] = 1,
    json: options.Json = False,
    quiet: options.Quiet = False,
) -> None:
    """Simulate the placement of pods with GPU memory, and the memory left, on a copy of the cluster's state. Creates nothing.
    Nodes' other resources, taints and pods' affinities do not count.

    Example: gpunode share simulate inventory.yaml --memory 8 --pods 20
    """
    from gpunode import report
    from gpunode.commands import share_inspect as shares
    from gpunode.errors import UsageError

    amounts = memory.split(",")
    if not all(re.fullmatch("[0-9]{1,10}", word) and 0 < int(word) < 2**31 for word in amounts):
        raise UsageError(
            f"--memory {memory}: expected units as 4, or 8,4",
            hint="One number for each container, in units of the device plugin: if its unit is GiB, 8 means 8 GiB.",
        )
    units = [int(word) for word in amounts]
    known, reporter = load_inventory(inventory), report.make(json=json, quiet=quiet)
    tell_origin(inventory, options.origin(invocation), reporter)
    code = shares.simulate(known, reporter, units, pods)
    raise typer.Exit(code)


def main() -> None:
    """Run it. Expected failures become a message and an exit code."""
    from gpunode.errors import GpunodeError

    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command()(_inspect)
    try:
        alone()
    except GpunodeError as error:
        typer.echo(f"kubectl inspect gpunode: {error}", err=True)
        sys.exit(error.exit_code)


def _inspect(
    details: Details = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="The cluster's kubeconfig.", metavar="FILE")] = None,
    context: Annotated[str | None, typer.Option("--context", help="Of the kubeconfig.")] = None,
    json: options.Json = False,
) -> None:
    """Show every GPU of the cluster with its pods: what they were promised and, where the user may ask the device plugins, what
    they have."""
    from gpunode import report
    from gpunode.commands import share_inspect as shares
    from gpunode.engine.session import open_session
    from gpunode.model import Cluster, Inventory

    inventory = Inventory(
        "", (), Cluster(kubeconfig=str(kubeconfig) if kubeconfig else None, context=context)
    )
    with open_session(inventory, (), report.make(json=json, quiet=True), forks=1) as work:
        code = shares.inspect(work, details=details)
    raise typer.Exit(code)
