"""What this machine cannot run is skipped, with the reason at the end of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.report.lines import Lines
from tests import jsonlines


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a real GPU and its driver."""
    if Path("/dev/nvidia0").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(
                pytest.mark.skip(reason="no NVIDIA GPU on this machine: /dev/nvidia0 is not there")
            )


@pytest.fixture(autouse=True, scope="session")
def _documented() -> None:
    """Every JSON line that a test's process writes is what docs/reference/json.md says of its kind."""
    written = Lines._write

    def write(self: Lines, line: dict[str, Any]) -> None:
        jsonlines.fits(json.loads(json.dumps(line, default=str)))
        written(self, line)

    Lines._write = write
