"""The YAML tables beside this file, read once."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, cast

import yaml

LATEST = 10_000  # stands for "no last branch"


@cache
def table(name: str) -> Mapping[str, Any]:
    """The table `name`.yaml."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    text = files(__package__).joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return cast("Mapping[str, Any]", yaml.load(text, loader))  # noqa: S506 - a safe loader either way
