"""`gpunode status`: the GPUs of a cluster at this moment."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import session
from gpunode.cli.visits import visits_hosts

CLEAR = "\033[H\033[J"  # the screen, from its upper left corner on


@visits_hosts
def status(
    *,
    common: options.InCluster,
    watch: Annotated[
        float | None,
        typer.Option(
            "--watch", "-w", help="Again every so many seconds, until Ctrl-C.", metavar="SECONDS", min=0.5
        ),
    ] = None,
) -> None:
    """Show every GPU of the cluster: memory, utilisation, temperature, health and since when, and the pods that have it.

    The device plugin answers, through the API server: a kubeconfig is enough. Nodes without the plugin are named. With an
    inventory, hosts on which processes outside Kubernetes use GPUs are asked over SSH for their names. Exit code 1
    when a GPU is unhealthy, or not known.

    Example: gpunode status --watch 2
    """
    from gpunode.rollout.overlook import overlook

    with session(common) as work:
        while True:
            code = overlook(work, selected=bool(common.limit or common.exclude), hosts=not common.alone)
            if watch is None:
                raise typer.Exit(code)
            time.sleep(watch)
            if not common.json and sys.stdout.isatty():
                typer.echo(CLEAR, nl=False)
