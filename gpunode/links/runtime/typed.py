"""Types of the values that planners read from a host's TOML files: a wrong one is refused with file, line and key."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

from gpunode.errors import CannotPlan
from gpunode.planning import toml
from gpunode.planning.files import at

Kind: TypeAlias = Literal["number", "string", "strings", "switch", "table"]  # `strings`: a list of them
# By path. "*" is any name; case does not count, as for the TOML libraries of Go.
Kinds: TypeAlias = Mapping[toml.Path, Kind]

KINDS: Mapping[Kind, tuple[type, str]] = MappingProxyType(
    {
        "number": (int, "a number"),
        "string": (str, "a string"),
        "strings": (list, "a list of strings"),
        "switch": (bool, "true or false"),
        "table": (Mapping, "a table"),
    }
)


def check(data: Mapping[str, Any], kinds: Kinds, text: str, path: str, hint: str) -> None:
    """Raise CannotPlan for the first value that is not of its kind. `text` is what `data` was read from."""
    for wanted, kind in kinds.items():
        for key, value in _values(data, wanted):
            items = (
                [(f"[{n}]", one, "string") for n, one in enumerate(value)] if isinstance(value, list) else []
            )
            for suffix, one, wish in (("", value, kind), *(items if kind == "strings" else ())):
                type_, name = KINDS[wish]
                if not isinstance(one, type_) or (wish == "number" and isinstance(one, bool)):
                    raise CannotPlan(
                        f"{_place(text, path, key)}: `{'.'.join(key)}{suffix}` is {_shown(one)}, not {name}",
                        hint=hint,
                    )


def _values(data: object, wanted: toml.Path, above: toml.Path = ()) -> Iterator[tuple[toml.Path, Any]]:
    """The values at these keys; none below what is no table."""
    for name, value in data.items() if isinstance(data, Mapping) else ():
        if wanted[0] in ("*", name.lower()):
            key = (*above, name)
            if len(wanted) == 1:
                yield key, value
            else:
                yield from _values(value, wanted[1:], key)


def _place(text: str, path: str, key: toml.Path) -> str:
    """`path:line` of the key, or of the first key below it."""
    found = next((one for one in toml.entries(text) if one.path[: len(key)] == key), None)
    return at(path, text, found.start).rpartition(":")[0] if found else path


def _shown(value: object) -> str:
    if isinstance(value, str):
        return f"the string {json.dumps(value, ensure_ascii=False)}"
    if isinstance(value, Mapping | list):
        return "a table" if isinstance(value, Mapping) else "a list"
    return json.dumps(value, default=str)
