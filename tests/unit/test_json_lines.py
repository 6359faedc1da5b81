"""The kinds of JSON lines: what the code writes is what docs/reference/json.md says. tests/conftest.py compares every line that tests write."""

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tests import jsonlines
from tests.jsonlines import KINDS

ROOT = Path(__file__).parents[2]
ROOMS = {
    path: path.read_text()
    for room in ("cli", "commands", "engine")
    for path in (ROOT / "gpunode" / room).rglob("*.py")
}
BY_REPORT = {
    "outcome",
    "plan",
    "cluster",
    "link",
    "error",
    "note",
    "summary",
}  # as gpunode/report/lines.py makes them
HOST = {"host": "gpu-1", "status": "failed", "seconds": 1.5}


def calls(name: str) -> Iterator[tuple[Path, ast.Call]]:
    """Every call of a function or method of this name."""
    for path, text in ROOMS.items():
        for node in ast.walk(ast.parse(text)) if f"{name}(" in text else ():
            if isinstance(node, ast.Call) and name == getattr(
                node.func, "attr", getattr(node.func, "id", "")
            ):
                yield path, node


def tables() -> Iterator[tuple[str, tuple[str, ...]]]:
    """Kind and columns of each table that a command reports."""
    for path, call in calls("rows"):
        if isinstance(call.args[0], ast.Constant):
            name = ".".join(path.relative_to(ROOT).with_suffix("").parts)
            module = import_module(name.removesuffix(".__init__"))
            columns = eval(compile(ast.Expression(call.args[1]), str(path), "eval"), vars(module).copy())
            yield call.args[0].value, tuple(name.lower().replace(" ", "_") for name in columns)


def test_a_table_has_the_keys_of_its_kind():
    for kind, columns in set(tables()):
        keys = KINDS[kind]["keys"]
        assert set(columns) - {key.rstrip("?") for key in keys} == set(), kind
        assert {key for key in keys if not key.endswith("?")} - set(columns) == set(), kind


def test_every_kind_is_written_by_somebody():
    """And none is written that is not a kind."""
    events = {call.args[0].value for _, call in calls("Event") if isinstance(call.args[0], ast.Constant)}
    assert {kind for kind, _ in tables()} | events | BY_REPORT == set(KINDS)


def test_every_key_says_what_it_is():
    unclear = {"object", "list of objects"}  # by itself; the keys inside, or a sentence, say the rest
    for name, kind in KINDS.items():
        assert kind["is"].endswith(".")
        for key, words, meaning in jsonlines.keys(kind):
            assert meaning or words not in unclear, f"{name}: {key}"


@pytest.mark.parametrize(
    ("line", "wrong"),
    [
        ({"type": "outcome", **HOST}, ""),
        ({"type": "outcome", **HOST, "code": "disk-full"}, ""),
        ({"type": "outcome", "host": "gpu-1", "status": "failed"}, "'seconds' is a required property"),
        ({"type": "outcome", **HOST, "colour": "red"}, "'colour' was unexpected"),
        ({"type": "outcome", **HOST, "seconds": "1"}, "seconds: '1' is not of type 'number'"),
        ({"type": "outcome", **HOST, "status": "fine"}, "'fine' is not one of"),
        ({"type": "plan", **HOST, "changes": [{"step": "x"}], "disturbs": None, "notes": []}, "changes.0: 'kind' is a"),
    ],
)  # fmt: skip
def test_a_line_that_is_not_as_documented_is_found(line: dict[str, object], wrong: str):
    if not wrong:
        jsonlines.fits(line)
        return
    with pytest.raises(AssertionError, match=wrong):
        jsonlines.fits(line)
