"""Words of other tools on the command line, and what they are here."""

from __future__ import annotations

from typing import Any

import typer
from typer.core import TyperGroup

from gpunode.errors import UsageError

PROVISION = "`gpunode plan` shows what would change, `gpunode provision` does it."
DRAIN = (
    "`kubectl drain NODE` does it by hand; with `work: drain` in the inventory `gpunode provision` drains each node that it "
    "disturbs: docs/howto/replace-a-host.md."
)
UPGRADE = (
    'Name it in the inventory, such as `driver: "580"` for a group, then `gpunode plan` and `gpunode provision`: '
    "docs/howto/upgrade-a-driver.md."
)
COMMANDS = {
    **dict.fromkeys(("apply", "install", "deploy", "setup"), PROVISION),
    **dict.fromkeys(("drain", "cordon"), DRAIN),
    "uncordon": "gpunode lifts its own cordons; `kubectl uncordon NODE` lifts yours.",
    **dict.fromkeys(("upgrade", "update"), UPGRADE),
    **dict.fromkeys(
        ("remove", "delete", "uninstall"), "By hand: docs/howto/replace-a-host.md, Take one out."
    ),
    **dict.fromkeys(("diff", "check"), "`gpunode plan` shows what would change."),
}
PREVIEWS = {"--dry-run", "--dryrun", "--check"}
FILES = {"-i", "-f", "--inventory", "--file"}
HOSTS = {"--host", "--hosts", "--node", "--nodes"}
PLANNED = {"provision", "resume", "plugin deploy"}  # what `plan` shows


class Root(TyperGroup):
    """gpunode's commands. Raises UsageError for a slip that is known; others are answered as typer does."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and args[0] in COMMANDS and args[0] not in self.commands:
            raise UsageError(f"no such command: {args[0]}", hint=COMMANDS[args[0]])
        return super().resolve_command(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except typer.TyperException as error:
            option, where = getattr(error, "option_name", None), getattr(error, "ctx", None)
            hint = _hint(option, where) if option and where and type(error).__name__ == "NoSuchOption" else ""
            if not hint:
                raise
            raise UsageError(f"no such option: {option}", hint=hint) from None


def _hint(option: str, where: Any) -> str:
    """What to say in the place of an option that the command does not have; "" where nothing is known."""
    name, at = where.info_name, where.parent
    while at and at.parent:
        name, at = f"{at.info_name} {name}", at.parent
    has = {one for parameter in where.command.params for one in (parameter.name, *parameter.opts)}
    if option in FILES and "inventory" in has:
        return f"The inventory is an argument: `gpunode {name} inventory.yaml`."
    if option in HOSTS and "--limit" in has:
        return "`--limit NAMES` chooses hosts and groups."
    if option not in PREVIEWS or "--dry-run" in has:
        return ""
    if name in PLANNED:
        return "`gpunode plan` shows what would change, and changes nothing."
    if name == "plan":
        return "plan changes nothing."
    return "Without --yes it shows what would change, and asks." if "--yes" in has else ""
