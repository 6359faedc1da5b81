"""`gpunode label`: labels from what the GPUs are."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import exit_code, session


def label(
    inventory: options.InventoryPath = options.INVENTORY,
    accelerator: Annotated[
        bool, typer.Option("--accelerator", help="accelerator=nvidia-tesla-p100 and the like.")
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Take the label off again.")] = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a value somebody else set.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show it, change nothing.")] = False,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """Label nodes with the model of their GPUs, read from the hosts' PCI bus; no driver is needed for it.

    Example: gpunode label --accelerator inventory.yaml --dry-run
    """
    from gpunode import converge
    from gpunode.cluster import labels, nodes
    from gpunode.compat import gpus
    from gpunode.errors import ClusterError, UsageError
    from gpunode.rollout import nodes as placed

    if not accelerator:
        raise UsageError(
            "no label is chosen", hint="Choose --accelerator: `gpunode label --accelerator inventory.yaml`."
        )
    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as work:
        api = placed.connect(work.inventory)
        outcomes = work.each(converge.look)
        work.report.troubles([one for one in outcomes if one.facts is None])
        seen = {outcome.host: outcome.facts for outcome in outcomes if outcome.facts is not None}
        hosts = [host for host in work.hosts if host.name in seen]
        found, missing = placed.find(api, hosts, seen, seconds=0, tell=work.report.note)
        told = {outcome.host: outcome for outcome in outcomes}
        rows = []
        refused = False
        for host in hosts:
            if host.name not in found:
                work.report.problem(placed.no_node(told[host.name], missing[host.name]), host.name)
                continue
            node = found[host.name]
            wish = {} if remove else labels.accelerator(gpus(seen[host.name].pci))
            try:
                changes = nodes.label(
                    api, node, wish, writer=nodes.ACCELERATOR, overwrite=overwrite, dry_run=dry_run
                )
            except ClusterError as error:  # the other nodes get theirs, and what was done is shown
                work.report.problem(error, host.name)
                refused = True
                continue
            if wish and (others := labels.others(gpus(seen[host.name].pci))):
                work.report.note(
                    f"{node.name} also has {', '.join(others)}; a node has one accelerator label"
                )
            value = wish.get(nodes.ACCELERATOR_LABEL, "")
            before, after = changes.get(nodes.ACCELERATOR_LABEL, (value or None, value or None))
            what = "same" if before == after else "would change" if dry_run else "changed"
            rows.append((node.name, before or "", after or "", what))
        work.report.rows("label", ("node", "before", "accelerator", "result"), rows)
    bad = [one for one in outcomes if one.facts is None]
    raise typer.Exit(exit_code(bad) or (1 if missing or refused else 0))
