"""`python -m gpunode.accept.child UUID LEVEL SECONDS`: measures one GPU in a process of its own, which may hang or die.

Writes one JSON object a line: {"stage": text, "seconds": budget} before each stage, {"wants": "bus"} before the transfers, which
begin when a line comes back, {"leaves": "bus"} after them, {"memory_mib": …} that this process may use, {"measured": …,
"not_measured": …} after each stage, with "error" and "done" after the last. CUDA_VISIBLE_DEVICES names the GPU. SECONDS: of its transfers.
"""

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

from gpunode.contract.measurements import FIGURES
from gpunode.deviceplugin.cuda import BLOCKING_SYNC, Cuda, CudaError, load
from gpunode.deviceplugin.nvml import Nvml, NVMLError

from .gauges import Gauges, Lost, Sampler, find, summary
from .stages import Bench, Figures, NotMeasured

START = 20  # seconds until NVML or a context is there; eight GPUs without persistence mode start one after the other
COUNTERS = 5  # seconds for some hundred questions to NVML
NVML_FIGURES = (
    *("pcie_generation", "pcie_width", "pcie_generation_max", "pcie_width_max", "temperature_c", "power_w"),
    *("power_limit_w", "sm_mhz", "sm_mhz_max", "throttle", "ecc_corrected", "ecc_uncorrected"),
    *("remapped_rows", "nvlink_active", "nvlink_inactive", "nvlink_errors", "fabric"),
)


@dataclass(frozen=True, slots=True)
class Budget:
    """Seconds of a level's stages, and how often the memory's pattern is checked at most."""

    bandwidth: float
    pattern: float
    passes: int
    compute: float


BUDGETS = {"quick": Budget(0.5, 3, 1, 4), "standard": Budget(4, 40, 1000, 50)}


class Report:
    """What is known of the GPU so far, written to the parent after each stage."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self.measured: Figures = {}
        self.reasons: dict[str, str] = {}

    def write(self, **line: Any) -> None:
        self._out.write(json.dumps(line) + "\n")
        self._out.flush()

    def stage(self, text: str, seconds: float) -> None:
        self.write(stage=text, seconds=seconds)

    def have(self, figures: Figures) -> None:
        self.measured |= {name: value for name, value in figures.items() if value is not None}

    def figures(self, **line: Any) -> None:
        reasons = {
            name: why for name, why in self.reasons.items() if name in FIGURES and name not in self.measured
        }
        self.write(measured=self.measured, not_measured=reasons, **line)


class Measuring:
    """The stages of one GPU, in their order. `bus` waits until the transfers may begin."""

    def __init__(
        self, budget: Budget, transfers: float, nvml: Any, report: Report, bus: Callable[[], object]
    ) -> None:
        self._budget, self._transfers, self._nvml = budget, transfers, nvml
        self._report, self._bus = report, bus
        self._gauges: Gauges | None = None
        self._link = self._load = Sampler(None)

    def run(self, uuid: str, driver: Callable[[], Cuda]) -> dict[str, str] | None:
        """Measure the GPU; the error that ended it early, as of `measurements.Failure`."""
        try:
            before = self._begin(uuid)
            self._report.stage("start of CUDA", START)
            cuda = driver()
            device = cuda.devices()[0]
            with cuda.on(device, BLOCKING_SYNC):
                self._report.write(memory_mib=cuda.memory())
                self._kernels(Bench(cuda, device))
            self._end(before)
        except Lost as error:
            return {"code": "lost", "text": str(error)}
        except CudaError as error:
            return self._failed(error)
        return None

    def _begin(self, uuid: str) -> Figures:
        """The counters before."""
        report = self._report
        report.stage("counters and links", START)  # of NVML, too
        try:
            self._nvml.nvmlInit()
            self._gauges = gauges = Gauges(self._nvml, find(self._nvml, uuid)[1], report.reasons)
        except NVMLError as error:
            report.reasons |= dict.fromkeys(NVML_FIGURES, f"NVML: {error}")
            return {}
        report.have(gauges.state())
        self._link, self._load = Sampler(gauges.link), Sampler(gauges.load)
        counters = gauges.counters()
        report.figures()
        return counters

    def _kernels(self, bench: Bench) -> None:
        budget, report = self._budget, self._report
        report.write(wants="bus")
        self._bus()
        self._stage(
            "transfers between host and GPU",
            self._transfers,
            lambda: bench.transfers(self._transfers),
            self._link,
            ("to_device_gbps", "from_device_gbps"),
        )
        report.write(leaves="bus")
        self._stage(
            "bandwidth of memory",
            budget.bandwidth,
            lambda: bench.bandwidth(budget.bandwidth),
            self._load,
            ("memory_gbps",),
        )
        self._stage(
            "pattern in memory",
            budget.pattern,
            lambda: bench.pattern(budget.pattern, budget.passes),
            self._load,
            ("memory_tested_mib", "memory_errors"),
        )
        self._stage(
            "compute",
            budget.compute,
            lambda: bench.compute(budget.compute),
            self._load,
            ("compute_tflops", "compute_errors"),
        )

    def _stage(
        self,
        text: str,
        seconds: float,
        work: Callable[[], Figures],
        sampler: Sampler,
        names: tuple[str, ...],
    ) -> None:
        report = self._report
        report.stage(text, seconds)
        try:
            with sampler.running():
                figures = work()
        except NotMeasured as error:
            report.reasons |= dict.fromkeys(names, str(error))
        else:
            if "memory_errors" in figures:
                figures["memory_errors"] += report.measured.get("memory_errors", 0)
            report.have(figures)
        report.have(summary(self._link, self._load))
        report.figures()

    def _end(self, before: Figures) -> None:
        if gauges := self._gauges:
            self._report.stage("counters again", COUNTERS)
            after = gauges.counters()
            added = {
                name: after[name] - value
                for name, value in before.items()
                if None not in (value, after[name])
            }
            self._report.have({**added, "remapped_rows": gauges.state()["remapped_rows"]})

    def _failed(self, error: CudaError) -> dict[str, str]:
        """A GPU that is lost shows so in NVML; CUDA has no error of its own for it."""
        try:
            if self._gauges:
                self._gauges.state()
        except Lost as lost:
            return {"code": "lost", "text": f"{lost} ({error})"}
        return {"code": "cuda", "text": str(error)}


def main(arguments: list[str]) -> int:
    uuid, level, seconds = arguments
    report = Report(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)  # what the driver's libraries print is no report
    measuring = Measuring(BUDGETS[level], float(seconds), Nvml(), report, sys.stdin.readline)
    report.figures(error=measuring.run(uuid, lambda: Cuda(load())), done=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
