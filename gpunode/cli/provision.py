"""`gpunode provision`: plan, ask, apply, reboot where needed, deploy the device plugin, verify."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import session
from gpunode.cli.visits import visits_hosts


@visits_hosts
def provision(
    *,
    common: options.Deploys,
    yes: options.Yes = False,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run vectoradd on the GPUs at the end.")] = True,
    batch: Annotated[
        str | None,
        typer.Option(
            help="Finish so many hosts, or such a percentage, before the next begin.", metavar="N|N%"
        ),
    ] = None,
    canary: Annotated[int, typer.Option(help="Finish so many hosts before all others.", min=0)] = 0,
    max_fail: Annotated[
        int | None,
        typer.Option(
            help="Begin no further batch when more hosts than this have ended badly, those included that the plan shows refused or unreachable. Without it one that fails during the run is enough, and those of the plan do not count.",
            min=0,
            show_default=False,
        ),
    ] = None,
    fingerprint: options.Fingerprints = None,
    html: options.Html = None,
) -> None:
    """Make every host a verified GPU node: plan, ask, apply, deploy the device plugin, prove that it works.

    Example: gpunode provision inventory.yaml --limit p100 --yes
    """
    from gpunode.commands import provision as rollout
    from gpunode.engine.batches import Size

    size = Size.parse(batch) if batch is not None else None
    wish = rollout.ProvisionOptions(
        yes=yes, run=run, size=size, canary=canary, max_fail=max_fail, fingerprints=tuple(fingerprint or ())
    )
    with session(common, html, accepted=yes) as work:
        code = rollout.provision(work, wish)
    raise typer.Exit(code)
