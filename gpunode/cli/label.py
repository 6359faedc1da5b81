"""`gpunode label`: labels from what the GPUs are."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import session


@options.visits_hosts
def label(
    *,
    accelerator: Annotated[
        bool, typer.Option("--accelerator", help="accelerator=nvidia-tesla-p100 and the like.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the label off again.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a value that another field manager set.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    common: options.Common,
) -> None:
    """Label nodes with the model of their GPUs, read from the hosts' PCI bus; no driver is needed for it.

    Example: gpunode label --accelerator inventory.yaml --dry-run
    """
    from gpunode.errors import UsageError
    from gpunode.rollout.accelerator import How
    from gpunode.rollout.accelerator import label as labelled

    if not accelerator:
        raise UsageError(
            "no label is chosen", hint="Choose --accelerator: `gpunode label --accelerator inventory.yaml`."
        )
    with session(common) as work:
        code = labelled(work, How(remove, overwrite, dry_run))
    raise typer.Exit(code)
