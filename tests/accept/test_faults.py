"""Faults of a GPU, put into the stand-in driver one by one: each shows in the figure that it should, and without it nothing does."""

import pytest

from gpunode.acceptance.judge import compare_fleet, judge
from gpunode.contract import measurements
from tests import tables

from . import stand_in
from .faults import FAULTS, HOSTS, LINKS, Fault, measure_all
from .stand_in import StandIn


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> StandIn:
    return stand_in.build(tmp_path_factory.mktemp("driver"))


OLD = {"ecc_corrected": 40, "ecc_uncorrected": 2, "nvlink_errors": 70}


@pytest.mark.parametrize(
    "facts", [{}, LINKS, {**LINKS, **OLD}], ids=["alone", "with NVLinks", "with old errors"]
)
def test_a_healthy_gpu_shows_none(driver, facts):
    """Of any fault in the table: errors of before the run are none of the run."""
    document = measure_all(driver, [Fault("", bool, facts)])
    (gpu,) = document.gpus
    assert gpu.error is None
    assert [fault.name for fault in FAULTS if fault.shows(gpu)] == []
    (judged,) = judge(document, compare_fleet([document]))
    assert (judged.problems, judged.remarks) == ((), ())
    assert measurements.loads(measurements.dumps(document)) == document


@pytest.mark.parametrize("faults", HOSTS, ids=lambda faults: faults[0].name)
def test_each_fault_shows(driver, faults):
    """In the document that the program would print, on a host whose other GPUs have other faults."""
    document = measure_all(driver, faults, grace=8 if "hangs" in faults[0].name else 60)
    measurements.dumps(document)
    seen = zip(faults, document.gpus, strict=True)
    assert {fault.name: gpu for fault, gpu in seen if not fault.shows(gpu)} == {}
    judged = zip(faults, judge(document, compare_fleet([document])), strict=True)
    named = {
        fault.name: [*(problem.code for problem in each.problems), *each.remarks] for fault, each in judged
    }
    called = tables.read("judged-faults")
    assert {name: names for name, names in named.items() if called[name] not in names} == {}


def test_the_others_go_on(driver):
    """While one GPU hangs with the bus in its hand. Its own figures up to then are kept."""
    hangs = Fault("", bool, {}, "transfers between host and GPU", {"cuda_hang": 1})
    first, second, third = measure_all(driver, [None, hangs, None], grace=8).gpus
    assert (first.error, third.error) == (None, None)
    assert first.measured.memory_errors == third.measured.memory_errors == 0
    assert first.measured.to_device_gbps
    assert third.measured.to_device_gbps
    assert second.error.code == "hangs"
    assert "transfers" in second.error.text
    assert second.measured.pcie_generation_max == 5
    assert second.not_measured["memory_gbps"].startswith("hangs: ")
