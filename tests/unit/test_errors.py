"""The tree of errors in errors.py's docstring, which is the whole tree."""

import re
from pathlib import Path

import gpunode
from gpunode import errors


def tree(error: type[errors.GpunodeError]) -> dict[str, int]:
    """Every error below this one, with its exit code."""
    codes = {error.__name__: error.exit_code}
    for below in error.__subclasses__():
        codes |= tree(below)
    return codes


# What travels or ships alone raises errors of its own, and so do stand-ins; none leaves its room.
OWN = ("accept", "contract", "deviceplugin", "share", "sim", "agent", "on_host")


def test_the_tree_lists_every_error_with_its_exit_code():
    """A reader of errors.py sees all of them."""
    listed = re.findall(r"^ +[+-] (\w+) +(\d)  ", errors.__doc__ or "", re.MULTILINE)
    assert {name: int(code) for name, code in listed} == {
        name: code for name, code in tree(errors.GpunodeError).items() if name != "GpunodeError"
    }
    assert len(listed) < 25


def test_errors_are_defined_in_one_module():
    """One vocabulary: a caller finds what it may catch in errors.py."""
    known = {*tree(errors.GpunodeError)}
    package = Path(gpunode.__file__).parent
    elsewhere = [
        f"{path.relative_to(package)}: {name}"
        for path in package.rglob("*.py")
        if path.name not in ("errors.py", "on_host.py") and not {*path.relative_to(package).parts} & {*OWN}
        for name, bases in re.findall(r"^ *class (\w+)\(([^)]*)\)", path.read_text(), re.MULTILINE)
        if any(_raised(base, known) for base in re.findall(r"\w+", bases))
    ]
    assert elsewhere == []


def _raised(base: str, known: set[str]) -> bool:
    """Whether a class of this base is an error: also of a library's."""
    return base in known or re.search(r".Error$|Exception$", base) is not None
