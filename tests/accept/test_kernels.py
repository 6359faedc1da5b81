"""The kernels on the stand-in driver, which runs them instruction by instruction: right ones pass, and each wrong one is seen."""

import json
import re
import shutil
import struct
import subprocess
from fractions import Fraction

import pytest

from gpunode.accept.kernels import ADDEND, PTX, RESULTS, STARTS, STEPS
from tests import tables

from . import stand_in
from .stand_in import StandIn

# The stages at sizes that take a moment, with the kernels as they are or one line of them replaced.
PROGRAM = """
import json, sys
from gpunode.accept import kernels, stages
from gpunode.deviceplugin.cuda import Cuda, CudaError, load
old, new, times = json.loads(sys.argv[1])
assert not old or old.encode() in stages.PTX, old
ptx = stages.PTX.replace(old.encode(), new.encode(), times)
stages.PTX, stages.SHORT, stages.TURN_SECONDS = ptx, 0, 0.002
cuda = Cuda(load())
device = cuda.devices()[0]
with cuda.on(device):
    try:
        bench = stages.Bench(cuda, device)
        figures = {}
        for stage, values in json.loads(sys.argv[2]).items():
            for name, value in getattr(bench, stage)(*values).items():
                figures[name] = figures.get(name, 0) + value
        print(json.dumps(figures))
    except CudaError as error:
        print(json.dumps({"error": str(error)}))
"""
ALL = '{"bandwidth": [0.01], "pattern": [0.02, 1], "compute": [0.02]}'


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> StandIn:
    made = stand_in.build(tmp_path_factory.mktemp("driver"))
    made.gpus({"model": "H100-SXM5-80GB"})
    return made


def play(driver: StandIn, old: str = "", new: str = "", times: int = -1, stages: str = ALL) -> dict:
    arguments = json.dumps([old, new, times])
    done = driver.run("-c", PROGRAM, arguments, stages)
    assert not done.returncode, done.stderr
    return json.loads(done.stdout)


def test_right_kernels_find_nothing_wrong(driver):
    """And what they measure is what the model can do."""
    figures = play(driver)
    assert (figures["memory_errors"], figures["compute_errors"]) == (0, 0)
    assert figures["memory_gbps"] == pytest.approx(5120 / 8 * 2619e6 * 2 * 0.9 / 1e9, rel=0.01)
    assert figures["compute_tflops"] == pytest.approx(16896 * 1980e6 * 2 * 0.9 / 1e12, rel=0.01)
    assert figures["memory_tested_mib"] > 0


@tables.rows("wrong-kernels", times=1)
def test_a_wrong_kernel_is_seen(driver, old, new, times, shows):
    """One line is enough."""
    figures = play(driver, old, new, times)
    assert figures.get(shows), figures


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        ("cvt.u64.u32 %wide, %thread;", "cvt.u64.u32 %wide, %none;", "unknown register %none"),
        ("xor.b64     %x, %x, %seed;", "xor.b32     %x, %x, %seed;", "register %x has another size"),
        ("fma.rn.f32  %x0", "fma.rz.f32  %x0", "unknown instruction: fma.rz.f32"),
        ("bra  TURN", "bra  NOWHERE", "no label NOWHERE"),
        ("[units]", "[unit]", "no parameter unit"),
    ],
)
def test_what_the_stand_in_does_not_know_does_not_compile(driver, old, new, line):
    """With the line, as the real compiler has it."""
    error = play(driver, old, new, 1)["error"]
    assert "CUDA_ERROR_INVALID_PTX" in error
    assert line in error


def test_a_stuck_cell_and_a_wrong_result_are_seen(driver):
    """One bit of a MiB, and one lane of a launch."""
    driver.set({"gpus.0.stuck": "4096 3"})
    assert play(driver)["memory_errors"] > 0
    driver.set({"gpus.0.stuck": "-1 -1", "gpus.0.flaky": 1})
    figures = play(driver)
    assert (figures["memory_errors"], figures["compute_errors"] > 0) == (0, True)
    driver.set({"gpus.0.flaky": 0})


def test_the_expected_results_are_those_of_exact_arithmetic():
    """float32 FMA by fractions, rounded to even once."""

    def exact(bits: int) -> Fraction:
        return Fraction(struct.unpack("<f", struct.pack("<I", bits))[0])

    def rounded(value: Fraction) -> Fraction:
        size = abs(value)
        exponent = size.numerator.bit_length() - size.denominator.bit_length()
        exponent -= Fraction(2) ** exponent > size
        unit = Fraction(2) ** (max(exponent, -126) - 23)
        return round(value / unit) * unit  # Fraction rounds halves to even

    for start, result in zip(STARTS, RESULTS, strict=True):
        x = exact(start)
        for _ in range(STEPS):
            x = rounded(x * x + exact(ADDEND)) if x else x
        assert x == exact(result)


def test_the_kernels_are_for_old_gpus_and_drivers_too():
    """Maxwell, and driver 384."""
    assert re.findall(rb"\.(?:version|target) (\S+)", PTX) == [b"6.0", b"sm_50"]


def test_nvidias_assembler_takes_the_kernels_for_every_generation(tmp_path):
    """Where it is installed (CUDA's ptxas); an older one does not know the newest GPUs."""
    if not shutil.which("ptxas"):
        pytest.skip("no ptxas of CUDA on the PATH")
    (tmp_path / "kernels.ptx").write_bytes(PTX)
    known = subprocess.run(["ptxas", "--help"], capture_output=True, text=True, check=True).stdout
    made = 0
    for target in (50, 52, 60, 61, 70, 75, 80, 86, 89, 90, 100, 103, 120, 121):
        if f"sm_{target}" in known:
            subprocess.run(
                ["ptxas", f"-arch=sm_{target}", "kernels.ptx", "-o", "kernels.cubin"],
                cwd=tmp_path,
                check=True,
            )
            made += 1
    assert made
