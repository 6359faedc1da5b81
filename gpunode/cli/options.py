"""Options that several commands share, each declared once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

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
