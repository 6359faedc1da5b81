"""`gpunode why`: from the symptom to its cause."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import session

app = typer.Typer(no_args_is_help=True)


@app.callback()
def why() -> None:
    """Say why a pod has no GPU, a node offers fewer than it has, or a GPU is not used: from the symptom, not the host.

    Example: gpunode why pod ml/train-7
    """


@app.command(short_help="Why it is Pending, or has no GPU.")
@visits_hosts
def pod(
    *,
    name: Annotated[str, typer.Argument(help="The pod.", metavar="NAMESPACE/NAME", show_default=False)],
    common: options.InCluster,
) -> int:
    """Say why a pod is Pending: the cause, who has the GPUs, and the fix with what it disturbs. Several causes come in the
    order of what to do first.

    A kubeconfig is enough. With an inventory, the hosts of nodes that offer too few GPUs are probed, too. Changes nothing. Exit
    code 1: a cause is named; 0: the pod is fine; 7: the cause is not known.

    Example: gpunode why pod ml/train-7 --kubeconfig kubeconfig
    """
    from gpunode.commands.why import why_pod

    with session(common) as work:
        return why_pod(work, name, hosts=not common.alone)
