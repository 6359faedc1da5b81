"""`gpunode verify`: the chain from the PCI bus to a finished CUDA pod."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import session


def verify(
    inventory: options.InventoryPath = options.INVENTORY,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run vectoradd on the free GPUs.")] = True,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """Show for every host how far the chain holds: PCI, module, library, NVML, toolkit, runtime, kubelet, node,
    plugin, capacity, pod. The first broken link has its cause and its fix.

    Changes nothing, but starts a pod on every free GPU (where pods share GPUs, one more) and removes it again (not
    with --no-run).

    Example: gpunode verify inventory.yaml --limit gpu-03
    """
    from gpunode import converge
    from gpunode.rollout.chains import chains
    from gpunode.verify import coverage

    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as work:
        outcomes = work.each(converge.look)
        found = chains(work.inventory, work.hosts, outcomes, work.report, run=run)
        for host, links in found.items():
            work.report.links(host, links)
        broken = list(coverage.broken(found))
        if work.inventory.cluster.plugin is None:
            work.report.note(
                "The inventory names no `cluster.plugin`, so nothing in the cluster was checked. Add it to check the whole chain."
            )
        work.report.total(coverage.sentence(found), coverage.numbers(found))
    unreachable = [outcome.host for outcome in outcomes if outcome.status == "unreachable"]
    raise typer.Exit(0 if not broken else 3 if broken == unreachable else 1)
