"""`gpunode share`: GPUs shared by memory, placed GPU by GPU."""

from __future__ import annotations

import typer

from gpunode.cli import options
from gpunode.cli.session import session

app = typer.Typer(help="Let the scheduler place pods on single GPUs by their memory.", no_args_is_help=True)


@app.command(short_help="Deploy the scheduler extender, and let the scheduler ask it.")
@options.visits_hosts
def enable(*, common: options.Common, yes: options.Yes = False) -> None:
    """Run the scheduler extender in the cluster, let the device plugin follow it, and add it to the scheduler's
    configuration on the hosts of the control plane.

    Shows what it will change, in the cluster and then on each host, and asks. A scheduler that does not come back gets
    its earlier configuration. Needs `cluster.share` in the inventory.

    Example: gpunode share enable inventory.yaml
    """
    from gpunode.rollout import share

    with session(common) as work:
        code = share.enable(work, yes=yes)
    raise typer.Exit(code)


@app.command(short_help="Take it back: scheduler first, then the extender.")
@options.visits_hosts
def disable(*, common: options.Common, yes: options.Yes = False) -> None:
    """Take the extender out of the schedulers' configuration, whose files are then as they were, and out of the cluster.

    Pods that it placed keep their GPUs. Shows what it will change and asks.

    Example: gpunode share disable inventory.yaml
    """
    from gpunode.rollout import share

    with session(common) as work:
        code = share.disable(work, yes=yes)
    raise typer.Exit(code)
