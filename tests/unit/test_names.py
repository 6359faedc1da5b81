"""Names say what they hold: some that fit everything are in no module."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
VALUES = {"one", "found"}  # `one` of what?
PRODUCT = {*VALUES, "wish", "wished", "tell", "told"}
FUNCTIONS = {"made", "given", "aimed"}
# Strings and comments; a file that has none of the words outside of them needs no parser.
TEXTS = re.compile(r'""".*?"""|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL)


def names(tree: ast.AST, values: set[str], functions: set[str]) -> dict[str, int]:
    """Forbidden variables, parameters, fields and functions, each with a line."""
    return {
        name: getattr(node, "lineno", 0)
        for node in ast.walk(tree)
        for name, forbidden in (
            (getattr(node, "id", None), values),  # ast.Name
            (
                node.attr if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) else "",
                values,
            ),
            (getattr(node, "arg", None), values),  # of a function, or of a call
            (getattr(node, "asname", None), values),  # of an import
            (
                getattr(node, "name", None),
                values | functions,
            ),  # def, class, `as` of an exception or a pattern
        )
        if name and name.lstrip("_") in forbidden
    }


ROOMS = sorted(f"gpunode/{path.name}" for path in (ROOT / "gpunode").iterdir() if path.name != "__pycache__")


@pytest.mark.parametrize("room", ["bench", "tests", *ROOMS])
def test_no_name_fits_everything(room: str):
    product = room.startswith("gpunode")
    values, functions = (PRODUCT, FUNCTIONS) if product else (VALUES, set[str]())
    paths = [ROOT / room] if room.endswith(".py") else (ROOT / room).rglob("*.py")
    words = re.compile(rf"\b_*(?:{'|'.join(values | functions)})\b")
    texts = {path: path.read_text() for path in paths if "_pb2" not in path.name}
    seen = {
        str(path.relative_to(ROOT)): names(ast.parse(text), values, functions)
        for path, text in texts.items()
        if words.search(TEXTS.sub("", text))
    }
    assert {path: bad for path, bad in seen.items() if bad} == {}
