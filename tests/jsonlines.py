"""The JSON lines' types as a page and as JSON Schema, with which every line of the tests is compared."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from jsonschema import Draft202012Validator

from tests.kinds import KINDS

NAMES = {str: "string", int: "integer", float: "number", bool: "boolean", NoneType: "null", dict: "object"}


def parse(text: str) -> list[dict[str, Any]]:
    """The lines of a command with --json, each of which is what docs/reference/json.md says of its kind."""
    lines = [json.loads(line) for line in text.splitlines() if line]
    for line in lines:
        fits(line)
    return lines


def fits(line: dict[str, Any]) -> None:
    """Raises AssertionError with the first key that is not as it is documented."""
    kind = line["type"]
    for wrong in validator(kind).iter_errors({key: one for key, one in line.items() if key != "type"}):
        raise AssertionError(f"{kind} line: {'.'.join(map(str, wrong.path))}: {wrong.message}: {line}")


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema(KINDS[kind]))


def schema(of: Any) -> dict[str, Any]:
    """The JSON Schema of a type; of a TypedDict no other keys than its own."""
    origin, args = get_origin(of), get_args(of)
    if origin is Annotated:
        return schema(args[0])
    if origin is Literal:
        return {"enum": list(args)}
    if origin in (Union, UnionType):
        return {"anyOf": [schema(one) for one in args]}
    if origin is list:
        return {"type": "array", "items": schema(args[0])}
    if origin is dict:
        return {"type": "object", "additionalProperties": schema(args[1])}
    if is_typeddict(of):
        keys = get_type_hints(of, include_extras=True)
        return {
            "type": "object",
            "properties": {key: schema(one) for key, one in keys.items()},
            "required": sorted(of.__required_keys__),
            "additionalProperties": False,
        }
    return {} if of is Any else {"type": NAMES[of]}


def words(of: Any) -> str:
    """A type for people."""
    origin, args = get_origin(of), get_args(of)
    if origin is Annotated:
        return words(args[0])
    if origin is Literal:
        return ", ".join(f"`{one}`" if one else "empty" for one in args)
    if origin in (Union, UnionType):
        return " or ".join(words(one) for one in args)
    if origin is list:
        return "list of objects" if is_typeddict(args[0]) else f"list of {words(args[0])}s"
    if origin is dict:
        return "object" if args[1] is Any else f"object of {words(args[1])}s"
    return "object" if is_typeddict(of) else NAMES[of]


def about(of: Any) -> str:
    """What a TypedDict is: its own docstring, or that of the one whose optional keys it adds."""
    return str(of.__doc__ or getattr(sys.modules[of.__module__], of.__name__.removesuffix("More")).__doc__)


def keys(of: Any, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Key, type and meaning of every key, with those of the objects inside."""
    for key, one in get_type_hints(of, include_extras=True).items():
        meaning = one.__metadata__[0] if get_origin(one) is Annotated else ""
        inner = next((part for part in parts(one) if is_typeddict(part)), None)
        maybe = "" if key in of.__required_keys__ else " (not always)"
        name = f"{prefix}{key}"
        yield f"`{name}`{maybe}", words(one), meaning or (about(inner).rstrip(".") if inner else "")
        if inner:
            yield from keys(inner, f"{name}.")


def parts(of: Any) -> Iterator[Any]:
    """The type and all that it is made of."""
    yield of
    for one in get_args(of):
        yield from parts(one)
