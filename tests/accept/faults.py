"""Faults of a GPU for the stand-in driver, and the figure in which each must show: the table of which `accept` finds its share."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from unittest import mock

from gpunode.accept import children
from gpunode.accept.__main__ import measure
from gpunode.contract.measurements import Gpu, Measurements

from .stand_in import CUDA, VERSION, StandIn

MODEL = {"model": "H100-SXM5-80GB"}
# A child with stages of a moment; on the real parts otherwise.
SHORT = """
import os, pathlib, sys, time
from gpunode.accept import child, gauges, stages
child.BUDGETS = {"quick": child.Budget(0.01, 0.03, 1, 0.03)}
stages.TURN_SECONDS, stages.BATCH, stages.PINNED = 0.01, 0.01, 1 << 22
gauges.INTERVAL = 0.01
"""
MAIN = "sys.exit(child.main(sys.argv[1:]))\n"
# Each stage begins when its faults are there.
CHILD = f"""{SHORT}
class Report(child.Report):
    def stage(self, text, seconds):
        super().stage(text, seconds)
        heard = pathlib.Path(os.environ["LAB_GPUS"], f"heard {{sys.argv[1]}}: {{text}}")
        while not heard.exists():
            time.sleep(0.002)
child.Report = Report
{MAIN}"""
Facts = Mapping[str, object]


@dataclass(frozen=True)
class Fault:
    """`facts` of the GPU from the start, `later` ones from the stage `at`; `shows` is true of what was measured of a GPU with
    the fault, and false of one without it."""

    name: str
    shows: Callable[[Gpu], object]
    facts: Facts = field(default_factory=dict)
    at: str = "compute"
    later: Facts = field(default_factory=dict)


def measure_all(
    driver: StandIn,
    faults: Sequence[Fault | None] = (None,),
    grace: float = 60,
    gpu: Mapping[str, object] = MODEL,
    facts: Facts | None = None,
) -> Measurements:
    """The document of as many GPUs as there are faults; None: a healthy one. `facts` of the host."""
    driver.gpus(*(gpu for _ in faults))
    driver.set(facts or {})
    later = {}
    for number, fault in enumerate(faults):
        if fault:
            driver.set({f"gpus.{number}.{key}": value for key, value in fault.facts.items()})
            line = f"{driver.uuids[number]}: {fault.at}"
            later[line] = {f"gpus.{number}.{key}": value for key, value in fault.later.items()}

    for heard in driver.folder.glob("heard *"):
        heard.unlink()

    def say(line: str) -> None:
        driver.set(later.get(line, {}))
        (driver.folder / f"heard {line}").touch()

    done = driver.run("-m", "gpunode.accept.listing")
    assert not done.returncode, done.stderr
    with mock.patch.object(children, "subprocess", driver.subprocess):
        measured = measure(
            json.loads(done.stdout)["gpus"],
            lambda uuid: [sys.executable, "-c", CHILD, uuid, "quick", "0.02"],
            children.Children(say, grace, driver.environment()),
        )
    none = dict.fromkeys(("dcgmi", "nvbandwidth", "nccl-tests"), "not installed")
    return Measurements(
        "quick", VERSION, f"{CUDA // 1000}.0", "6.1.0", 1.0, measured, not_measured_tools=none
    )


def _figure(name: str, test: Callable[[object], object]) -> Callable[[Gpu], object]:
    def shows(gpu: Gpu) -> object:
        value = getattr(gpu.measured, name)
        return value is not None and test(value)

    return shows


def _below(name: str, limit: float) -> Callable[[Gpu], object]:
    return _figure(name, lambda value: value < limit)


def _above(name: str, limit: float) -> Callable[[Gpu], object]:
    return _figure(name, lambda value: value > limit)


def _throttled(reason: str) -> Callable[[Gpu], object]:
    return _figure("throttle", lambda reasons: reason in reasons)


def _error(code: str) -> Callable[[Gpu], object]:
    return lambda gpu: gpu.error is not None and gpu.error.code == code


def _rows(name: str) -> Callable[[Gpu], object]:
    return _figure("remapped_rows", lambda rows: getattr(rows, name))


LINKS = {"nvlinks.count": 18, **{f"nvlinks.{lane}": "switch" for lane in range(18)}}
FAULTS = (
    Fault("PCIe width 8", _below("pcie_width", 16), {"pcie_width": 8, "pcie_width_max": 16}),
    Fault("PCIe width 4", _below("pcie_width", 16), {"pcie_width": 4, "pcie_width_max": 16}),
    Fault("PCIe width 1", _below("to_device_gbps", 5), {"pcie_width": 1, "pcie_width_max": 16}),
    Fault(
        "PCIe generation 4", _below("pcie_generation", 5), {"pcie_generation": 4, "pcie_generation_max": 5}
    ),
    Fault(
        "PCIe generation 3", _below("pcie_generation", 5), {"pcie_generation": 3, "pcie_generation_max": 5}
    ),
    Fault(
        "PCIe generation 1", _below("from_device_gbps", 5), {"pcie_generation": 1, "pcie_generation_max": 5}
    ),
    Fault("a slot of width 8", _below("pcie_width_max", 16), {"pcie_width": 8}),
    Fault("a slow link, whatever it says", _below("to_device_gbps", 40), {"pcie_gbps": 25}),
    Fault("a very slow link", _below("from_device_gbps", 40), {"pcie_gbps": 1.5}),
    Fault("slow memory", _below("memory_gbps", 2700), {"memory_gbps": 2200}),
    Fault("very slow memory", _below("memory_gbps", 2700), {"memory_gbps": 300}),
    Fault("memory at half of its clock", _below("memory_gbps", 2700), {"clock_memory_mhz": 1310}),
    Fault("slow cores", _below("compute_tflops", 50), {"tflops": 40}),
    Fault("very slow cores", _below("compute_tflops", 50), {"tflops": 4}),
    Fault("locked clocks", _below("sm_mhz", 1500), {"clock_mhz": 1005, "clock_mhz_max": 1980}),
    Fault("clocks locked very low", _below("sm_mhz", 1500), {"clock_mhz": 345, "clock_mhz_max": 1980}),
    Fault(
        "clocks fall under load",
        _below("sm_mhz", 1500),
        {"clock_mhz_max": 1980},
        "bandwidth of memory",
        {"clock_mhz": 700},
    ),
    Fault("a stuck bit", _above("memory_errors", 0), {"stuck": "4096 3"}),
    Fault("a stuck bit, the highest of a word", _above("memory_errors", 0), {"stuck": "7 7"}),
    Fault("a stuck bit at the end of a MiB", _above("memory_errors", 0), {"stuck": "1048575 0"}),
    Fault("a wrong result in each launch", _above("compute_errors", 0), {"flaky": 1}),
    Fault("a wrong result once warm", _above("compute_errors", 0), {}, "compute", {"flaky": 1}),
    Fault("hot", _above("temperature_c", 85), {"temperature": 91}),
    Fault("hot under load", _above("temperature_c", 85), {}, "bandwidth of memory", {"temperature": 93}),
    Fault("a low power limit", _below("power_limit_w", 600), {"power_limit_mw": 350000}),
    Fault("thermal slowdown", _throttled("hw_thermal_slowdown"), {"throttle": 0x40}),
    Fault("thermal slowdown by software", _throttled("sw_thermal_slowdown"), {"throttle": 0x20}),
    Fault("power brake", _throttled("hw_power_brake_slowdown"), {"throttle": 0x80}),
    Fault("hardware slowdown", _throttled("hw_slowdown"), {}, "compute", {"throttle": 0x8}),
    Fault("application clocks are set", _throttled("applications_clocks_setting"), {"throttle": 0x2}),
    Fault("corrected ECC errors", _above("ecc_corrected", 0), {}, "compute", {"ecc_corrected": 12}),
    Fault("an uncorrected ECC error", _above("ecc_uncorrected", 0), {}, "compute", {"ecc_uncorrected": 1}),
    Fault("a row to be remapped", _rows("pending"), {}, "compute", {"remap_pending": 1}),
    Fault("no spare rows left", _rows("failed"), {"remap_failed": 1}),
    Fault("remapped rows", _rows("uncorrected"), {"remapped": 3}),
    Fault("an NVLink is down", _above("nvlink_inactive", 0), {**LINKS, "nvlinks_down": 1}),
    Fault("all NVLinks are down", _below("nvlink_active", 1), {**LINKS, "nvlinks_down": 18}),
    Fault("NVLink errors", _above("nvlink_errors", 0), LINKS, "compute", {"nvlink_errors": 40}),
    Fault("the fabric has failed", _figure("fabric", "failed".__eq__), {"fabric": 3, "fabric_status": 999}),
    Fault("less memory", lambda gpu: gpu.memory_mib < 80000, {"memory_mib": 40000}),
    Fault("lost before", _error("lost"), {"lost": 1}),
    Fault("lost in the middle", _error("lost"), {}, "pattern in memory", {"lost": 1}),
    Fault("CUDA hangs in the middle", _error("hangs"), {}, "pattern in memory", {"cuda_hang": 1}),
    Fault("the driver hangs in the middle", _error("hangs"), {}, "compute", {"hang": 1}),
    Fault("the fabric is not ready", _error("cuda"), {"fabric": 2}),
)
# Of the GPUs of a host each. CUDA starts on none while the fabric of one is not ready; those that hang are waited for.
APART = len(FAULTS) - 3
HOSTS = (
    *(FAULTS[first : min(first + 8, APART)] for first in range(0, APART, 8)),
    FAULTS[APART:-1],
    FAULTS[-1:],
)
