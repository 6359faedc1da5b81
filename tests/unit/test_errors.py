"""The tree of errors in errors.py's docstring, which is the whole tree."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import gpunode
from gpunode import errors


def tree(error: type[errors.GpunodeError]) -> dict[str, int]:
    """Every error below this one, with its exit code."""
    found = {error.__name__: error.exit_code}
    for below in error.__subclasses__():
        found |= tree(below)
    return found


# What travels or ships alone raises errors of its own, and so do stand-ins; none leaves its room.
OWN = ("accept", "contract", "deviceplugin", "share", "sim", "agent", "on_host")


def test_the_tree_lists_every_error_with_its_exit_code() -> None:
    """A reader of errors.py sees all of them."""
    listed = re.findall(r"^ +[+-] (\w+) +(\d)  ", errors.__doc__ or "", re.MULTILINE)
    assert {name: int(code) for name, code in listed} == {
        name: code for name, code in tree(errors.GpunodeError).items() if name != "GpunodeError"
    }
    assert len(listed) < 25


def test_errors_are_defined_in_one_module() -> None:
    """One vocabulary: a caller finds what it may catch in errors.py."""
    known = {*tree(errors.GpunodeError)}
    package = Path(gpunode.__file__).parent
    elsewhere = [
        f"{path.relative_to(package)}: {node.name}"
        for path in package.rglob("*.py")
        if path.name not in ("errors.py", "on_host.py") and not {*path.relative_to(package).parts} & {*OWN}
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ClassDef) and any(_raised(base, known) for base in node.bases)
    ]
    assert elsewhere == []


def _raised(base: ast.expr, known: set[str]) -> bool:
    """Whether a class of this base is an error: also of a library's."""
    name = ast.unparse(base).rpartition(".")[2]
    return name in known or re.search(r".Error$|Exception$", name) is not None
