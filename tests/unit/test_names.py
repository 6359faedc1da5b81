"""Names say what they hold: some that fit everything are in no module of the product."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

GPUNODE = Path(__file__).parents[2] / "gpunode"
VALUES = {"one", "found", "wish", "wished", "tell", "told"}  # `one` of what?
FUNCTIONS = {*VALUES, "made", "given", "aimed"}


def names(tree: ast.AST) -> dict[str, int]:
    """Forbidden variables, parameters and functions, each with a line."""
    return {
        name: getattr(node, "lineno", 0)
        for node in ast.walk(tree)
        for name, forbidden in (
            (getattr(node, "id", None), VALUES),  # ast.Name
            (getattr(node, "arg", None), VALUES),  # of a function, or of a call
            (getattr(node, "name", None), FUNCTIONS),  # def, class, `as` of an exception or a pattern
        )
        if name and name.lstrip("_") in forbidden
    }


@pytest.mark.parametrize(
    "room", sorted(path.name for path in GPUNODE.iterdir() if path.name != "__pycache__")
)
def test_no_name_fits_everything(room: str) -> None:
    paths = [GPUNODE / room] if room.endswith(".py") else (GPUNODE / room).rglob("*.py")
    seen = {
        str(path.relative_to(GPUNODE)): names(ast.parse(path.read_text()))
        for path in paths
        if "_pb2" not in path.name
    }
    assert {path: found for path, found in seen.items() if found} == {}
