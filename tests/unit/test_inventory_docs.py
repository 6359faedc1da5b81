"""The schema, its descriptions, from which docs/reference/inventory.md is written, and the examples."""

from pathlib import Path

import pytest
from jsonschema.validators import Draft202012Validator

from gpunode import inventory
from gpunode.inventory.validation import schema

ROOT = Path(__file__).parents[2]
VARIABLES = schema()["properties"]["defaults"]["properties"]


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
