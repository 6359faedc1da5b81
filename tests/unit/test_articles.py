"""docs/articles.md: a row for each procedure, each with a test, a case, a command or a key that exists."""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import chain
from pathlib import Path

import typer.main

from gpunode.cli import app
from gpunode.inventory.validation import schema
from tests import cases, reference
from tests.unit.test_inventory_docs import VARIABLES

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/articles.md").read_text()
CLASSES = ("real part", "simulation", "table", "not yet")
SIMULATED = ("tests/sim/", "tests/unit/cluster/test_old_api.py")
tree_of = cache(typer.main.get_command)
KEYS = {key.strip("`") for part in (schema(), {"properties": VARIABLES}) for key, *_ in reference.keys(part)}

CASES = {
    name
    for path in cases.FOLDER.rglob("*.yaml")
    for name in re.findall(r"(?m)^- name: (.+)$", path.read_text())
}


@dataclass(frozen=True)
class Row:
    """A procedure: in words, what of gpunode does it, how that is proven, and by what."""

    procedure: str
    gpunode: str
    proof: str
    shown: str


def cells(line: str) -> list[str]:
    """Of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split(" | ")]


def tables() -> Iterator[tuple[str, list[Row]]]:
    """Each article's title and rows."""
    for section in TEXT.split("\n## ")[1:]:
        lines = [line for line in section.splitlines() if line.startswith("| ")]
        yield section.splitlines()[0], [Row(*cells(line)) for line in lines[1:]]


ARTICLES = dict(tables())
ROWS = list(chain(*ARTICLES.values()))


@cache
def named_in(path: str) -> set[str]:
    """The names of a module's tests."""
    return {
        node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)
    }


def options(words: list[str]) -> tuple[set[str], set[str]]:
    """Those that a line gives to its command, and those that the command has."""
    command = tree_of(app)
    while children := getattr(command, "commands", None):
        command, words = children[words[0]], words[1:]
    return set(words), {option for param in command.params for option in (*param.opts, *param.secondary_opts)}


def test_the_totals_are_those_of_the_rows():
    """For each article and for all."""
    lines = TEXT.split("\n## ")[0].splitlines()
    told = [cells(line) for line in lines if line.startswith("| ")][1:]
    counted = [(f"[{title}]", rows) for title, rows in ARTICLES.items()] + [("all", ROWS)]
    for (name, *numbers), (title, rows) in zip(told, counted, strict=True):
        proofs = Counter(row.proof for row in rows)
        assert name.startswith(title)
        assert [int(number) for number in numbers] == [*(proofs[option] for option in CLASSES), len(rows)]


def test_what_shows_a_procedure_exists():
    """Tests by their names, cases by theirs; a row that is proven has one."""
    for row in ROWS:
        named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row.shown)
        assert row.proof in CLASSES, row
        assert named or row.proof == "not yet", row
        assert [name for path, name in named if name not in named_in(path)] == [], row
        assert set(re.findall(r'case "([^"]+)"', row.shown)) <= CASES, row
        if row.proof == "real part":
            assert named[0][0].startswith("tests/lab/") or "as_real" in named[0][0], row
        if row.proof == "simulation":
            assert named[0][0].startswith(SIMULATED), row


def test_commands_and_keys_of_a_procedure_exist():
    """Commands with their options, keys with values of the inventory."""
    for row in ROWS:
        spans = re.findall(r"`([^`]+)`", row.gpunode)
        assert ", ".join(f"`{span}`" for span in spans) == row.gpunode.removeprefix("none"), row
        assert spans or row.proof == "not yet", row
        for span in spans:
            first, *words = span.split()
            if first == "gpunode":
                given, there = options(words)
                assert given <= there, row
            else:
                assert first.rstrip(":") in KEYS, row
