"""Cases that are plain values: a YAML file a table, a row a test."""

from pathlib import Path
from typing import Any

import pytest
import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # five times as fast; the wheels have it


def read(name: str) -> Any:
    """The rows of tests/tables/NAME.yaml."""
    return yaml.load((Path(__file__).parent / f"{name}.yaml").read_text(encoding="utf-8"), LOADER)


def rows(table: str, **defaults: Any) -> pytest.MarkDecorator:
    """Runs a test for each row: a key is an argument, in `defaults` where rows lack it. `case` names a row, and is none. Raises
    ValueError for a row that has other keys than the first."""
    cases = [defaults | row for row in read(table)]
    arguments = [key for key in cases[0] if key != "case"]
    for case in cases:
        if case.keys() - {"case"} != set(arguments):
            raise ValueError(f"{table}.yaml: {case} has other keys than {arguments}")
    values = [[case[key] for key in arguments] for case in cases]
    return pytest.mark.parametrize(arguments, values, ids=[case.get("case") for case in cases])
