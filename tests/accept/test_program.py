"""The program on the stand-in driver: what it measures, what it leaves alone, and how it ends."""

import io
import itertools
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpunode.accept.child import BUDGETS, START, Measuring, Report
from gpunode.accept.children import Children
from gpunode.contract import measurements
from gpunode.contract.measurements import FIGURES
from gpunode.deviceplugin.cuda import CudaError
from gpunode.deviceplugin.nvml import NVMLError

from . import stand_in
from .faults import LINKS, MAIN, MODEL, SHORT, measure_all
from .stand_in import StandIn

UUID = "GPU-00000000-0000-0000-0000-000000000000"
QUICK = f"""
import sys
from gpunode.accept import __main__ as program
run = program.run
child = [sys.executable, "-c", {SHORT + MAIN!r}]
program.run = lambda module, *words: [*child, *words] if module == "child" else run(module, *words)
sys.exit(program.main())
"""


@pytest.fixture(scope="module")
def driver(tmp_path_factory) -> StandIn:
    return stand_in.build(tmp_path_factory.mktemp("driver"))


def test_a_quick_run_prints_one_document(driver):
    """Its last line; progress is on stderr. A UUID that is not there is in the document, too."""
    driver.gpus(MODEL, MODEL)
    driver.set({f"gpus.0.{key}": value for key, value in LINKS.items()})
    done = driver.run("-c", QUICK, "--level", "quick", "--json", f"--gpus={driver.uuids[0]},{UUID}")
    assert done.returncode == 0, done.stderr
    (line,) = done.stdout.splitlines()
    document = measurements.loads(line)
    assert (document.level, document.driver, document.cuda) == ("quick", stand_in.VERSION, "13.0")
    assert document.kernel == os.uname().release
    assert document.seconds > 0  # at most 30 s on a GPU: test_gpu.py
    gpu, absent = document.gpus
    assert (gpu.uuid, gpu.error, gpu.shape, gpu.capability) == (driver.uuids[0], None, "whole", "9.0")
    assert gpu.not_measured == {}
    assert gpu.measured.nvlink_active == 18
    assert (absent.uuid, absent.error.code) == (UUID, "lost")
    assert set(absent.not_measured) == set(FIGURES)
    assert document.not_measured_tools["dcgmi"] == "the level is quick"
    assert f"{gpu.uuid}: compute\n" in done.stderr


def test_without_a_driver_it_cannot_begin(tmp_path):
    """Exit status 2, and the reason."""
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(stand_in.ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "gpunode.accept"], env=environment, capture_output=True, text=True, check=False
    )
    if Path("/dev/nvidia0").exists():
        pytest.skip("this machine has a driver")
    assert (done.returncode, done.stdout) == (2, "")
    assert "libcuda.so.1 cannot be loaded" in done.stderr


def test_mig_devices_are_measured_as_they_are_cut(driver):
    """Each by its own UUID and memory, at its part of the GPU's bandwidth."""
    document = measure_all(driver, gpu={**MODEL, "mig_layout": ["3g.40gb", "1g.10gb"]})
    large, small = document.gpus
    assert (large.shape, small.shape) == ("mig", "mig")
    assert (large.error, small.error) == (None, None)
    assert large.uuid.startswith("MIG-")
    assert large.name.endswith("MIG 3g.40gb")
    assert large.memory_mib > 3 * small.memory_mib > 0
    assert large.measured.memory_gbps > 3 * small.measured.memory_gbps
    assert large.measured.temperature_c == 34  # of the whole GPU


