"""Checks a file against schema.json: notes every mistake and keeps only valid values in the data."""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterator
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


@lru_cache(maxsize=1)
def validator() -> Any:
    """The schema's validator; 22.0 is no integer for it. Imported late: the import is slow."""
    from jsonschema.validators import Draft202012Validator, extend

    kinds = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
    return extend(Draft202012Validator, type_checker=kinds)(schema())  # type: ignore[no-untyped-call]


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
    errors = list(validator().iter_errors(source.data))
    wrong: set[Where] = set()
    meant: set[Where] = set()  # keys that an unknown one was probably meant to be
    for error in sorted(errors, key=lambda error: error.validator in {"required", "anyOf"}):
        where: Where = tuple(error.absolute_path)
        if error.instance is INVALID:
            continue
        if "propertyNames" in error.absolute_schema_path:
            where = (*where, str(error.instance))
            source.problem(where, broken_rule(error.schema["patternErrorMessage"], error.instance), key=True)
            wrong.add(where)
        elif error.validator == "additionalProperties":
            here = resolve(error.schema)
            for key in [key for key in error.instance if key not in here["properties"]]:
                near = nearest(key, here) if len(wrong) < ADVISED else None
                meant.add((*where, near or key))
                advice = (
                    f"did you mean `{near}`?" if near else "the keys here are " + join(here["properties"])
                )
                source.problem((*where, key), f"unknown key; {advice}", key=True)
                wrong.add((*where, key))
        elif error.validator in {"required", "anyOf"}:
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


def missing(source: Source, error: Any, where: Where, meant: set[Where]) -> Iterator[str]:
    """Messages for required keys that are missing, and not just misspelt. `anyOf`: one of several is required."""

    def present(key: str) -> bool:
        return (*where, key) in meant or (*where, key) in source.keys

    if error.validator == "anyOf":
        keys = [key for choice in error.validator_value for key in choice["required"]]
        if not any(present(key) for key in keys):
            yield f"needs {join(keys, 'or')}"
        return
    for key in error.validator_value:
        if key not in error.instance and not present(key):
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


def sentence(error: Any, written: str | None) -> str:
    """The message for one mistake: the expected value, the actual one, and the fix."""
    value, limit = error.instance, error.validator_value
    if error.validator == "type":
        if "pattern" in error.schema and written and not re.search(error.schema["pattern"], written):
            return broken_rule(error.schema["patternErrorMessage"], written)
        return wrong_type([limit] if isinstance(limit, str) else limit, value, written)
    if error.validator == "enum":
        near = difflib.get_close_matches(str(value), limit, n=1)
        return f"expected {join(limit, 'or')}, got {kind(value)}" + (
            f"; did you mean `{near[0]}`?" if near else ""
        )
    if (
        error.validator == "pattern"
        and "ranges" in error.schema["patternErrorMessage"]
        and re.search(r"[\[{]", value)
    ):
        meant = range_meant(value)
        fix = f"did you mean `{meant}`?" if meant else f'this one is "{value}"; name such hosts one by one'
        return f"a range counts from one number to another, as in gpu-[01:04]; {fix}"
    if error.validator == "pattern":
        return broken_rule(error.schema["patternErrorMessage"], value)
    if error.validator in {"minimum", "maximum"}:
        return f"expected a number from {error.schema['minimum']} to {error.schema['maximum']}, got {value}"
    if error.validator == "maxLength":
        return f"has {len(value)} characters; {limit} is the maximum"
    if error.validator == "minLength":
        return "is empty; give it a value or remove the line"
    if error.validator == "minProperties":
        if "properties" not in error.schema:
            return "is empty; give it an entry or remove it"
        return f"is empty; it needs at least one of {join(error.schema['properties'], 'or')}"
    return str(error.message)


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
