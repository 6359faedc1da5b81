"""What gpunode finds wrong with an inventory is what the library for JSON Schema finds."""

import copy
import json
import random
from collections.abc import Iterator
from typing import Any

from jsonschema.validators import Draft202012Validator, extend

from gpunode.inventory.validation import RULES, mistakes, schema

KINDS = Draft202012Validator.TYPE_CHECKER.redefine("integer", lambda _, value: type(value) is int)
LIBRARY = extend(Draft202012Validator, type_checker=KINDS)(schema())
VALUES: list[Any] = [
    None,
    True,
    0,
    -1,
    1.5,
    22.0,
    70000,
    "",
    "a b",
    "x" * 300,
    "gpu-[1:3]",
    [],
    ["a", 1],
    {},
    {"a": {}},
]
WHOLE: dict[str, Any] = {
    "version": 1,
    "defaults": {"ssh": {"user": "ops", "port": 22, "timeout": 5}, "driver": "580", "sudo": True},
    "groups": {
        "gpu": {"hosts": ["a", {"name": "b", "address": "10.0.0.2"}], "labels": {"x/y": "z"}},
        "none": {"hosts": ["c"]},
    },
    "cluster": {
        "plugin": {"image": "registry.example.org/plugin:1", "configs": {"a": "a.yaml"}},
        "kubeconfig": "k",
    },
}


def test_every_rule_of_the_schema_is_known():
    """One that is not would be kept by every value."""
    words = {"$schema", "$defs", "$ref", "title", "description", "examples", "default", "patternErrorMessage"}
    keys = {"properties", "additionalProperties", "propertyNames", "items"}

    def rules(part: dict[str, Any]) -> Iterator[str]:
        yield from part
        for named in ("properties", "$defs"):
            for inner in part.get(named, {}).values():
                yield from rules(inner)
        for inner in (part.get("additionalProperties"), part.get("propertyNames"), part.get("items")):
            yield from rules(inner) if isinstance(inner, dict) else ()

    assert set(rules(schema())) <= words | keys | RULES.keys()


def test_mistakes_are_those_of_the_library():
    """Of a whole inventory with one to three values replaced, put elsewhere or left out."""
    draw = random.Random(26)
    seen = set()
    for _ in range(400):
        data = copy.deepcopy(WHOLE)
        for _ in range(draw.randint(1, 3)):
            damage(data, draw)
        expected = [
            (
                list(each.absolute_path),
                each.validator,
                each.instance,
                each.schema,
                "propertyNames" in each.absolute_schema_path,
            )
            for each in LIBRARY.iter_errors(data)
        ]
        messages = [
            (list(each.where), each.rule, each.value, each.schema, each.named)
            for each in mistakes(data, schema())
        ]
        assert sorted(map(text, messages)) == sorted({text(each) for each in expected}), data
        seen |= {each[1] for each in messages}
    assert seen == RULES.keys() | {"additionalProperties"}


def text(value: Any) -> str:
    return json.dumps(value)


def damage(data: Any, draw: random.Random) -> None:
    """Replace, add or leave out a value somewhere."""
    while isinstance(data, (dict, list)) and data:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        key = draw.choice(keys)
        if draw.random() < 0.4:
            way = draw.random()
            if way < 0.2 and isinstance(data, dict):
                del data[key]
            elif way < 0.5 and isinstance(data, dict):
                data[draw.choice(["ssh", "work", "label s", "image", "archive", "mig"])] = draw.choice(VALUES)
            else:
                data[key] = draw.choice(VALUES)
            return
        data = data[key]
