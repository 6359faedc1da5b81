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
@options.visits_hosts
def vectoradd(
    *,
    common: options.InCluster,
    image: Annotated[
        str | None,
        typer.Option(help="Another image, such as NVIDIA's vectoradd sample; exit status 0 passes."),
    ] = None,
    logs: Annotated[bool, typer.Option("--logs", help="Show each pod's log.")] = False,
) -> None:
    """Add vectors on every free GPU of the hosts' nodes, one pod a GPU, and clean up.

    A kubeconfig is enough; without an inventory --limit and --exclude take nodes. With one, a host is asked for its own
    name over SSH when neither its name nor its address in the inventory is a node's.

    Example: gpunode run vectoradd --limit gpu-01 --logs
    """
    from gpunode.rollout import prove

    with session(common) as work:
        code = prove.sample(work, image=image, logs=logs)
    raise typer.Exit(code)


@app.command("nvidia-smi", short_help="Show a GPU as a pod sees it.")
@options.visits_hosts
def nvidia_smi(
    *,
    common: options.InCluster,
    image: Annotated[str | None, typer.Option(help="Another image than the device plugin's.")] = None,
) -> None:
    """Run nvidia-smi in a pod with one GPU, on one of the nodes, show what it writes, and delete the pod.

    A pod that cannot start says why in one sentence. A kubeconfig is enough; then --limit and --exclude take nodes.

    Example: gpunode run nvidia-smi --limit gpu-01
    """
    from gpunode.rollout import prove

    with session(common) as work:
        code = prove.shown_by_nvidia_smi(work, image=image)
    raise typer.Exit(code)
