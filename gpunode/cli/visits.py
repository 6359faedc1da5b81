"""Commands that visit hosts: the options of all of them (`options.Common` and its kinds), around each one's own."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from functools import wraps
from typing import Any, get_type_hints

import typer

from gpunode.cli import options

BEFORE = 3  # of Common's options, as help lists them: the command's own come after these


def visits_hosts(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the options of its `common` around its own; it gets them as one value. Its own options that it declares
    before `common` follow the inventory, the others --exclude."""
    own = list(inspect.signature(command).parameters)
    kind_of_common = get_type_hints(command)["common"]
    names = [field.name for field in dataclasses.fields(kind_of_common) if field.name != "origin"]
    at = own.index("common")
    order = ["invocation", names[0], *own[:at], *names[1:BEFORE], *own[at + 1 :], *names[BEFORE:]]
    hints = {
        **get_type_hints(command, include_extras=True),
        **get_type_hints(kind_of_common, include_extras=True),
        "invocation": typer.Context,
    }
    defaults = {field.name: field.default for field in dataclasses.fields(kind_of_common)}
    defaults |= {name: one.default for name, one in inspect.signature(command).parameters.items()}

    @wraps(command)
    def run(invocation: typer.Context, **given: Any) -> None:
        common = kind_of_common(
            **{name: given.pop(name) for name in names}, origin=options.origin(invocation)
        )
        command(common=common, **given)

    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    run.__annotations__ = {name: hints[name] for name in order}
    defaults["invocation"] = inspect.Parameter.empty  # typer gives it
    run.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [inspect.Parameter(name, kind, default=defaults[name], annotation=hints[name]) for name in order]
    )
    return run
