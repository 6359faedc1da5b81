"""`gpunode abort`: end what an earlier `provision` still does on hosts."""

from __future__ import annotations

import typer

from gpunode.cli import options
from gpunode.cli.session import session
from gpunode.cli.visits import visits_hosts


@visits_hosts
def abort(*, common: options.Common) -> None:
    """End the apply that is under way on hosts, such as one whose package manager hangs.

    Files that a service reads are put back unless its restart was already found to be good. Packages stay as they are:
    the next provision finishes what dpkg left half done. A host on which nothing is under way is left alone.

    Example: gpunode abort inventory.yaml --limit gpu-07
    """
    from gpunode.commands import abort as rollout

    with session(common) as work:
        code = rollout.abort(work)
    raise typer.Exit(code)
