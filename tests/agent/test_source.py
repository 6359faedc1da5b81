"""The agent's source fits the oldest host: Python 3.6, the standard library, one text."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import gpunode.agent
from gpunode.agent import bundle
from gpunode.agent.failures import Failure

FOLDER = Path(gpunode.agent.__file__).parent
PROGRAM = "the program"
TREES = {
    name: ast.parse(text, feature_version=(3, 6))
    for name, text in {PROGRAM: bundle.program(), **bundle.sources()}.items()
}
NEWER_ARGUMENTS = {"capture_output", "text", "missing_ok", "dirs_exist_ok", "strict", "cancel_futures"}
NEWER_NAMES = {
    "removeprefix",
    "removesuffix",
    "walrus",
    "prod",
    "cache",
    "cached_property",
    "TypedDict",
    "Protocol",
}
NEWER_NAMES |= {
    "Literal",
    "Final",
    "shlex_join",
    "monotonic_ns",
    "time_ns",
    "fromisoformat",
    "dataclass",
    "get_running_loop",
}
every_text = pytest.mark.parametrize("tree", TREES.values(), ids=TREES)


def test_every_module_is_sent_but_the_one_that_puts_them_together() -> None:
    """The same code at the same places, so that a traceback is right. Docstrings stay behind."""
    files = {path.stem: path.read_text() for path in FOLDER.glob("*.py")}
    del files["bundle"], files["__init__"]
    assert set(bundle.sources()) == {"gpunode", "gpunode.agent", *(f"gpunode.agent.{name}" for name in files)}
    for name, text in files.items():
        sent = bundle.sources()[f"gpunode.agent.{name}"]
        (ours, texts), (theirs, none) = (undocumented(ast.parse(each)) for each in (text, sent))
        assert ast.dump(theirs, include_attributes=True) == ast.dump(ours, include_attributes=True)
        assert texts
        assert set(none) == {""}


def undocumented(tree: ast.Module) -> tuple[ast.Module, list[str]]:
    """Without its docstrings, and they."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            match node.body[0]:
                case ast.Expr(ast.Constant(str(text))):
                    found.append(text)
                    del node.body[0]
    return tree, found


@every_text
def test_only_the_standard_library_is_imported(tree: ast.Module) -> None:
    """The host has nothing else but the modules that are sent."""
    names = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    own = {
        f"{node.module}.{alias.name}"
        for node in froms
        if node.module == "gpunode.agent"
        for alias in node.names
    }
    names |= {str(node.module) for node in froms if node.module != "gpunode.agent"}
    sent = set(bundle.sources())
    assert own <= sent
    assert "__future__" not in names
    assert {name.partition(".")[0] for name in names - sent} <= set(sys.stdlib_module_names)


@every_text
def test_annotations_are_those_that_python_3_6_evaluates(tree: ast.Module) -> None:
    """`list[str]` and `str | None` fail there when the function is defined."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            found += [node.lineno] * (node.value.id in {"list", "dict", "tuple", "set", "frozenset", "type"})
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = (node.left, node.right)
            found += [node.lineno for side in sides if isinstance(side, ast.Constant) and side.value is None]
    assert found == []


@every_text
def test_no_newer_names_or_arguments_are_used(tree: ast.Module) -> None:
    """What a syntax check cannot see."""
    arguments = {
        keyword.arg for node in ast.walk(tree) if isinstance(node, ast.Call) for keyword in node.keywords
    }
    names = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert not arguments & NEWER_ARGUMENTS
    assert not names & NEWER_NAMES


def test_a_traceback_on_a_host_names_the_file_and_line_of_the_repository(tmp_path: Path) -> None:
    """Of an uncaught mistake, too; the file is not there."""
    stored = tmp_path / "agent.py"
    stored.write_text(bundle.program())
    done = subprocess.run(
        [sys.executable, "-I", "-S", stored, "work", "run1"],
        env={"GPUNODE_ROOT": str(tmp_path), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (FOLDER / "jobs.py").read_text().splitlines()
    number, line = next((number, line) for number, line in enumerate(lines, 1) if "crash = os.open" in line)
    assert f'File "gpunode/agent/jobs.py", line {number}, in detached\n    {line.strip()}' in done.stderr


def test_a_failure_without_a_hint_is_a_mistake() -> None:
    """A code without one would leave the user with the cause alone."""
    with pytest.raises(ValueError, match="no-such-code"):
        Failure("no-such-code", "something failed")
