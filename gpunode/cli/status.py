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
            "--watch",
            "-w",
            help="Again every so many seconds, until Ctrl-C.",
            metavar="SECONDS",
            min=0.5,
            max=86400,
        ),
    ] = None,
) -> None:
    """Show every GPU of the cluster: memory, utilisation, temperature, health and since when, and the pods that have it.

    The device plugin answers, through the API server: a kubeconfig is enough. Nodes without the plugin are named. With an
    inventory, hosts on which processes outside Kubernetes use GPUs are asked over SSH for their names. Exit code 1
    when a GPU is unhealthy, or not known.

    Example: gpunode status --watch 2
    """
    from gpunode.commands.status import overlook
    from gpunode.model import Event

    selected, hosts = bool(common.limit or common.exclude), not common.alone
    with session(common) as work:
        if sys.stderr.isatty() and not common.json:
            work.listener.event(Event("stage", None, "asking the cluster and its device plugins"))
        if watch is None:
            raise typer.Exit(overlook(work, selected=selected, hosts=hosts))
        clear = CLEAR if not common.json and sys.stdout.isatty() else ""
        try:
            overlook(work, selected=selected, hosts=hosts)
            while True:
                time.sleep(watch)
                overlook(work, selected=selected, hosts=hosts, fresh=lambda: typer.echo(clear, nl=False))
        except KeyboardInterrupt as end:  # the way out of it, so nothing was interrupted
            typer.echo("", nl=bool(clear))  # behind the terminal's ^C
            raise typer.Exit from end
