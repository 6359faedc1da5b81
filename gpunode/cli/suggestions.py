"""Mistakes of a command line, answered with what to write."""

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperGroup

from gpunode.errors import UsageError, clipped
from gpunode.wording import near, pages

EXTRA = "Got unexpected extra argument"  # click's
FIRST = (
    "demo", "init", "plan", "provision", "verify", "why", "explain", "status", "top", "pause", "resume", "history", "show", "undo", "help",
)  # fmt: skip
# Words of other tools → the command or the page here.
WORDS = {
    **dict.fromkeys(("rollback", "revert", "restore"), "undo"),
    **dict.fromkeys(("uninstall", "remove", "delete", "destroy"), "forget"),
    **dict.fromkeys(("apply", "install", "deploy", "up", "sync"), "provision"),
    **dict.fromkeys(("diff", "dry-run", "preview"), "plan"),
    **dict.fromkeys(("check", "test", "doctor", "diagnose", "health"), "verify"),
    **dict.fromkeys(("nvidia-smi", "get", "list", "ls", "ps", "nodes", "gpus"), "status"),
    **dict.fromkeys(("watch", "monitor", "dashboard"), "top"),
    **dict.fromkeys(("describe", "debug"), "why"),
    **dict.fromkeys(("stop", "cancel"), "pause"),
    **dict.fromkeys(("benchmark", "bench", "burn-in", "stress"), "accept"),
    **dict.fromkeys(("log", "logs"), "plugin status"),
    "runs": "history",
    "pending": "why pod",
    **dict.fromkeys(("bug", "report"), "support-bundle"),
    **dict.fromkeys(("upgrade", "update"), "upgrade-a-driver"),
    "cordon": "cordon-gpu",
    "uncordon": "uncordon-gpu",
    "drain": "safety#work-on-the-gpus",
    "replace": "replace-a-host",
    "reset": "deviceplugin#health",  # of a GPU
    "drift": "drift-check",
}
KEPT = (
    "--batch", "--canary", "--max-fail", "--run", "--no-run", "--fingerprint", "--taint-until-verified", "--accept",
)  # fmt: skip
BARE = {"--watch": "2", "-w": "2"}  # the values of options that need none
NUMBERS = {"int_parsing", "int_parsing_size", "float_parsing", "greater_than_equal", "less_than_equal"}


class Root(TyperGroup):
    """gpunode's commands. Raises UsageError for a mistake in the options and arguments of any of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Those of the first hour first."""
        names = super().list_commands(ctx)
        return sorted(names, key=lambda name: FIRST.index(name) if name in FIRST else len(FIRST))

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        if not ctx.resilient_parsing:  # of a completion
            _complete_values(self, args)
        with _explaining():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _explaining():
            return super().invoke(ctx)


@contextmanager
def _explaining() -> Iterator[None]:
    try:
        yield
    except typer.TyperException as error:
        raise _explain(error) from None


def _complete_values(command: Any, args: list[str]) -> None:
    """Insert the values of BARE. Raise UsageError for an option whose value would be another option of the command, which click takes, or is missing."""
    for at, word in enumerate(args):
        if word == "--":
            return
        if word in getattr(command, "commands", ()):
            command = command.commands[word]
            continue
        known = {
            name: parameter
            for parameter in command.params
            for name in (*parameter.opts, *parameter.secondary_opts)
            if name[:1] == "-"
        }
        option, following = known.get(word), "".join(args[at + 1 : at + 2])
        if option is not None and not getattr(option, "is_flag", False) and following in ("", *known):
            if word in BARE:
                args.insert(at + 1, BARE[word])
                continue
            raise UsageError(
                f"{word} has no value{following and f': {following} is another option'}",
                hint=f"Write `{word} {option.metavar or 'VALUE'}`.",
            )


