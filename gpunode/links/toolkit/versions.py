"""The container toolkit's own units."""

from __future__ import annotations

import re
from collections.abc import Iterable

from gpunode.planning.tables import table


def refreshes(version: tuple[int, ...], modules: Iterable[str]) -> bool:
    """Whether this version's unit writes the CDI specification on a kernel with these files of the driver's module; of an unknown
    version (()) as the newest does. One before 1.18 has no such unit."""
    rows = [
        row
        for row in table(__package__, "toolkit.yaml")["refresh"]
        if not version or tuple(row["since"]) <= version
    ]
    return bool(rows) and any(re.search(rows[-1]["pattern"], f"/{file}:") for file in modules)


def default_version() -> str:
    """The version of the toolkit where the inventory names none."""
    return str(table(__package__, "toolkit.yaml")["version"])
