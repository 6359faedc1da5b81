"""The kinds of JSON lines (kinds.yaml) as a page and as JSON Schema, with which every line of the tests is compared."""

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, get_args

import yaml
from jsonschema import Draft202012Validator

from gpunode.model import Layer, Status

_TABLE = yaml.load(
    Path(__file__).with_name("kinds.yaml").read_text(encoding="utf-8"),
    getattr(yaml, "CSafeLoader", yaml.SafeLoader),
)
KINDS: dict[str, dict[str, Any]] = _TABLE["kinds"]
PARTS: dict[str, dict[str, Any]] = _TABLE["parts"]
VALUES = {"Status": list(get_args(Status)), "Layer": list(get_args(Layer))}


def parse(text: str) -> list[dict[str, Any]]:
    """The lines of a command with --json, each of which is what docs/reference/json.md says of its kind."""
    lines = [json.loads(line) for line in text.splitlines() if line]
    for line in lines:
        fits(line)
    return lines


def fits(line: dict[str, Any]) -> None:
    """Raises AssertionError with the first key that is not as it is documented."""
    kind = line["type"]
    for wrong in validator(kind).iter_errors({key: value for key, value in line.items() if key != "type"}):
        raise AssertionError(f"{kind} line: {'.'.join(map(str, wrong.path))}: {wrong.message}: {line}")


@cache
def validator(kind: str) -> Draft202012Validator:
    return Draft202012Validator(schema(KINDS[kind]))


def schema(of: dict[str, Any]) -> dict[str, Any]:
    """The JSON Schema of a kind or part: its keys and no others."""
    return {
        "type": "object",
        "properties": {key.rstrip("?"): _schema(words) for key, (words, *_) in of["keys"].items()},
        "required": sorted(key for key in of["keys"] if not key.endswith("?")),
        "additionalProperties": False,
    }


def _schema(words: str | list[str]) -> dict[str, Any]:
    """Of a type."""
    if isinstance(words, list):
        return {"enum": words}
    if " or " in words:
        return {"anyOf": [_schema(word) for word in words.split(" or ")]}
    if words.startswith("`"):
        return {"enum": [words.strip("`")]}
    if words in VALUES:
        return {"enum": VALUES[words]}
    if words in PARTS:
        return schema(PARTS[words])
    first, _, item = words.partition(" of ")
    if item:
        inner = _schema(item if item in PARTS else item.removesuffix("s"))
        if first.startswith("list"):
            return {"type": "array", "items": inner}
        return {"type": "object", "additionalProperties": inner}
    return {"type": words}


def keys(of: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Key, type and meaning of every key, with those of the objects inside."""
    for key, (words, *meaning) in of["keys"].items():
        inner = next((PARTS[word] for word in str(words).split() if word in PARTS), None)
        name = f"{prefix}{key.rstrip('?')}"
        maybe = " (not always)" if key.endswith("?") else ""
        yield (
            f"`{name}`{maybe}",
            _words(words),
            meaning[0] if meaning else inner["is"].rstrip(".") if inner else "",
        )
        if inner:
            yield from keys(inner, f"{name}.")


def _words(words: str | list[str]) -> str:
    """A type for people."""
    values = VALUES.get(words) if isinstance(words, str) else words
    if values:
        return ", ".join(f"`{value}`" if value else "empty" for value in values)
    return " ".join(
        ("objects" if "list of" in words else "object") if word in PARTS else word for word in words.split()
    )
