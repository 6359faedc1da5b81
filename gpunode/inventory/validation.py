"""Checks a file against schema.json: notes every mistake and keeps only valid values in the data."""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib import resources
from typing import Any

from gpunode.contract.yaml_text import INVALID, Where, format_path, kind
from gpunode.inventory.expand import range_meant
from gpunode.inventory.source import Source

Schema = dict[str, Any]

KINDS = {
    "object": "a mapping",
    "array": "a list",
    "string": "text",
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
}
# Unknown keys that get advice. It takes milliseconds each, and a file of another kind has thousands.
ADVISED = 50
BOOLEANS = {"yes": "true", "on": "true", "y": "true", "no": "false", "off": "false", "n": "false"}


@lru_cache(maxsize=1)
def schema() -> Schema:
    text = resources.files(__package__).joinpath("schema.json").read_text(encoding="utf-8")
    loaded: Schema = json.loads(text)
    return loaded


@dataclass(frozen=True, slots=True)
class Mistake:
    """A value that breaks a rule of the schema: `limit` is the rule's in `schema`. `named`: the value is a key, which is at `where`."""

    where: Where
    rule: str
    value: Any
    limit: Any
    schema: Schema
    named: bool = False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: type(value) is int,  # 22.0 is none
    "number": _is_number,
}
# The rules of JSON Schema that schema.json uses, each for values of one type (None: of any): whether a value keeps it.
RULES: Mapping[str, tuple[str | None, Callable[[Any, Any], bool]]] = {
    "type": (
        None,
        lambda value, limit: any(
            TYPES[kind](value) for kind in ([limit] if isinstance(limit, str) else limit)
        ),
    ),
    "enum": (None, lambda value, limit: value in limit),
    "pattern": ("string", lambda value, limit: re.search(limit, value) is not None),
    "minLength": ("string", lambda value, limit: len(value) >= limit),
    "maxLength": ("string", lambda value, limit: len(value) <= limit),
    "minimum": ("number", lambda value, limit: value >= limit),
    "maximum": ("number", lambda value, limit: value <= limit),
    "minProperties": ("object", lambda value, limit: len(value) >= limit),
    "required": ("object", lambda value, limit: all(key in value for key in limit)),
    "anyOf": (None, lambda value, limit: any(not list(mistakes(value, part)) for part in limit)),
}


def mistakes(value: Any, part: Schema, where: Where = ()) -> Iterator[Mistake]:
    """What is wrong with a value against a part of the schema. The library for all of JSON Schema takes as long to import as paramiko."""
    for rule, limit in part.items():
        if rule in RULES:
            kind, keeps = RULES[rule]
            if (kind is None or TYPES[kind](value)) and not keeps(value, limit):
                yield Mistake(where, rule, value, limit, part)
        elif rule == "$ref":
            yield from mistakes(value, schema()["$defs"][limit.rsplit("/", 1)[1]], where)
        elif rule == "items" and isinstance(value, list):
            for index, item in enumerate(value):
                yield from mistakes(item, limit, (*where, index))
        elif isinstance(value, dict):
            yield from _mistakes_of_keys(value, rule, limit, part, where)


def _mistakes_of_keys(
    value: dict[Any, Any], rule: str, limit: Any, part: Schema, where: Where
) -> Iterator[Mistake]:
    known = part.get("properties", {})
    if rule == "properties":
        for key in [key for key in limit if key in value]:
            yield from mistakes(value[key], limit[key], (*where, key))
    elif rule == "propertyNames":
        for key in value:
            yield from (replace(mistake, named=True) for mistake in mistakes(key, limit, where))
    elif rule == "additionalProperties" and limit is False:
        if any(key not in known for key in value):
            yield Mistake(where, rule, value, limit, part)
    elif rule == "additionalProperties":
        for key in [key for key in value if key not in known]:
            yield from mistakes(value[key], limit, (*where, key))


def resolve(part: Schema) -> Schema:
    """A part of the schema with its $ref resolved; keys beside the $ref win."""
    reference = part.get("$ref")
    return {**schema()["$defs"][reference.rsplit("/", 1)[1]], **part} if reference else part


