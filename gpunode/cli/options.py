"""Options that several commands share, each declared once."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

INVENTORY = Path("inventory.yaml")
FORKS = 64  # threads wait far more than they work: 64 hosts cost one core less than a second

InventoryPath = Annotated[
    Path, typer.Argument(help="The inventory file.", show_default=True, metavar="INVENTORY")
]
Limit = Annotated[
    list[str] | None,
    typer.Option(
        "--limit", "-l", help="Only these hosts or groups; names, globs, comma separated.", metavar="NAMES"
    ),
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", help="All but these hosts or groups.", metavar="NAMES")
]
Json = Annotated[bool, typer.Option("--json", help="JSON lines on stdout, never a question.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Results only, no progress; with --json, too.")]
Forks = Annotated[int, typer.Option("--forks", help="Hosts worked on at the same time.", min=1)]
AskSudo = Annotated[
    bool, typer.Option("--ask-sudo-password", "-K", help="Ask once for the sudo password of all hosts.")
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do it without asking.")]


@dataclasses.dataclass(frozen=True, slots=True)
class Common:
    """The options of every command that visits hosts: which hosts, how they are visited, how it is reported."""

    inventory: InventoryPath = INVENTORY
    limit: Limit = None
    exclude: Exclude = None
    json: Json = False
    quiet: Quiet = False
    forks: Forks = FORKS
    ask_sudo: AskSudo = False


BEFORE = 3  # of Common's options, as help lists them: the command's own come after these


def visits_hosts(command: Callable[..., None]) -> Callable[..., None]:
    """A command with Common's options around its own, given to it as one value `common`. The command's options that it
    declares before `common` follow the inventory, the others --exclude."""
    own = list(inspect.signature(command).parameters)
    names = [field.name for field in dataclasses.fields(Common)]
    at = own.index("common")
    order = [names[0], *own[:at], *names[1:BEFORE], *own[at + 1 :], *names[BEFORE:]]
    hints = {**get_type_hints(command, include_extras=True), **get_type_hints(Common, include_extras=True)}
    defaults = {field.name: field.default for field in dataclasses.fields(Common)}
    defaults |= {name: one.default for name, one in inspect.signature(command).parameters.items()}

    @wraps(command)
    def run(**given: Any) -> None:
        common = Common(**{name: given.pop(name) for name in names})
        command(common=common, **given)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__annotations__ = {name: hints[name] for name in order}
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name]) for name in order]
    )
    return run
