"""The measurements on a real GPU. Needs pytest, the driver and nothing of the CLI: `pytest --noconftest -m gpu tests/accept/test_gpu.py`."""

import dataclasses
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.accept import tools
from gpunode.accept.stages import Bench
from gpunode.contract import measurements
from gpunode.deviceplugin import cuda
from gpunode.deviceplugin.cuda import BLOCKING_SYNC, Cuda, CudaError

pytestmark = pytest.mark.gpu
ROOT = Path(__file__).parents[2]


@pytest.fixture
def bench() -> Iterator[Bench]:
    driver = Cuda(cuda.load())
    device = driver.devices()[0]
    with driver.on(device, BLOCKING_SYNC):
        yield Bench(driver, device)


@pytest.mark.parametrize("level", ["quick", "standard"])
def test_a_whole_run(level, record_property):
    """Every GPU has every figure, or the reason why not; nothing is wrong with any."""
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "gpunode.accept", "--level", level],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    took = time.monotonic() - began
    print(done.stderr, done.stdout)
    assert done.returncode == 0, done.stderr
    document = measurements.loads(done.stdout.splitlines()[-1])
    record_property("measurements", done.stdout.splitlines()[-1])
    print(json.dumps(measurements.as_json(document), indent=1))
    assert document.gpus
    for gpu in document.gpus:
        assert gpu.error is None
        for name in (
            "to_device_gbps",
            "from_device_gbps",
            "memory_gbps",
            "compute_tflops",
            "memory_tested_mib",
        ):
            assert getattr(gpu.measured, name), f"{name}: {gpu.not_measured.get(name)}"
        assert gpu.measured.memory_errors == gpu.measured.compute_errors == 0
    assert took < {"quick": 30, "standard": 180}[level]


@pytest.mark.parametrize("name", tools.PROGRAMS)
def test_what_nvidias_own_program_prints_is_read(name, monkeypatch):
    """On all GPUs that nvidia-smi lists, be it one alone, between which no bandwidth is."""
    program = dataclasses.replace(tools.PROGRAMS[name], least=1)
    if not shutil.which(program.command[0]):
        pytest.skip(f"{program.command[0]} is not installed")
    monkeypatch.setattr(tools, "PROGRAMS", {name: program})
    query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
    uuids = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
    done, reasons = tools.run(uuids, print)
    print(done, reasons)
    assert done[name].passed, reasons
    assert done[name].figures


def test_transfers(bench):
    """The link carries something, both ways."""
    figures = bench.transfers(1)
    print(figures)
    assert figures["to_device_gbps"] > 0.2
    assert figures["from_device_gbps"] > 0.2


def test_bandwidth(bench):
    """The copy is right, and faster than a link."""
    figures = bench.bandwidth(0.5)
    print(figures)
    assert figures["memory_gbps"] > 10
    assert figures["memory_errors"] == 0


def test_pattern(bench):
    """The memory holds what was written, in most of it."""
    free, _ = bench.cuda.free_memory()
    began = time.monotonic()
    figures = bench.pattern(3, 1)
    print(figures, f"of {free >> 20} MiB free, in {time.monotonic() - began:.1f} s")
    assert figures["memory_errors"] == 0
    assert 0 < figures["memory_tested_mib"] <= (free >> 20) - 512
    assert bench.cuda.free_memory()[0] == pytest.approx(free, abs=64 << 20)


def test_compute(bench):
    """Every result is the expected one, bit by bit."""
    figures = bench.compute(4)
    print(figures)
    assert figures["compute_errors"] == 0
    assert figures["compute_tflops"] > 0.1


def test_what_does_not_compile_is_readable(bench):
    """With the compiler's own line."""
    with pytest.raises(CudaError, match="cuModuleLoadDataEx: CUDA_ERROR_") as caught:
        bench.cuda.kernels(
            b".version 6.0\n.target sm_50\n.address_size 64\n.visible .entry x() { nonsense; }\n"
        )
    print(caught.value)
    assert "nonsense" in str(caught.value) or "line 4" in str(caught.value)