def check(source: Source) -> None:
    """Note every mistake against the schema, and remove the wrong parts from the data."""
    note_misplaced(source)
    version, newest = source.data.get("version"), schema()["properties"]["version"]["maximum"]
    if type(version) is int and version > newest:  # what else is in it this gpunode cannot judge
        source.problem(
            ("version",),
            f"this file has format {version}, for a newer gpunode; this one reads formats up to {newest}",
        )
        source.stop()
    wrong: set[Where] = set()
    meant: set[Where] = set()  # keys that an unknown one was probably meant to be
    errors = list(mistakes(source.data, schema()))
    for error in sorted(errors, key=lambda error: error.rule in {"required", "anyOf"}):
        where = error.where
        if error.value is INVALID:
            continue
        if error.named:
            where = (*where, str(error.value))
            source.problem(where, broken_rule(error.schema["patternErrorMessage"], error.value), key=True)
            wrong.add(where)
        elif error.rule == "additionalProperties":
            here = resolve(error.schema)
            for key in [key for key in error.value if key not in here["properties"]]:
                near = nearest(key, here) if len(wrong) < ADVISED else None
                meant.add((*where, near or key))
                advice = (
                    f"did you mean `{near}`?" if near else "the keys here are " + join(here["properties"])
                )
                source.problem((*where, key), f"unknown key; {advice}", key=True)
                wrong.add((*where, key))
        elif error.rule in {"required", "anyOf"}:
            for why in missing(source, error, where, meant):
                source.problem(where, why)
            if where:
                wrong.add(where)
        else:
            source.problem(where, sentence(error, source.written.get(where)))
            wrong.add(where)
    for where in sorted(wrong, key=len, reverse=True):
        remove(source.data, where)


def note_misplaced(source: Source) -> None:
    """Note variables that stand between the groups, and remove them: one mistake for each, however many keys it has."""
    groups = source.data.get("groups")
    variables = schema()["properties"]["groups"]["additionalProperties"]["properties"]
    if not isinstance(groups, dict):
        return
    wrong = [
        key
        for key, group in groups.items()
        if key in variables and not (isinstance(group, dict) and "hosts" in group)
    ]
    for key in wrong:
        source.problem(
            ("groups", key), f"`{key}` is no group; indent it below the group it belongs to", key=True
        )
        del groups[key]
    for name in [name for name, group in groups.items() if wrong and group is None]:
        del groups[name]  # its variables are the misplaced ones


def missing(source: Source, error: Mistake, where: Where, meant: set[Where]) -> Iterator[str]:
    """Messages for required keys that are missing, and not just misspelt. `anyOf`: one of several is required."""

    def present(key: str) -> bool:
        return (*where, key) in meant or (*where, key) in source.keys

    if error.rule == "anyOf":
        keys = [key for choice in error.limit for key in choice["required"]]
        if not any(present(key) for key in keys):
            yield f"needs {join(keys, 'or')}"
        return
    for key in error.limit:
        if key not in error.value and not present(key):
            yield f"`{key}` is missing; add `{example(key, resolve(error.schema['properties'][key]))}`"


def example(key: str, part: Schema) -> str:
    """`key: value` with the schema's example, on one line."""
    import yaml

    return str(yaml.safe_dump({key: part["examples"][0]}, default_flow_style=True)).strip()[1:-1]


def remove(data: Any, where: Where) -> None:
    """Remove the value at `where`; in a list INVALID takes its place, so that the others keep their index."""
    *outer, last = where
    for part in outer:
        data = data[part]
    if isinstance(data, list):
        data[int(last)] = INVALID
    else:
        data.pop(last, None)


