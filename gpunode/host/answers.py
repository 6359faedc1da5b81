"""JSON from hosts, read into the types that its readers declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpunode.errors import UnexpectedAnswer

LARGEST = {int: 1 << 63, float: 1e11}  # of times in seconds the year 5138, which every calendar has
NAMES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: f"a number up to {LARGEST[float]:g}",
}


def read(kind: Any, value: Any, place: str) -> Any:
    """The value as `kind`: str, bool, int, float, Literal, X | None, tuple[X, ...], Mapping[str, X], or a dataclass of these.

    Members that a dataclass does not declare are left out; `name` or `path` of an object in a mapping is its key. Text has no
    halves of surrogates, which cannot be printed. Raises UnexpectedAnswer.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return (
            None if value is None else read(next(one for one in inner if one is not NoneType), value, place)
        )
    if origin is Literal:
        if value not in inner:
            raise unexpected(value, f"one of {', '.join(inner)}", place)
        return value
    if kind in NAMES:
        return _simple(kind, value, place)
    if origin is tuple:
        if not isinstance(value, list):
            raise unexpected(value, "a list", place)
        return tuple(read(inner[0], one, f"{place}[{n}]") for n, one in enumerate(value))
    if not isinstance(value, dict):
        raise unexpected(value, "an object", place)
    if declared := _declared(kind):
        members = {
            name: read(member, value.get(name), f"{place}.{name}")
            for name, (member, needed) in declared.items()
            if needed or name in value
        }
        return kind(**members)
    return {
        read(str, key, place): read(inner[1], _keyed(inner[1], key, one), f"{place}[{key}]")
        for key, one in value.items()
    }


def _simple(kind: Any, value: Any, place: str) -> Any:
    if kind is str and isinstance(value, str):
        return value.encode(errors="replace").decode()
    if kind is bool and isinstance(value, bool):
        return value
    number = isinstance(value, (int, kind)) and not isinstance(value, bool)
    if number and kind in LARGEST and abs(value) <= LARGEST[kind]:  # so not NaN
        return kind(value)
    raise unexpected(value, NAMES[kind], place)


@cache
def _declared(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type of each member of a dataclass, and whether it has no default; {} for what is none."""
    kinds = get_type_hints(kind) if is_dataclass(kind) else {}
    return {
        one.name: (kinds[one.name], one.default is MISSING and one.default_factory is MISSING)
        for one in (fields(kind) if kinds else ())
    }


def _keyed(kind: Any, key: str, value: Any) -> Any:
    name = next(iter(_declared(kind)), "")
    return {**value, name: key} if name in ("name", "path") and isinstance(value, dict) else value


def unexpected(value: Any, expected: str, place: str) -> UnexpectedAnswer:
    """The error for a value of another type than `expected`."""
    return UnexpectedAnswer(f"{_shown(value)} where {expected} is expected, in {place:.200}")


def _shown(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    names = {None: "nothing", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else f"{value!r:.60}"
