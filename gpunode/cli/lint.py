"""`gpunode lint`: what an upgrade of Kubernetes would break."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import session
from gpunode.cli.visits import visits_hosts


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
    from gpunode.commands.lint import lint as linted
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
        code = linted(work, minor)
    raise typer.Exit(code)