def _explain(error: Exception) -> Exception:
    """The error with its fix, if known, else with the command's help; itself where it is no mistake, as --help is none."""
    context = getattr(error, "ctx", None)
    if context and (missing := getattr(error, "param", None)) and not getattr(error, "message", ""):
        return _missing(context, missing)
    shown = str(getattr(error, "message", "")) and error.format_message()  # type: ignore[attr-defined]
    if not shown or "\n" in shown:  # the help of a command without arguments
        return error
    message = clipped(shown.replace("Value error, ", ""))  # pydantic's words
    options = {name for parameter in context.command.params for name in parameter.opts} if context else set()
    if message.startswith(EXTRA) and options & {"--base", "--limit"}:
        hint = "`--limit NAMES` chooses hosts and groups; commas separate names."
        if "--base" in options:
            hint = f"`--base {message.rpartition('(')[2].rstrip(')')}` names the image to build on."
        return UsageError(f"{message[0].lower()}{message[1:]}", hint=hint)
    hint = f"See `{context.command_path} --help`." if context else ""
    if context and (word := re.match(r"No such command '([\w-]+)'", message)):
        message, name = word[0], word[1].lower()  # without click's guesses
        there = context.command.commands
        close = near(name, there)
        if meant := None if context.parent else WORDS.get(name):
            known = meant.partition(" ")[0] in there
            hint = f"Here it is `gpunode {'' if known else 'help '}{meant}`."
        elif name in pages():
            hint = f"It is a page: `gpunode help {name}`."
        elif close:
            hint = f"Did you mean `{context.command_path} {close[0]}`?"
    if context and (word := re.match(r"No such option: (-\S+)", message)):
        message = word[0]
        hint = _another_option(context, word[1]) or hint
    return _expected_number(error) or UsageError(f"{message[0].lower()}{message[1:]}".rstrip("."), hint=hint)


def _another_option(context: Any, option: str) -> str:
    """What to write in the place of an option that the command does not have; "" if unclear."""
    from gpunode.inventory import validation

    command, path = context.command, context.command_path
    arguments = [parameter.metavar or "" for parameter in command.params if parameter.opts[0][:1] != "-"]
    if option in ("-i", "--inventory") and "INVENTORY" in arguments:
        return f"The inventory is an argument: `{path} {' '.join(arguments)}`."
    if command.name == "resume" and option in KEPT:
        return f"`resume` keeps the run's {option}."
    shown = [
        name
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for name in (*parameter.opts, *parameter.secondary_opts)
    ]
    if close := near(option, shown):
        return f"Did you mean `{close[0]}`?"
    key = validation.by_name(validation.schema()).get(option.lower().lstrip("-").replace("-", "_"))
    return f"It is a key of the inventory: `{key}`." if key and "INVENTORY" in arguments else ""


def _missing(context: Any, parameter: Any) -> UsageError:
    """What is missing, what it is, and the command's example."""
    name = max(parameter.opts, key=len)
    name = name if name[:1] == "-" else parameter.metavar or name
    about = f": {parameter.help[0].lower()}{parameter.help[1:].rstrip('.')}" if parameter.help else ""
    example = " ".join((context.command.help or "").partition("Example: ")[2].split())
    command = context.command_path.removeprefix(context.find_root().command_path).lstrip()
    return UsageError(
        f"{command} needs {name}{about}",
        hint=f"For example `{example}`. More: `{context.command_path} --help`." if example else "",
    )


def _expected_number(error: Exception) -> UsageError | None:
    """What an option's number should be, with an example; None for other mistakes."""
    option, why = getattr(error, "param", None), getattr(error.__cause__, "errors", None)  # pydantic's
    if option is None or why is None or (mistake := why()[0])["type"] not in NUMBERS:
        return None
    low, high = option.min, option.max
    kind = "number" if isinstance(low, float) else "whole number"
    bounds = f" from {low} to {high}" if high is not None else f" of {low} or more"
    name = max(option.opts, key=len)
    return UsageError(
        f"{name} {mistake['input']}: expected a {kind}{bounds}",
        hint=f"Write `{name} {option.default or 1}`.",
    )
