"""`gpunode help`: the documents' pages, which the package brings."""

from typing import Annotated, Any

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
            help="A page, a section of one (`safety#batches`), a command, a word of a title, or a key of the inventory; without one, the list of pages.",
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
    from gpunode.cli.suggestions import WORDS

    name = " ".join(topic or ["index"]).lower()
    name = WORDS.get(name, name)
    at: Any = context.find_root()
    for word in name.split():
        command = getattr(at.command, "commands", {}).get(word) if at else None
        at = type(context)(command, info_name=word, parent=at) if command else None
    if topic and at:
        typer.echo(at.get_help())
        if wording.read(name):
            typer.echo(f"\nIts page: `gpunode help {name}.md`")
        return
    report.document(wording.read(name) or _near(name, context.find_root().command))


NAMED = 8


def _near(name: str, group: Any) -> str:
    """What there is on something that is no page, section or command, as Markdown. Raises UsageError where there is nothing."""
    from gpunode import wording
    from gpunode.errors import UsageError

    rows = [f"- the inventory's key `{key}`: {text}" for key, text in wording.keys(name).items()]
    titles = wording.sections(name)
    commands = [command for command in getattr(group, "commands", {}) if name in command]
    if len(titles) == 1 and not rows and not commands:
        return wording.read(next(iter(titles)))
    listed = [f"- `gpunode help {command}`: the command" for command in commands] + rows
    listed += [f"- `gpunode help {topic}`: {title}" for topic, title in titles.items()]
    near = wording.nearest(name)
    if not listed and not near:
        listed = [f"- `gpunode help {page}` mentions it" for page in wording.mentions(name)]
    if not listed:
        raise UsageError(
            f"no page, section or command is called {name}",
            hint=f"Did you mean `gpunode help {near}`?" if near else "`gpunode help` lists the pages.",
        )
    return "\n".join([f"No page is called {name}. What fits:\n", *listed[:NAMED], ""])
