"""The schema, its descriptions for editors, and docs/inventory.md say the same."""

import re
from pathlib import Path
from typing import Any

import pytest
from jsonschema.validators import Draft202012Validator

from gpunode import inventory
from gpunode.inventory.validation import schema

ROOT = Path(__file__).parents[2]
VARIABLES = schema()["properties"]["defaults"]["properties"]


def keys(part: dict[str, Any], prefix: str = "") -> set[str]:
    """Every key below a part of the schema, dotted."""
    names = set()
    for name, inner in part.get("properties", {}).items():
        whole = schema()["$defs"][inner["$ref"].rsplit("/", 1)[1]] if "$ref" in inner else inner
        names |= {prefix + name, *keys(whole, f"{prefix}{name}.")}
    return names


def test_the_schema_is_valid_itself():
    """Against its own draft."""
    Draft202012Validator.check_schema(schema())


def test_defaults_groups_and_hosts_take_the_same_variables():
    """A variable that is added in one place only would be a trap."""
    group = schema()["properties"]["groups"]["additionalProperties"]["properties"]
    host = schema()["$defs"]["host"]["properties"]
    assert {name: part for name, part in group.items() if name != "hosts"} == VARIABLES
    assert {
        name: part for name, part in host.items() if name not in {"name", "address", "node", "control_plane"}
    } == VARIABLES


def test_every_key_is_documented_and_nothing_else_is():
    """The first column of the tables in docs/inventory.md against the schema."""
    text = (ROOT / "docs/inventory.md").read_text()
    documented = re.findall(r"^\| `([^`]+)` \|", text, flags=re.MULTILINE)
    top = keys(schema()) - {f"defaults.{name}" for name in keys({"properties": VARIABLES})}
    host = {"name", "address", "node", "control_plane"}
    expected = top | {"groups.<name>.hosts"} | host | keys({"properties": VARIABLES})
    assert sorted(documented) == sorted(expected)


def test_every_key_explains_itself_in_an_editor():
    """Each property has a description, each pattern its rule in words."""

    def check(part: object, name: str) -> None:
        if isinstance(part, dict):
            if "pattern" in part:
                assert "patternErrorMessage" in part, name
            for key, inner in part.get("properties", {}).items():
                assert "description" in inner or "$ref" in inner, key
            for key, inner in part.items():
                check(inner, key)

    check(schema(), "")
    assert all("description" in part for part in schema()["$defs"].values())


STARTER = (ROOT / "docs/inventory.md").read_text().split("```yaml\n")[1].split("```")[0]
EXAMPLES = {path.stem: path.read_text() for path in sorted((ROOT / "inventories").iterdir())}


@pytest.mark.parametrize("text", [STARTER, *EXAMPLES.values()], ids=["starter", *EXAMPLES])
def test_an_example_does_the_whole_job(tmp_path, text: str):
    """A copy of it deploys the device plugin and verifies, and says where driver and toolkit come from."""
    path = tmp_path / "inventory.yaml"
    path.write_text(text)
    assert inventory.load(path, keys=False).cluster.plugin is not None
    assert "repositories" in text
