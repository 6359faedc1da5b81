"""Commands that answer words of other tools with gpunode's own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpunode.cli.other_commands import COMMANDS
from gpunode.cli.other_options import LIMIT, ONE, hint
from gpunode.errors import UsageError, clipped

EXTRA = "Got unexpected extra argument"  # click's
NUMBERS = {"int_parsing", "int_parsing_size", "float_parsing", "greater_than_equal", "less_than_equal"}


class Group(TyperGroup):
    """Commands. Raises UsageError for a command's name that is a known slip; others are answered as typer does."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = COMMANDS.get(_name(ctx), {})
        if args and args[0] in known and args[0] not in self.commands:
            what = f"{_name(ctx)} {args[0]}".strip()
            raise UsageError(f"no such command: {what}", hint=known[args[0]])
        return super().resolve_command(ctx, args)


@contextmanager
def _answering() -> Iterator[None]:
    """Errors of options and arguments become those of `_answered`."""
    try:
        yield
    except typer.TyperException as error:
        raise _answered(error) from None


class Root(Group):
    """gpunode's commands, and the options of all of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        _no_swallowing(self, args)
        with _answering():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _answering():
            return super().invoke(ctx)


def _no_swallowing(command: Any, args: list[str]) -> None:
    """Raise UsageError for an option whose value would be another option of the command: click takes it for one."""
    for at, word in enumerate(args):
        if word == "--":
            return
        if word in getattr(command, "commands", ()):
            command = command.commands[word]
            continue
        known = {
            name: one
            for one in command.params
            for name in (*one.opts, *one.secondary_opts)
            if name[:1] == "-"
        }
        option, following = known.get(word), "".join(args[at + 1 : at + 2])
        if option is not None and not getattr(option, "is_flag", False) and following in known:
            raise UsageError(
                f"{word} has no value: {following} is another option",
                hint=f"Write `{word} {option.metavar or 'VALUE'}`.",
            )


class Command(TyperCommand):
    """A command that is a program of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        with _answering():
            return super().parse_args(ctx, args)


def _answered(error: Exception) -> Exception:
    """The error with what to do, where that is known; else itself."""
    where, option = getattr(error, "ctx", None), getattr(error, "option_name", "")
    words = clipped(str(getattr(error, "message", "")))
    if words:
        error.message = words  # type: ignore[attr-defined]
    if where and type(error).__name__ == "NoSuchOption":
        answer = hint(option, _name(where), _has(where))
        return UsageError(f"no such option: {option}", hint=answer) if answer else error
    if where and words.startswith(EXTRA):
        if "--base" in _has(where):
            word = words.rpartition("(")[2].rstrip(")")
            return UsageError(
                f"{words[0].lower()}{words[1:]}", hint=f"`--base {word}` names the image to build on."
            )
        answer = LIMIT if "--limit" in _has(where) else "" if _name(where) else ONE
        return UsageError(f"{words[0].lower()}{words[1:]}", hint=answer) if answer else error
    return _number(error) or error


def _number(error: Exception) -> UsageError | None:
    """What an option's number should be, with an example; None for other mistakes."""
    option, why = getattr(error, "param", None), getattr(error.__cause__, "errors", None)  # pydantic's
    if option is None or why is None or (found := why()[0])["type"] not in NUMBERS:
        return None
    low, high = option.min, option.max
    kind = "number" if isinstance(low, float) else "whole number"
    bounds = f" from {low} to {high}" if high is not None else f" of {low} or more"
    name = max(option.opts, key=len)
    return UsageError(
        f"{name} {found['input']}: expected a {kind}{bounds}", hint=f"Write `{name} {option.default or 1}`."
    )


def _name(where: Any) -> str:
    """The command's words without gpunode's own name."""
    words, at = list[str](), where
    while at and at.parent:
        words, at = [str(at.info_name), *words], at.parent
    return " ".join(words)


def _has(where: Any) -> set[str]:
    """The command's arguments and options."""
    return {
        one
        for parameter in where.command.params
        for one in (parameter.name, *parameter.opts, *parameter.secondary_opts)
    }
