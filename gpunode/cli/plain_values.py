"""Values of options that need no check of their own. Typer checks each by pydantic, whose import is a tenth of a plan's start."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer.core
from typer._coercion import RuntimeParam, TypeDescriptor, build_runtime_param


@dataclass(frozen=True)
class PlainParam(RuntimeParam):
    """Defaults, text, and paths that typer would not refuse, as they are; all else by typer's own way."""

    descriptor: TypeDescriptor

    def _coerce_value(self, value: Any, param: Any, ctx: Any) -> Any:
        kind = self.annotation
        if (
            kind is Path
            and self.descriptor.is_path
            and (not os.path.lexists(value) or os.access(value, os.R_OK))
        ):
            return Path(value)
        if kind == list[str] and all(isinstance(each, str) for each in value):
            return list(value)
        if (kind is str and isinstance(value, str)) or (kind in (int, float) and value == param.default):
            return value
        return build_runtime_param(self.descriptor)._coerce_value(value, param, ctx)


def build(descriptor: TypeDescriptor) -> RuntimeParam:
    return PlainParam(descriptor.parameter_info, descriptor.annotation, descriptor)


def install() -> None:
    """Have typer use it; and name an argument in help by its name alone, without braces and the type of its Python value."""
    typer.core.build_runtime_param = build
    argument: Any = typer.core.TyperArgument
    argument._usage_display_name = _usage
    argument.display_type_rich = lambda *_, **__: ""


def _usage(argument: Any) -> str:
    name = argument.display_name_raw
    return name if argument.required else f"[{name}]"
