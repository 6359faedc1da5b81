"""What this machine cannot run is skipped, with the reason at the end of the run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpunode.report.lines import Lines
from tests import jsonlines

TESTS = Path(__file__).parent
# Files of `make check` that are begun first, so that in the end no process is busy for long while the others are not.
LONGEST = (
    "unit/test_ssh_as_real.py",
    "unit/test_ssh_parity.py",
    "agent/test_changes_services.py",
    "unit/test_release.py",
    "deviceplugin/test_mps_daemon.py",
    "agent/test_guard.py",
    "agent/test_outside.py",
    "agent/test_probe.py",
    "unit/test_cli.py",
    "unit/test_docs.py",
    "unit/test_cases.py",
    "agent/test_changes_packages.py",
    "unit/cluster/test_commands.py",
    "unit/test_cli_ends.py",
    "unit/cluster/test_plugin.py",
    "unit/cluster/test_bring_up.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest come first; tests marked `gpu` need a real GPU and its driver."""
    order = {TESTS / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(item.path, len(LONGEST)))
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
