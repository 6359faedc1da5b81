"""YAML tables of compatibility, each beside the module that reads it; each fact in them has its source."""

import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, cast

import yaml

from gpunode.once import Once

LATEST = 10_000  # stands for "no last branch"


@Once
def table(package: str, path: str) -> Mapping[str, Any]:
    """The table at `path` below a package's folder, read once."""
    return cast("Mapping[str, Any]", _parse(_read(package, path)))


def entry(package: str, path: str, code: str) -> Mapping[str, Any] | None:
    """The entry of a list of them that begins with this code. It is parsed alone: a large table takes a tenth of a plan."""
    text = _entries(package, path).get(code)
    return cast("Mapping[str, Any]", _parse(text)[0]) if text else None


@Once
def _entries(package: str, path: str) -> Mapping[str, str]:
    """The texts of a list's entries by their codes."""
    entries = re.finditer(r"^- code: (.+)\n(?: .*\n)*", _read(package, path), re.MULTILINE)
    return {match[1]: match[0] for match in entries}


def _read(package: str, path: str) -> str:
    return files(package).joinpath(path).read_text(encoding="utf-8")


def _parse(text: str) -> Any:
    return yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader either way
