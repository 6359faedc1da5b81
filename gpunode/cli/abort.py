"""`gpunode abort`: end what an earlier `provision` still does on hosts."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import typer

from gpunode.cli import options
from gpunode.cli.session import exit_code, session

if TYPE_CHECKING:
    from gpunode.converge import Ended, Visit
    from gpunode.model import Event, Outcome


def abort(
    inventory: options.InventoryPath = options.INVENTORY,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """End the apply that is under way on hosts, such as one whose package manager hangs.

    Files that a service reads are put back unless its restart was already found to be good. Packages stay as they are:
    the next provision finishes what dpkg left half done. A host on which nothing is under way is left alone.

    Example: gpunode abort inventory.yaml --limit gpu-07
    """
    from gpunode import converge, model

    ended: dict[str, Ended] = {}

    def story(visit: Visit, tell: Callable[[Event], None]) -> Outcome:
        name = visit.host.name
        ended[name] = converge.abort(visit, tell)
        return model.Outcome(name, "changed" if ended[name] != converge.Ended() else "right")

    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as work:
        outcomes = work.each(story)
        work.report.rows(
            "abort",
            ("host", "ended", "by", "since", "results"),
            [
                (name, one.doing or "nothing was under way", one.by, one.since, "; ".join(one.results))
                for name, one in ((host.name, ended[host.name]) for host in work.hosts if host.name in ended)
            ],
        )
        work.report.troubles(outcomes)
    raise typer.Exit(exit_code(outcomes))
