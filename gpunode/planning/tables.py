"""YAML tables of compatibility, each beside the module that reads it; each fact in them has its source."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, cast

import yaml

from gpunode.once import Once

LATEST = 10_000  # stands for "no last branch"


@Once
def table(package: str, path: str) -> Mapping[str, Any]:
    """The table at `path` below a package's folder, read once."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files(package).joinpath(path).read_text(encoding="utf-8")
    return cast("Mapping[str, Any]", yaml.load(text, loader))  # noqa: S506 - a safe loader either way
