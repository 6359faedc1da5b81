"""YAML tables of compatibility, each beside the module that reads it; each fact in them has its source."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast

import yaml

LATEST = 10_000  # stands for "no last branch"
READING = threading.Lock()  # a cache alone would let the threads of all hosts read the same at the same time


def table(package: str, path: str) -> Mapping[str, Any]:
    """The table at `path` below a package's folder, read once."""
    with READING:
        return _read(package, path)


@cache
def _read(package: str, path: str) -> Mapping[str, Any]:
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files(package).joinpath(path).read_text(encoding="utf-8")
    return cast("Mapping[str, Any]", yaml.load(text, loader))  # noqa: S506 - a safe loader either way
