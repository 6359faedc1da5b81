"""`gpunode plan`: what would change and why."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import session
from gpunode.cli.visits import visits_hosts


@visits_hosts
def plan(
    *,
    common: options.Deploys,
    diff: Annotated[
        bool | None,
        typer.Option(
            "--diff/--no-diff",
            help="Show what changes inside files and cluster objects; --diff: new and removed objects whole, too.",
            show_default=False,
        ),
    ] = None,
    exit_with: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit with 5 when changes wait, on hosts or in the cluster; with 6 when, besides, not all could be checked.",
        ),
    ] = False,
    why: Annotated[
        bool,
        typer.Option(
            "--why", help="Show the choices that each plan rests on: repository, branch, modules, runtime …"
        ),
    ] = False,
    html: options.Html = None,
) -> None:
    """Show what provision would change on every host and in the cluster, and why. Changes nothing.

    Example: gpunode plan inventory.yaml --limit p100 --exit-code
    """
    from gpunode.commands.plan import drift

    with session(common, html) as work:
        code = drift(work, diff=diff, waits=exit_with, why=why)
    raise typer.Exit(code)
