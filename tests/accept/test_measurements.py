"""The document of measurements: what is written is read, and what breaks its promises is refused."""

import json
from dataclasses import replace

import pytest

from gpunode.contract import measurements
from gpunode.contract.measurements import (
    FIGURES,
    Failure,
    Gpu,
    Measured,
    Measurements,
    RemappedRows,
    Tool,
    UnknownVersion,
)
from tests import tables

MEASURED = Measured(
    pcie_generation=5,
    to_device_gbps=54.1,
    memory_errors=0,
    throttle=("sw_power_cap",),
    remapped_rows=RemappedRows(0, 1, pending=False, failed=False),
    fabric="completed",
)
REASONS = {name: "not asked" for name in FIGURES if getattr(MEASURED, name) is None}
H100 = Gpu(
    "GPU-1",
    "NVIDIA H100 80GB HBM3",
    "0000:3b:00.0",
    "9.0",
    81559,
    "whole",
    19.8,
    measured=MEASURED,
    not_measured=REASONS,
)
DOCUMENT = Measurements(
    "quick",
    "580.159.04",
    "13.0",
    "6.1.0",
    21.4,
    (H100, replace(H100, uuid="GPU-2", error=Failure("hangs", "no answer for 20 s"))),
    {"dcgmi": Tool(True, 30.5, {"GPU-1 pcie": 1.5}, ("a line",))},
    {"nvbandwidth": "not installed", "nccl-tests": "not installed"},
)


def test_what_is_written_is_read():
    """As one line, without the figures that have no value; tools that did not run are null."""
    text = measurements.dumps(DOCUMENT)
    assert measurements.loads(text) == DOCUMENT
    document = json.loads(text)
    assert "\n" not in text
    assert set(document["gpus"][0]["measured"]) == set(FIGURES) - set(REASONS)
    assert document["tools"]["nvbandwidth"] is None


def test_a_later_writer_may_add_keys():
    """They are ignored, as long as the version is the same."""
    document = measurements.as_json(DOCUMENT)
    document["gpus"][0]["measured"]["tensor_tflops"] = 700.0
    document["gpus"][0]["more"] = document["more"] = 1
    assert measurements.from_json(document) == DOCUMENT


@tables.rows("measurements")
def test_a_broken_promise_is_an_error(path, value, message):
    """A figure in both places or in none would be read as good, or not at all."""
    document = measurements.as_json(DOCUMENT)
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(UnknownVersion if path == ("version",) else ValueError, match=message):
        measurements.from_json(json.loads(json.dumps(document)))


def test_silence_cannot_be_written():
    """A writer that forgot a reason fails here, not at its reader."""
    with pytest.raises(ValueError, match="pcie_width has neither"):
        measurements.dumps(replace(DOCUMENT, gpus=(replace(H100, not_measured={}),)))
