"""`kubectl inspect gpunode`, a program of its own: what `gpunode share inspect` shows, by the kubeconfig alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from gpunode.cli import options, share, slips


def main() -> None:
    """Run it. Expected failures become a message and an exit code."""
    from gpunode.errors import GpunodeError

    alone = typer.Typer(pretty_exceptions_enable=False, add_completion=False)
    alone.command(cls=slips.Command)(_inspect)
    try:
        alone()
    except GpunodeError as error:
        typer.echo(f"kubectl inspect gpunode: {error}", err=True)
        sys.exit(error.exit_code)


def _inspect(
    details: share.Details = False,
    kubeconfig: Annotated[Path | None, typer.Option(help="The cluster's kubeconfig.", metavar="FILE")] = None,
    context: Annotated[str | None, typer.Option("--context", help="Of the kubeconfig.")] = None,
    json: options.Json = False,
) -> None:
    """Show every GPU of the cluster with its pods: what they were promised and, where the user may ask the device plugins, what
    they have."""
    from gpunode import report
    from gpunode.commands import share_inspect as shares
    from gpunode.engine.session import opened
    from gpunode.model import Cluster, Inventory

    inventory = Inventory(
        "", (), Cluster(kubeconfig=str(kubeconfig) if kubeconfig else None, context=context)
    )
    with opened(inventory, (), report.make(json=json, quiet=True), forks=1) as work:
        code = shares.inspect(work, details=details)
    raise typer.Exit(code)
