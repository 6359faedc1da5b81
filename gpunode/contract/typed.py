"""JSON, read into the types that its readers declare. Pure."""

import json
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

LARGEST = {int: 1 << 66, float: 1e11}  # sums of 64-bit counters; a time in the year 5138
NAMES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: f"a number up to {LARGEST[float]:g}",
}


class Unexpected(ValueError):
    """A value of another type. Its text is a clause: `a list where text is expected, in facts.kernel`."""

    def __init__(self, value: Any, expected: str, place: str) -> None:
        super().__init__(f"{_describe(value)} where {expected} is expected, in {place:.200}")


def parse(text: str | bytes) -> Any:
    """The value of JSON text. Raises ValueError alone, also for one that nests too deep."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read(kind: Any, value: Any, place: str) -> Any:
    """The value as `kind`: str, bool, int, float, Literal, X | None, tuple[X, ...], Mapping[str, X], or a dataclass of these.

    Members that a dataclass does not declare are left out; `name` or `path` of an object in a mapping is its key. Text has no
    halves of surrogates, which cannot be printed. Raises Unexpected.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None:
            return None
        return read(next(item for item in inner if item is not NoneType), value, place)
    if origin is Literal:
        if value not in inner:
            raise Unexpected(value, f"one of {', '.join(inner)}", place)
        return value
    if kind in NAMES:
        return _read_simple(kind, value, place)
    if origin is tuple:
        if not isinstance(value, (list, tuple)):
            raise Unexpected(value, "a list", place)
        return tuple(read(inner[0], item, f"{place}[{n}]") for n, item in enumerate(value))
    if not isinstance(value, dict):
        raise Unexpected(value, "an object", place)
    if declared := _members_of(kind):
        members = {
            name: read(member, value.get(name), f"{place}.{name}")
            for name, (member, needed) in declared.items()
            if needed or name in value
        }
        return kind(**members)
    return {
        read(str, key, place): read(inner[1], _with_key(inner[1], key, item), f"{place}[{key}]")
        for key, item in value.items()
    }


def _read_simple(kind: Any, value: Any, place: str) -> Any:
    if kind is str and isinstance(value, str):
        return value.encode(errors="replace").decode()
    if kind is bool and isinstance(value, bool):
        return value
    number = isinstance(value, (int, kind)) and not isinstance(value, bool)
    if number and kind in LARGEST and abs(value) <= LARGEST[kind]:  # so not NaN
        return kind(value)
    raise Unexpected(value, NAMES[kind], place)


@cache
def _members_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type of each member of a dataclass, and whether it has no default; {} for what is none."""
    kinds = get_type_hints(kind) if is_dataclass(kind) else {}
    return {
        member.name: (kinds[member.name], member.default is MISSING and member.default_factory is MISSING)
        for member in (fields(kind) if kinds else ())
    }


def _with_key(kind: Any, key: str, value: Any) -> Any:
    name = next(iter(_members_of(kind)), "")
    return {**value, name: key} if name in ("name", "path") and isinstance(value, dict) else value


def _describe(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    names = {None: "nothing", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else f"{value!r:.60}"
