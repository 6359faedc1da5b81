"""`gpunode history` and `gpunode show`: the recorded runs of this operator."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options


def complete_runs(incomplete: str) -> list[str]:
    """Ids of recorded runs, and `last`."""
    from gpunode.engine import record

    names = [record.LAST, *sorted(path.stem for path in record.default_folder().glob("*.jsonl"))]
    return [name for name in names if name.startswith(incomplete)]


def history(
    count: Annotated[int, typer.Option("--count", "-n", help="So many of the newest.", min=1)] = 20,
    json: options.Json = False,
) -> None:
    """List the runs of `provision` and `resume` that are recorded on this machine, the newest first: when, who, inventory, how
    its hosts ended, how long it took.

    Example: gpunode history --count 50
    """
    from gpunode import report
    from gpunode.commands.history import list_runs

    raise typer.Exit(list_runs(report.make(json=json, quiet=False), count))


def show(
    run: Annotated[
        str,
        typer.Argument(
            help="Its id, the beginning of it, or `last`.",
            metavar="RUN",
            autocompletion=complete_runs,
            show_default=False,
        ),
    ],
    diff: Annotated[
        bool | None,
        typer.Option(
            "--diff/--no-diff",
            help="--diff: show what changed inside files and cluster objects. --no-diff: nothing of it, nor with --json.",
            show_default=False,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show a recorded run: who, the question and its answer, each host's end and changes with their reasons, which of them were made,
    and where the time went.

    Reads the record on this machine alone. Secrets are not in it.

    Example: gpunode show last --diff
    """
    from gpunode import report
    from gpunode.commands.history import show_run

    raise typer.Exit(show_run(report.make(json=json, quiet=False), run, diff=json if diff is None else diff))
