"""bench/faults.yaml names places that are there: a fault that fits nothing proves nothing."""

from pathlib import Path

import pytest
import yaml

from tests.unchanged import read_checkout

ROOT = Path(__file__).parents[2]


def test_each_fault_fits_its_file_once_and_names_a_test():
    for fault in yaml.safe_load((ROOT / "bench/faults.yaml").read_text()):
        assert (ROOT / fault["file"]).read_text().count(fault["text"]) == 1, fault["id"]
        module, _, name = fault["tests"].partition("::")
        assert f"def {name.partition('[')[0]}" in (ROOT / module).read_text(), fault["id"]


def test_a_fault_is_among_the_inputs_of_the_tests_that_catch_it():
    """So `make check` runs them again."""
    pytest.importorskip("grimp")
    checkout = read_checkout(ROOT.resolve())
    for fault in yaml.safe_load((ROOT / "bench/faults.yaml").read_text()):
        assert fault["file"] in checkout.inputs(fault["tests"].partition("::")[0]), fault["id"]
