"""`gpunode help`: the documents' pages, which the package brings."""

from __future__ import annotations

from typing import Annotated

import typer


def complete_topics(incomplete: str) -> list[str]:
    """The pages that `gpunode help` shows."""
    from gpunode.wording import pages

    return [name for name in pages() if name.startswith(incomplete)]


def show(
    context: typer.Context,
    topic: Annotated[
        list[str] | None,
        typer.Argument(
            help="A page, a section of one (`safety#rights`), or a command; without one, the list of pages.",
            metavar="TOPIC",
            show_default=False,
            autocompletion=complete_topics,
        ),
    ] = None,
) -> None:
    """Show a page of this version's documents, or a command's help. Needs no network.

    Example: gpunode help inventory
    """
    from gpunode import report, wording
    from gpunode.errors import UsageError

    name = " ".join(topic or ["index"])
    if text := wording.read(name):
        report.document(text)
        return
    at = context.find_root()
    for word in topic or ():
        command = getattr(at.command, "commands", {}).get(word)
        if command is None:
            near = wording.nearest(name)
            raise UsageError(
                f"no page, section or command is called {name}",
                hint=f"Did you mean `gpunode help {near}`?" if near else "`gpunode help` lists the pages.",
            )
        at = type(context)(command, info_name=word, parent=at)
    typer.echo(at.get_help())
