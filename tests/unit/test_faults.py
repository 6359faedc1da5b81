"""bench/faults.yaml names places that are there: a fault that fits nothing proves nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FAULTS = yaml.safe_load((ROOT / "bench/faults.yaml").read_text())


@pytest.mark.parametrize("fault", FAULTS, ids=[fault["id"] for fault in FAULTS])
def test_a_fault_fits_its_file_once_and_names_a_test(fault: dict[str, str]) -> None:
    assert (ROOT / fault["file"]).read_text().count(fault["text"]) == 1
    module, _, name = fault["tests"].partition("::")
    assert f"def {name.partition('[')[0]}" in (ROOT / module).read_text()
