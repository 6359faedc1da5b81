"""Commands that change nothing: `gpunode verify`, `status` and `lint`."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import session


@visits_hosts
def verify(
    *,
    common: options.Common,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run vectoradd on the free GPUs.")] = True,
    html: options.Html = None,
) -> None:
    """Show for every host how far the chain holds: PCI, module, library, NVML, toolkit, runtime, kubelet, node,
    plugin, capacity, pod. The first broken link has its cause and its fix.

    Changes nothing, but starts a pod on every free GPU (where pods share GPUs, one more) and removes it again (not
    with --no-run). Where no pod can run, it starts a container on the host instead, of an image that is there.

    Example: gpunode verify inventory.yaml --limit gpu-03
    """
    from gpunode.commands import verify as verification

    with session(common, html) as work:
        code = verification.verify(work, run=run)
    raise typer.Exit(code)


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


@visits_hosts
def lint(
    *,
    target: Annotated[
        str,
        typer.Option(
            "--target",
            help="The version of Kubernetes to upgrade to; needed.",
            metavar="1.NN",
            show_default=False,
        ),
    ] = "",
    common: options.Common,
) -> None:
    """Show what an upgrade of Kubernetes would break on the hosts: feature gates and flags that are gone, cgroup v1,
    dockershim, containerd that is too old, configurations that are not read any more. Changes nothing.

    Example: gpunode lint --target 1.36 inventory.yaml
    """
    from gpunode.cluster.api.kinds import FLOOR
    from gpunode.commands.lint import lint as lint_hosts
    from gpunode.errors import UsageError
    from gpunode.links.kubelet import minors

    minor = minors.minor(target)
    if minor is None or minor < FLOOR:
        wrong = (
            f"--target {target}: not a version of Kubernetes that gpunode knows"
            if target
            else "--target is missing"
        )
        raise UsageError(wrong, hint=f"Name the version to upgrade to, from 1.{FLOOR} on: `--target 1.36`.")
    with session(common) as work:
        code = lint_hosts(work, minor)
    raise typer.Exit(code)
