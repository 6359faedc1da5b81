"""The first line of a run's record: what the next command acts on has the type that it was written with."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any


def _strings(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) for one in value)


def _number(value: object) -> bool:
    return type(value) is int


def _size(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,5}%?", value) is not None


OPTIONS: Mapping[str, Callable[[object], bool]] = MappingProxyType(
    {
        "run": lambda value: isinstance(value, bool),
        "max_fail": _number,
        "canary": _number,
        "batch": _size,
        "fingerprints": _strings,
    }
)


def damaged(head: Mapping[str, Any]) -> str:
    """The first value of a type that gpunode does not write; "" where all are right. An option may be null."""
    if (
        not _number(head.get("format"))
        or not isinstance(head.get("inventory", ""), str)
        or not _strings(head["hosts"])
    ):
        return "its format, its inventory or its hosts"
    options = head.get("options") or {}
    wrong = (
        key for key, right in OPTIONS.items() if options.get(key) is not None and not right(options[key])
    )
    return next((f"options.{key} is {json.dumps(options[key])}" for key in wrong), "")