def sentence(error: Mistake, written: str | None) -> str:
    """The message for one mistake: the expected value, the actual one, and the fix."""
    value, limit = error.value, error.limit
    if error.rule == "type":
        if "pattern" in error.schema and written and not re.search(error.schema["pattern"], written):
            return broken_rule(error.schema["patternErrorMessage"], written)
        return wrong_type([limit] if isinstance(limit, str) else limit, value, written)
    if error.rule == "enum":
        near = difflib.get_close_matches(str(value), limit, n=1)
        return f"expected {join(limit, 'or')}, got {kind(value)}" + (
            f"; did you mean `{near[0]}`?" if near else ""
        )
    if (
        error.rule == "pattern"
        and "ranges" in error.schema["patternErrorMessage"]
        and re.search(r"[\[{]", value)
    ):
        meant = range_meant(value)
        fix = f"did you mean `{meant}`?" if meant else f'this one is "{value}"; name such hosts one by one'
        return f"a range counts from one number to another, as in gpu-[01:04]; {fix}"
    if error.rule == "pattern":
        return broken_rule(error.schema["patternErrorMessage"], value)
    if error.rule in {"minimum", "maximum"}:
        return f"expected a number from {error.schema['minimum']} to {error.schema['maximum']}, got {value}"
    if error.rule == "maxLength":
        return f"has {len(value)} characters; {limit} is the maximum"
    if error.rule == "minLength":
        return "is empty; give it a value or remove the line"
    if "properties" not in error.schema:  # minProperties
        return "is empty; give it an entry or remove it"
    return f"is empty; it needs at least one of {join(error.schema['properties'], 'or')}"


def wrong_type(expected: list[str], value: Any, written: str | None) -> str:
    """The message for a value of the wrong type, with the fix where quotes or another word are enough."""
    kinds = " or ".join(KINDS[name] for name in expected)
    if value is None:
        return f"expected {kinds}, got nothing; give it a value or remove the line"
    text = f"expected {kinds}, got {kind(value)}"
    if "string" in expected and isinstance(value, (bool, int, float)):
        return f'{text}; in quotes it is text: "{written}"'
    if expected == ["boolean"] and isinstance(value, str) and value.lower() in BOOLEANS:
        return f"{text}; write {BOOLEANS[value.lower()]}"
    if expected == ["boolean"] and isinstance(value, str) and value.lower() in {"true", "false"}:
        return f"{text}; write it without quotes"
    if expected[0] in {"integer", "number"} and isinstance(value, str):
        if re.fullmatch(r"\d+(\.\d+)?", value):
            return f"{text}; write it without quotes"
        if expected == ["number"]:  # all numbers of the schema are seconds
            return f"{text}; write seconds, without a unit"
    if expected == ["array"] and isinstance(value, str):
        return f'{text}; a list of one is ["{value}"]'
    if expected == ["array"] and isinstance(value, dict):
        return f"{text}; each host is a line of its own: `- name`, or `- {{name: …, address: …}}`"
    return text


def broken_rule(rule: str, text: str) -> str:
    """The rule that a name breaks, and the likely cause. Passwords in an address are not repeated."""
    if any(character.isspace() for character in text):
        return f"{rule}; this one has a space"
    if "at most 63" in rule and len(text) > 63 and "/" not in text:
        return f"{rule}; this one has {len(text)} characters"
    return rule if "//" in text and "@" in text else f'{rule}; this one is "{text}"'


def join(names: Any, last: str = "and") -> str:
    quoted = [f"`{name}`" for name in names]
    return f"{', '.join(quoted[:-1])} {last} {quoted[-1]}" if len(quoted) > 1 else quoted[0]


def nearest(key: str, here: Schema) -> str | None:
    """The valid key that was probably meant: in this mapping, below it, or anywhere in the file; None if unclear."""
    below = by_name(here)
    anywhere = by_name(schema())
    if key in below:
        return below[key]
    local: list[str] = difflib.get_close_matches(key, list(here["properties"]), n=1)
    if local:
        return local[0]
    if key in anywhere:
        return anywhere[key]
    close: list[str] = difflib.get_close_matches(key, list(below), n=1, cutoff=0.75)
    return below[close[0]] if close else None


def by_name(part: Schema) -> dict[str, str]:
    """Every key's name -> the dotted path of its outermost place."""
    paths: dict[str, str] = {}
    for place in places(part):
        paths.setdefault(str(place[-1]), format_path(place))
    return paths


def places(part: Schema, where: Where = ()) -> Iterator[Where]:
    """The path of every key in the schema below `part`, outer keys first; "" stands for any index."""
    part = resolve(part)
    keys = [((*where, name), inner) for name, inner in part.get("properties", {}).items()]
    yield from (place for place, _ in keys)
    for place, inner in keys:
        yield from places(inner, place)
    if isinstance(part.get("additionalProperties"), dict):
        yield from places(part["additionalProperties"], (*where, "<name>"))
    if "items" in part:
        yield from places(part["items"], (*where, ""))