def test_a_share_is_measured_within_its_limit(driver):
    """By the memory that the driver shows this process, of which 512 MiB stay free."""
    cgroup = next(
        (line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")),
        "/",
    )
    key = 0xCBF29CE484222325
    for byte in f"/sys/fs/cgroup{cgroup}".encode():
        key = (key ^ byte) * 0x100000001B3 % 2**64
    if cgroup == "/":  # perhaps of a namespace, where the folder's own number is its name
        key = Path("/sys/fs/cgroup").stat().st_ino
    document = measure_all(driver, facts={f"gpus.0.limits.{key:x}": f"0,{600 << 20}"})
    (gpu,) = document.gpus
    assert (gpu.error, gpu.shape, gpu.memory_mib) == (None, "shared", 600)
    assert gpu.measured.memory_tested_mib <= 88


def test_a_client_of_mps_is_measured_within_a_limit_that_the_driver_does_not_show(driver, monkeypatch):
    """By what it gets."""
    monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", "/run/mps")
    (gpu,) = measure_all(driver, facts={"gpus.0.hidden_limit_mib": 96}).gpus
    assert (gpu.error, gpu.shape) == (None, "shared")
    assert gpu.measured.memory_gbps
    assert 0 < gpu.measured.memory_tested_mib < 96
    assert gpu.measured.memory_errors == 0


def test_memory_that_is_full_is_not_measured(driver):
    """And says so; the link and the cores are."""
    document = measure_all(driver, gpu={**MODEL, "memory_mib": 514})
    (gpu,) = document.gpus
    assert gpu.error is None
    assert gpu.measured.compute_tflops
    assert gpu.not_measured["memory_gbps"].startswith("only 514 MiB of the GPU's memory are free")
    assert gpu.measured.memory_errors is None


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"processes.1": "0 1 512 python3"}, "in use by process 1 ("),
        ({"processes.1": "0 999999999 512 python3"}, "in use by process 999999999"),
        ({"gpus.0.utilization": 97}, "97 % busy"),
    ],
)
def test_a_gpu_in_use_is_left_alone(driver, facts, text):
    """And named with what uses it; the others are measured."""
    used, free = measure_all(driver, (None, None), facts=facts).gpus
    assert used.error.code == "in-use"
    assert used.error.text.startswith(text)
    assert used.measured == measurements.Measured()
    assert free.error is None


def play(script: str, grace: float = 60) -> dict:
    (child,) = Children(lambda line: None, grace).run({"x": [sys.executable, "-c", script]}).values()
    return child.report


def test_a_process_that_dies_is_an_error_of_its_gpu():
    """With what it was at; what it had reported is kept."""
    script = 'import os; print(\'{"stage": "x", "seconds": 1}\\n{"measured": {"sm_mhz": 5}}\', flush=True); os.kill(os.getpid(), 11)'
    report = play(script)
    assert report["error"] == {"code": "driver", "text": "its process ended with signal 11, in: x"}
    assert report["measured"] == {"sm_mhz": 5}
    assert play("pass")["error"] == {"code": "driver", "text": "its process ended with status 0, in: start"}


def test_a_process_that_says_nothing_is_ended():
    """Whatever signal it ignores."""
    script = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
    assert play(script, grace=0.3)["error"]["code"] == "hangs"


def test_only_one_has_the_bus():
    """And the next gets it when it is given back, or its holder is gone."""
    script = """
import json, sys, time
print(json.dumps({"wants": "bus"}), flush=True)
sys.stdin.readline()
began = time.monotonic()
time.sleep(0.1)
end = time.monotonic()
if sys.argv[1] == "dies":
    sys.exit(1)
print(json.dumps({"leaves": "bus"}), flush=True)
print(json.dumps({"span": [began, end], "done": True}), flush=True)
"""
    commands = {name: [sys.executable, "-c", script, name] for name in ("a", "dies", "b", "c")}
    children = Children(lambda line: None, 60).run(commands)
    spans = sorted(child.report["span"] for child in children.values() if "span" in child.report)
    assert len(spans) == 3
    assert all(first[1] <= second[0] for first, second in itertools.pairwise(spans))
    assert children["dies"].report["error"]["code"] == "driver"


def test_gpus_without_persistence_mode_have_time_to_start_one_after_the_other():
    """As NVML's start, before CUDA's, starts all of them for each process."""

    class Nvml:
        def nvmlInit(self):  # noqa: N802
            raise NVMLError(999)

    def driver():
        raise CudaError("no driver")

    out = io.StringIO()
    Measuring(BUDGETS["quick"], 1.0, Nvml(), Report(out), lambda: None).run(UUID, driver)
    stages = [line for line in map(json.loads, out.getvalue().splitlines()) if "stage" in line]
    assert [line["seconds"] for line in stages] == [START, START]
