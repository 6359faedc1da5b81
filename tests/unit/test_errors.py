"""The tree of errors in errors.py's docstring."""

from __future__ import annotations

import pkgutil
import re
from importlib import import_module

import gpunode
from gpunode import errors


def tree(error: type[errors.GpunodeError]) -> dict[str, int]:
    """Every error below this one, with its exit code."""
    found = {error.__name__: error.exit_code}
    for below in error.__subclasses__():
        found |= tree(below)
    return found


def test_the_tree_lists_every_error_with_its_exit_code() -> None:
    """A reader of errors.py sees all of them, wherever they are defined."""
    for module in pkgutil.walk_packages(gpunode.__path__, "gpunode."):
        if not module.name.startswith(
            ("gpunode.deviceplugin", "gpunode.share", "gpunode.agent", "gpunode.__main__")
        ):
            import_module(module.name)
    listed = re.findall(r"^ +[+-] (\w+) +(\d)  ", errors.__doc__ or "", re.MULTILINE)

    assert {name: int(code) for name, code in listed} == {
        name: code for name, code in tree(errors.GpunodeError).items() if name != "GpunodeError"
    }
