"""`gpunode resume`: go on with the hosts that the last run of an inventory has not finished."""

from __future__ import annotations

import dataclasses
import time

import typer

from gpunode.cli import options
from gpunode.cli.session import loaded, session
from gpunode.cli.visits import visits_hosts


@visits_hosts
def resume(*, common: options.Deploys, yes: options.Yes = False) -> None:
    """Go on with the last `provision` of this inventory: with the hosts that it has not finished, as it was begun.

    What is left is planned again and shown. The record of runs is on this machine, below ~/.local/state/gpunode.

    Example: gpunode resume inventory.yaml --yes
    """
    from gpunode.commands import provision
    from gpunode.engine import record
    from gpunode.errors import UsageError
    from gpunode.wording import Advice, Command

    loaded(common.inventory, common.origin)  # a file that is not there is explained first
    run = record.last(common.inventory)
    if run is None:
        raise UsageError(
            f"no run of {common.inventory} is recorded on this machine",
            hint=Advice(f"Records are in {record.runs()}. `", Command("provision"), "` begins a run."),
        )
    if not run.not_done:
        typer.echo(f"Run {run.id} has finished all of its hosts: there is nothing to resume.", err=True)
        if more := record.earlier(common.inventory):
            typer.echo(str(more), err=True)
        return
    wish = provision.ProvisionOptions.of_recorded_run(run, yes=yes, now=time.time())
    limit = [*(common.limit or ()), *([] if common.limit else ["@not-done"])]
    with session(dataclasses.replace(common, limit=limit), accepted=yes) as work:
        code = provision.provision(work, wish)
    raise typer.Exit(code)
