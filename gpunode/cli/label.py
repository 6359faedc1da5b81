"""`gpunode label`: labels from what the GPUs are, and resources counted by hand."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import loaded, session
from gpunode.cli.visits import visits_hosts


@visits_hosts
def label(
    *,
    accelerator: Annotated[
        bool, typer.Option("--accelerator", help="accelerator=nvidia-tesla-p100 and the like.")
    ] = False,
    resource: Annotated[
        list[str] | None,
        typer.Option(
            "--resource",
            help="Count an extended resource by hand; with --remove its name.",
            metavar="NAME=COUNT",
        ),
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take it off again.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a value that another field manager set.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    common: options.InCluster,
) -> None:
    """Label nodes with the model of their GPUs, read from the hosts' PCI bus; no driver is needed for it.

    With --resource instead: count an extended resource in the nodes' status, for devices that no device plugin offers. The
    scheduler counts it; no container gets a device by it, and a kubelet that restarts sets it to 0. For this a kubeconfig is
    enough; then --limit and --exclude take GPU nodes.

    Example: gpunode label --accelerator inventory.yaml --dry-run
    """
    from gpunode.commands import label as labels
    from gpunode.errors import UsageError

    if accelerator and resource:
        raise UsageError("--accelerator and --resource are two things", hint="Give one of them.")
    if resource:
        counts = labels.parse_counts(resource, remove=remove, overwrite=overwrite, dry_run=dry_run)
        with session(common) as work:
            code = labels.count_resources(work, counts)
        raise typer.Exit(code)
    if not accelerator:
        raise UsageError(
            "no label is chosen",
            hint="Choose --accelerator: `gpunode label --accelerator inventory.yaml`; or count a resource: `gpunode label --resource NAME=COUNT`. Other labels are written by `labels:` in the "
            "inventory, or `kubectl label node`.",
        )
    if common.alone:
        loaded(
            common.inventory, common.origin
        )  # the models come from hosts, over SSH: explained with an example
    with session(common) as work:
        code = labels.label_accelerator(work, labels.LabelOptions(remove, overwrite, dry_run))
    raise typer.Exit(code)
