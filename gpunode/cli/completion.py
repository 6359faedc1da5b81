"""What the shell completes: the hosts and groups of the inventory that the command line names, links to
break, workloads."""

from __future__ import annotations

from pathlib import Path

import typer

VARIABLE, USUAL = "GPUNODE_INVENTORY", "inventory.yaml"


def hosts(context: typer.Context, incomplete: str) -> list[str]:
    """Hosts and groups that begin like the last name of a list; nothing where the inventory cannot be read."""
    import os

    from gpunode import inventory as inventories
    from gpunode.errors import GpunodeError

    # The option that is being completed has no value yet, at which the parser leaves the arguments as they are.
    named = next((word for word in context.args if not word.startswith("-")), None)
    path = named or os.environ.get(VARIABLE) or USUAL
    try:
        known = inventories.load(Path(path), keys=False).hosts
    except GpunodeError:
        return []
    before, comma, last = incomplete.rpartition(",")
    names = dict.fromkeys([*(name for host in known for name in host.groups), *(host.name for host in known)])
    return [f"{before}{comma}{name}" for name in names if name.startswith(last)]


def links(incomplete: str) -> list[str]:
    """What `gpunode demo` can break."""
    from gpunode.sim.faults import FAULTS

    return [name for name in FAULTS if name.startswith(incomplete)]


def samples(incomplete: str) -> list[str]:
    """What `gpunode run manifest` prints."""
    from gpunode.links.pod.samples import SAMPLES

    return [name for name in SAMPLES if name.startswith(incomplete)]
