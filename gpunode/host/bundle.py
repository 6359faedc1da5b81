"""The agent as one text: its package, every `on_host` of the links, packages and engine, and a loader that imports them from it."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PATTERNS = ("agent/*.py", "**/on_host.py", "**/on_host/*.py")
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
from gpunode.engine.on_host.jobs import detached, main
if __name__ == "__main__":
    detached(*sys.argv[1:])
'''


@functools.cache
def sources() -> Mapping[str, str]:
    """The text of every module that is sent, by name; packages are empty."""
    paths = sorted({path for pattern in PATTERNS for path in ROOT.glob(pattern)})
    sent = {
        ".".join(("gpunode", *path.relative_to(ROOT).with_suffix("").parts)): bare(
            path.read_text(encoding="utf-8")
        )
        for path in paths
        if path.name != "__init__.py"
    }
    return {**dict.fromkeys(packages(sent), ""), **sent}


def packages(names: Iterable[str]) -> tuple[str, ...]:
    """The packages that these modules are in, outermost first."""
    parts = [name.split(".") for name in names]
    return tuple(sorted({".".join(part[:depth]) for part in parts for depth in range(1, len(part))}))


def bare(text: str) -> str:
    """A module without its docstrings; every statement keeps its line."""
    return DOCSTRING.sub(lambda found: found[1] + '""' + "\n" * found[0].count("\n"), text)


@functools.cache
def program() -> str:
    """The text, run as a file with a verb and a run's name, or executed for its `main(program, job)`."""
    texts = dict(sources())
    return LOADER.format(sources=texts, packages=tuple(name for name, text in texts.items() if not text))
