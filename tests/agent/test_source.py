"""The agent's source fits the oldest host: Python 3.6, the standard library, one file."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import gpunode.agent

SOURCE = Path(gpunode.agent.__file__).read_text()
TREE = ast.parse(SOURCE, feature_version=(3, 6))
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


def test_only_the_standard_library_is_imported() -> None:
    """The host has nothing else."""
    names = {alias.name for node in ast.walk(TREE) if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in ast.walk(TREE) if isinstance(node, ast.ImportFrom)}
    assert "__future__" not in names
    assert {name.partition(".")[0] for name in names} <= set(sys.stdlib_module_names)


def test_annotations_are_those_that_python_3_6_evaluates() -> None:
    """`list[str]` and `str | None` fail there when the function is defined."""
    found = []
    for node in ast.walk(TREE):
        if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
            found += [node.lineno] * (node.value.id in {"list", "dict", "tuple", "set", "frozenset", "type"})
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
            sides = (node.left, node.right)
            found += [node.lineno for side in sides if isinstance(side, ast.Constant) and side.value is None]
    assert found == []


def test_no_newer_names_or_arguments_are_used() -> None:
    """What a syntax check cannot see."""
    arguments = {
        keyword.arg for node in ast.walk(TREE) if isinstance(node, ast.Call) for keyword in node.keywords
    }
    names = {node.attr for node in ast.walk(TREE) if isinstance(node, ast.Attribute)}
    assert not arguments & NEWER_ARGUMENTS
    assert not names & NEWER_NAMES
