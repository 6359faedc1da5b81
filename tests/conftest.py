"""What this machine cannot run is skipped, with the reason at the end of the run."""

from __future__ import annotations

from pathlib import Path

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` need a real GPU and its driver."""
    if Path("/dev/nvidia0").exists():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(
                pytest.mark.skip(reason="no NVIDIA GPU on this machine: /dev/nvidia0 is not there")
            )
