"""`gpunode verify`: the chain from the PCI bus to a finished CUDA pod."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import session
from gpunode.cli.visits import visits_hosts


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
