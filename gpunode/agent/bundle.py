"""The agent as one text: all other modules of this package, and a loader that imports them from it."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from importlib import resources

PACKAGE = "gpunode.agent"
DOCSTRING = re.compile(r'(?m)^( *)"""[^\n"](?s:.*?)"""$')
LOADER = '''\
"""gpunode's agent: SOURCES holds its modules by name, without their docstrings."""
import sys, traceback
from importlib.machinery import ModuleSpec
SOURCES = {sources}
class Modules:
    """Imports from SOURCES. A traceback names a module's file and shows its lines, though there is no such file."""
    def find_spec(self, name, path=None, target=None):
        if name in SOURCES:
            return ModuleSpec(name, self, is_package=name in {packages})
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        file = module.__name__.replace(".", "/") + ".py"
        exec(compile(SOURCES[module.__name__], file, "exec"), module.__dict__)
    def get_source(self, name):
        return SOURCES[name]
sys.meta_path.insert(0, Modules())
sys.excepthook = traceback.print_exception
from {package}.jobs import detached, main
if __name__ == "__main__":
    detached(*sys.argv[1:])
'''


@functools.cache
def sources() -> Mapping[str, str]:
    """The text of every module that is sent, by name; packages are empty."""
    files = {file.name: file for file in resources.files(PACKAGE).iterdir() if file.name.endswith(".py")}
    names = sorted(files.keys() - {"__init__.py", "bundle.py"})
    sent = {f"{PACKAGE}.{name[:-3]}": bare(files[name].read_text(encoding="utf-8")) for name in names}
    return {"gpunode": "", PACKAGE: "", **sent}


def bare(text: str) -> str:
    """A module without its docstrings; every statement keeps its line."""
    return DOCSTRING.sub(lambda found: found[1] + '""' + "\n" * found[0].count("\n"), text)


@functools.cache
def program() -> str:
    """The text, run as a file with a verb and a run's name, or executed for its `main(program, job)`."""
    return LOADER.format(sources=dict(sources()), packages=("gpunode", PACKAGE), package=PACKAGE)
