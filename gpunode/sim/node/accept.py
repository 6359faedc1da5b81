"""`python -m gpunode.accept` of a simulated pod: the figures that healthy GPUs have, each a little different, as its UUID decides.

The fault `slow-gpu` of a host (`Now.faults`: its GPU's UUID) gives that one half of its memory's bandwidth.
"""

import os
import random
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gpunode.contract.measurements import FIGURES, TOOLS, Gpu, Measured, Measurements, RemappedRows, dumps
from gpunode.sim.host.kinds import MODELS, Model
from gpunode.sim.host.machine import SimGpu
from gpunode.sim.host.state import State
from gpunode.sim.node.nvml import Driver

LANE = {3: 0.985, 4: 1.969, 5: 3.938}  # GB/s
JITTER = 0.02
SLOW = "slow-gpu"


def figures(gpu: SimGpu, model: Model, level: str, *, slow: bool = False) -> Measured:
    """A healthy GPU's, the same at each call for a UUID. `slow`: but for its memory's bandwidth."""
    chance = random.Random(gpu.uuid)  # noqa: S311 - not a secret

    def near(value: float) -> float:
        return round(value * chance.gauss(1.0, JITTER / 2), 2)

    link = 16 * LANE[model.pcie]
    return Measured(
        pcie_generation=model.pcie,
        pcie_width=16,
        pcie_generation_max=model.pcie,
        pcie_width_max=16,
        to_device_gbps=near(link * 0.84),
        from_device_gbps=near(link * 0.86),
        memory_gbps=near(model.memory_gbps * (0.5 if slow else 1.0)),
        memory_tested_mib=int(gpu.memory_mib * (0.25 if level == "quick" else 0.9)),
        memory_errors=0,
        compute_tflops=near(model.compute_tflops),
        compute_errors=0,
        temperature_c=round(near(62)),
        power_w=near(0.85 * model.power),
        power_limit_w=float(model.power),
        sm_mhz=1700,
        sm_mhz_max=1980,
        throttle=("sw_power_cap",),
        ecc_corrected=0,
        ecc_uncorrected=0,
        remapped_rows=RemappedRows(0, 0, False, False) if model.pcie > 3 else None,
        nvlink_active=model.nvlinks or None,
        nvlink_inactive=0 if model.nvlinks else None,
        nvlink_errors=0 if model.nvlinks else None,
        fabric="not-supported",
    )


def measure(gpus: Mapping[str, SimGpu], level: str, driver: str, kernel: str, slow: str = "") -> Measurements:
    """The document of these GPUs. `slow`: the UUID of one that is."""
    by_name = {model.name: model for model in MODELS.values()}
    measured = tuple(_gpu(gpu, by_name[gpu.name], level, slow=uuid == slow) for uuid, gpu in gpus.items())
    tools: dict[str, Any] = dict.fromkeys(TOOLS, "not installed")
    return Measurements(level, driver, "13.0", kernel, 0.1, measured, {}, tools)


def _gpu(gpu: SimGpu, model: Model, level: str, *, slow: bool) -> Gpu:
    measured = figures(gpu, model, level, slow=slow)
    missing = [name for name in FIGURES if getattr(measured, name) is None]
    reasons = {
        name: "this GPU remaps no rows" if name == "remapped_rows" else "this GPU has no NVLink"
        for name in missing
    }
    return Gpu(gpu.uuid, gpu.name, gpu.address, "9.0", gpu.memory_mib, "whole", 0.1, None, measured, reasons)


def main() -> None:
    level = sys.argv[sys.argv.index("--level") + 1]
    host = Path(os.environ["GPUNODE_SIM_HOST"])
    driver, state = Driver(host, os.environ), State(host)
    gpus = {gpu.uuid: gpu for gpu in driver.gpus}
    slow = state.now().faults.get(SLOW, "")
    print(dumps(measure(gpus, level, driver.module(), state.machine().kernel, slow)))


if __name__ == "__main__":
    main()
