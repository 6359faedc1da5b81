"""Judges measured GPUs: rules that hold for all, the model's peak figures, and the median of the same GPUs of the fleet."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Literal, TypeAlias

from gpunode.acceptance.stamp import Verdict
from gpunode.contract.measurements import Gpu, Measured, Measurements
from gpunode.errors import Layer, Problem
from gpunode.wording import few

Result: TypeAlias = Literal["accepted", "failed", "skipped"]

FEWEST = 4  # GPUs that make a fleet
# Figure -> how far below the fleet's median a GPU may be. Host transfers also differ by the distance to the GPU's NUMA node.
BELOW_FLEET = {"memory_gbps": 0.1, "compute_tflops": 0.1, "to_device_gbps": 0.2, "from_device_gbps": 0.2}
UNITS = {
    "memory_gbps": "GB/s of device memory",
    "compute_tflops": "TFLOPS",
    "to_device_gbps": "GB/s from host to GPU",
    "from_device_gbps": "GB/s from GPU to host",
}
SLOW = {"memory_gbps": "memory-slow", "compute_tflops": "compute-slow"}
SLOW |= {"to_device_gbps": "transfer-slow", "from_device_gbps": "transfer-slow"}
# GB/s of a PCIe lane by generation, after encoding. A copy from pinned memory, one GPU after the other, reaches 75 to 85 % of the link
# on good hosts; less behind a switch, from the other NUMA node, or in a virtual machine.
LANE = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
LINK_SHARE = 0.5
NVLINKS, POWER, MEMORY = MOST = ("nvlink_active", "power_limit_w", "memory_mib")
LEAST_MEMORY = 0.9  # of that of the same GPUs; ECC takes up to a sixteenth
HOT = 85  # °C under load; NVIDIA's data center GPUs slow down between 85 and 95
# Whose NVLinks all lead somewhere once one does
NVSWITCHED = re.compile(r"\b(A[18]00|H[128]00|G?[BH][23]00)\b")
CLOCK_SHARE = 0.6  # of the highest clock, under load and without a power limit
THROTTLES = {  # NVML's reasons by their beginnings: what slows the GPU, and the fix
    "hw_thermal": ("its temperature", "Check fans, air flow, filters and the GPU's seat"),
    "hw_power_brake": (
        "the host's power supply",
        "Check power supplies, cables and the power cap of the host's BMC",
    ),
    "hw_slowdown": ("temperature or power", "Check cooling, power supplies and cables"),
}
REPLACE = "Replace the GPU (NVIDIA's field diagnostic, RMA)"
LAYERS: dict[str, Layer] = {"hangs": "pod", "cuda": "library", "lost": "PCI", "driver": "NVML"}
FIXES = {
    "hangs": "See `journalctl -k | grep -i nvrm` on the host and explain its lines by `gpunode explain`; then reset the GPU or reboot the host",
    "cuda": "`gpunode explain` explains the error; reset the GPU, then repeat",
    "lost": "See the kernel log for Xid 79; drain the node and power-cycle the host",
    "driver": "`gpunode verify` names the broken link",
}


@dataclass(frozen=True, slots=True)
class Model:
    """Peak figures of a GPU model (GB/s, TFLOPS), the share of each that a healthy one reaches, and their source. `measured`: what gpunode
    itself measured of a real one; "": of none."""

    pattern: str
    memory_gbps: float
    memory_share: float
    compute_tflops: float
    compute_share: float
    pcie: str  # 5x16
    source: str
    measured: str = ""

    @property
    def basis(self) -> str:
        return f"{self.source}; {f'gpunode measured {self.measured}' if self.measured else 'unproven on hardware'}"

    def least(self) -> Mapping[str, float]:
        """The least figure of a healthy GPU."""
        return {
            "memory_gbps": self.memory_gbps * self.memory_share,
            "compute_tflops": self.compute_tflops * self.compute_share,
        }


@dataclass(frozen=True, slots=True)
class Judgement:
    """One GPU's verdict. `problems`: why it failed, or why it was skipped. `remarks`: what is worth knowing, and fails nothing.
    `basis`: what its figures were compared with."""

    gpu: Gpu
    problems: tuple[Problem, ...] = ()
    remarks: tuple[str, ...] = ()
    basis: str = ""

    @property
    def result(self) -> Result:
        if not self.problems:
            return "accepted"
        return "skipped" if self.problems[0].code == "in-use" else "failed"


Fleet: TypeAlias = Mapping[tuple[object, ...], float]
"""A figure of GPUs that are alike -> its median; of MOST, for each model, the highest."""


@cache
def models() -> tuple[Model, ...]:
    text = files(__package__).joinpath("models.tsv").read_text(encoding="utf-8")
    rows = [line.split("\t") for line in text.splitlines() if not line.startswith("#")]
    return tuple(
        Model(name, float(memory), float(share), float(compute), float(part), pcie, *source)
        for name, memory, share, compute, part, pcie, *source in rows
    )


def find_model(name: str) -> Model | None:
    return next((model for model in models() if re.search(model.pattern, name)), None)


def compare_fleet(documents: Iterable[Measurements]) -> Fleet:
    """The medians of groups of at least FEWEST GPUs, and the highest of MOST that a GPU of a model has."""
    groups: dict[tuple[object, ...], list[float]] = {}
    most: dict[tuple[object, ...], float] = {}
    for document in documents:
        for gpu in [gpu for gpu in document.gpus if gpu.error is None and gpu.shape != "shared"]:
            for figure in BELOW_FLEET:
                if (value := getattr(gpu.measured, figure)) is not None:
                    groups.setdefault(_group(gpu, document.level, figure), []).append(value)
            for figure, has in zip(MOST, _of_most(gpu), strict=True):
                most[figure, gpu.name, gpu.shape] = max(most.get((figure, gpu.name, gpu.shape), 0), has)
    return most | {
        group: sorted(values)[len(values) // 2] for group, values in groups.items() if len(values) >= FEWEST
    }


def judge(document: Measurements, fleet: Fleet) -> tuple[Judgement, ...]:
    """A judgement for each GPU of a host."""
    return tuple(_judge_gpu(gpu, document.level, fleet) for gpu in document.gpus)


def judge_tools(document: Measurements) -> tuple[Problem, ...]:
    """What NVIDIA's own programs found on the host."""
    return tuple(
        Problem(
            name,
            f"{name} failed: {few(tool.problems, 3) or 'it does not say why'}",
            "pod",
            fix=f"Run {name} on the host for its whole report",
        )
        for name, tool in document.tools.items()
        if not tool.passed
    )


def _group(gpu: Gpu, level: str, figure: str) -> tuple[object, ...]:
    """GPUs of one group have comparable figures. MIG devices of a model differ by their memory, copies by their link."""
    link = (gpu.measured.pcie_generation, gpu.measured.pcie_width) if figure.endswith("device_gbps") else ()
    return (figure, gpu.name, level, gpu.shape, gpu.memory_mib if gpu.shape == "mig" else 0, link)


def _of_most(gpu: Gpu) -> tuple[float, float, float]:
    """The figures of MOST; 0: not known."""
    return gpu.measured.nvlink_active or 0, gpu.measured.power_limit_w or 0, gpu.memory_mib


def _judge_gpu(gpu: Gpu, level: str, fleet: Fleet) -> Judgement:
    most = {figure: fleet.get((figure, gpu.name, gpu.shape), 0) for figure in MOST}
    problems = [*_check_errors(gpu), *_check_pcie(gpu), *_check_nvlink(gpu, most[NVLINKS])]
    problems += _check_clocks(gpu)
    basis, remarks = "rules", list(_remarks(gpu, most[POWER]))
    inactive = gpu.measured.nvlink_inactive
    if inactive and not any(problem.code == "nvlink-inactive" for problem in problems):
        remarks.append(f"{inactive} of its NVLinks are inactive")
    if gpu.error is not None:
        code = gpu.error.code
        fix = FIXES.get(code, "It is measured once its work has ended")
        error = _problem(gpu, code, gpu.error.text, LAYERS.get(code, "pod"), fix=fix)
        return Judgement(gpu, (error, *(() if code == "in-use" else problems)), tuple(remarks), basis)
    if not _is_measured(gpu.measured):
        why = few(sorted(set(gpu.not_measured.values())), 3)
        problems.append(_problem(gpu, "not-measured", "nothing was measured", "pod", why, "Repeat it"))
    if gpu.shape == "whole" and gpu.memory_mib < LEAST_MEMORY * most[MEMORY]:
        what = f"{gpu.memory_mib} MiB of memory; another {gpu.name} has {most[MEMORY]:.0f}"
        problems.append(_problem(gpu, "memory-missing", what, "PCI", fix=REPLACE))
    if gpu.shape == "shared":
        remarks.append("a share of a GPU: its figures are compared with nothing")
        return Judgement(gpu, tuple(problems), tuple(remarks), basis)
    model = find_model(gpu.name) if gpu.shape == "whole" else None
    if model:
        basis = model.basis
        problems += _compare(gpu, model.least(), model)
    medians = {figure: fleet.get(_group(gpu, level, figure), 0.0) for figure in BELOW_FLEET}
    medians = {figure: value for figure, value in medians.items() if value}
    if medians and not model:
        basis = "the fleet's median alone"
    slow = {problem.code for problem in problems}
    problems += _compare_fleet(gpu, {key: value for key, value in medians.items() if SLOW[key] not in slow})
    if not (model or medians):
        why = "a MIG device" if gpu.shape == "mig" else "gpunode has no figures of this model"
        remarks.append(
            f"{why}, and fewer than {FEWEST} like it were measured: its speed is compared with nothing"
        )
    return Judgement(gpu, tuple(problems), tuple(remarks), basis)


def _check_errors(gpu: Gpu) -> Iterator[Problem]:
    """Wrong results, and memory that the GPU itself reports as bad."""
    measured, rows = gpu.measured, gpu.measured.remapped_rows
    if measured.memory_errors:
        what = f"{measured.memory_errors} wrong words in {measured.memory_tested_mib or '?'} MiB of memory"
        yield _problem(gpu, "memory-errors", what, "PCI", fix=REPLACE)
    if measured.compute_errors:
        what = f"{measured.compute_errors} wrong results of its computation"
        yield _problem(gpu, "compute-errors", what, "PCI", fix=REPLACE)
    if measured.ecc_uncorrected:
        what = f"{measured.ecc_uncorrected} uncorrected ECC errors during the run"
        yield _problem(gpu, "ecc-uncorrected", what, "PCI", fix=f"Reset the GPU and repeat. {REPLACE}")
    if rows and rows.failed:
        what = "a bad row of memory cannot be replaced: no spare is left"
        yield _problem(gpu, "remap-failed", what, "PCI", fix=REPLACE)
    elif rows and rows.pending:
        reset = f"Drain the node, delete the device plugin's pod there, then `nvidia-smi --gpu-reset -i {gpu.uuid}`, or reboot the host"
        yield _problem(
            gpu, "remap-pending", "a bad row of memory is replaced at the next reset", "PCI", fix=reset
        )


def _is_measured(measured: Measured) -> bool:
    figures = measured.memory_gbps, measured.compute_tflops, measured.memory_errors, measured.compute_errors
    return any(figure is not None for figure in figures)


def _check_pcie(gpu: Gpu) -> Iterator[Problem]:
    """The link under load, and what is copied over it; but for a share, whose copies others slow down."""
    measured = gpu.measured
    seat = "Reseat the GPU or its riser; check the slot's settings in the firmware (bifurcation, speed)"
    for code, figure, name in (
        ("pcie-width", "pcie_width", "lanes"),
        ("pcie-generation", "pcie_generation", "generation"),
    ):
        now, most = getattr(measured, figure), getattr(measured, f"{figure}_max")
        if now is not None and most is not None and now < most:
            yield _problem(gpu, code, f"PCIe {name} under load: {now} of {most}", "PCI", fix=seat)
    if measured.pcie_generation and measured.pcie_width and gpu.shape != "shared":
        link = LANE.get(measured.pcie_generation, 0.0) * measured.pcie_width
        for figure in ("to_device_gbps", "from_device_gbps"):
            yield from _compare(gpu, {figure: link * LINK_SHARE}, None)


def _check_nvlink(gpu: Gpu, most: float) -> Iterator[Problem]:
    """NVLinks and the fabric. `most`: active links of a GPU of this model. Cards without a bridge, V100s that are part of a mesh and
    virtual machines with one GPU have inactive links by design: only a remark."""
    measured, active = gpu.measured, gpu.measured.nvlink_active or 0
    joined = measured.fabric not in (None, "not-supported") or (active and NVSWITCHED.search(gpu.name))
    if measured.nvlink_inactive and (joined or active < most):
        what = f"{measured.nvlink_inactive} of {measured.nvlink_inactive + active} NVLinks are inactive"
        fix = "See `nvidia-smi nvlink -s`; check bridge or baseboard, and the fabric manager's log"
        yield _problem(gpu, "nvlink-inactive", what, "NVML", fix=fix)
    if measured.fabric not in (None, "completed", "not-supported"):
        fix = "See `journalctl -u nvidia-fabricmanager`; `gpunode verify` names the problem"
        yield _problem(gpu, "fabric", f"the NVLink fabric is {measured.fabric}", "NVML", fix=fix)


def _check_clocks(gpu: Gpu) -> Iterator[Problem]:
    """What holds the clocks down. A software power cap is normal under load."""
    measured, reasons = gpu.measured, gpu.measured.throttle or ()
    for start, (by, fix) in THROTTLES.items():
        if any(reason.startswith(start) for reason in reasons):
            yield _problem(gpu, "throttled", f"{by} slows it under load", "PCI", _state(measured), fix)
            return
    if measured.throttle is None or any("power_cap" in reason or "thermal" in reason for reason in reasons):
        return
    if measured.sm_mhz and measured.sm_mhz_max and measured.sm_mhz < CLOCK_SHARE * measured.sm_mhz_max:
        what = f"its clock stays at {measured.sm_mhz} of {measured.sm_mhz_max} MHz under load"
        fix = f"If it was locked, `nvidia-smi -i {gpu.uuid} -rgc -rac` frees it"
        yield _problem(gpu, "clock-low", what, "NVML", _state(measured), fix)


def _compare(gpu: Gpu, least: Mapping[str, float], model: Model | None) -> Iterator[Problem]:
    """Figures below what a healthy GPU reaches. `model`: whose figures these are; None: the link's."""
    for figure, bound in least.items():
        value = getattr(gpu.measured, figure)
        if value is not None and value < bound:
            against = f"a healthy {gpu.name} reaches" if model else "its PCIe link should carry"
            what = f"{value:g} {UNITS[figure]}; {against} {bound:.4g}"
            yield _slow(gpu, figure, what, model.basis if model else "")


def _compare_fleet(gpu: Gpu, medians: Mapping[str, float]) -> Iterator[Problem]:
    for figure, middle in medians.items():
        value = getattr(gpu.measured, figure)
        if value is not None and value < middle * (1 - BELOW_FLEET[figure]):
            less = round(100 * (1 - value / middle))
            what = f"{value:g} {UNITS[figure]}, {less} % below the fleet's median of {middle:.4g}"
            yield replace(_slow(gpu, figure, what, ""), code="slower-than-fleet")


def _slow(gpu: Gpu, figure: str, what: str, source: str) -> Problem:
    cause = "; ".join(filter(None, (_state(gpu.measured), source)))
    if SLOW[figure] == "transfer-slow":
        fix = "Check the slot, the riser and the NUMA node of the GPU (`nvidia-smi topo -m`), and what else the host did meanwhile"
    else:
        fix = f"Check its power limit and clocks (`nvidia-smi -i {gpu.uuid} -q -d POWER,CLOCK,PERFORMANCE`) and repeat. {REPLACE} if it stays slow"
    return _problem(gpu, SLOW[figure], what, "PCI", cause, fix)


def _state(measured: Measured) -> str:
    """How the GPU was under load, for people."""
    parts = [
        f"{measured.temperature_c} °C" if measured.temperature_c is not None else "",
        f"{measured.power_w:.0f} of {measured.power_limit_w:.0f} W"
        if measured.power_w is not None and measured.power_limit_w is not None
        else "",
        f"{measured.sm_mhz} of {measured.sm_mhz_max} MHz" if measured.sm_mhz and measured.sm_mhz_max else "",
        f"clock limited by {', '.join(measured.throttle)}" if measured.throttle else "",
    ]
    return ", ".join(filter(None, parts))


def _remarks(gpu: Gpu, power: float) -> Iterator[str]:
    """What is worth knowing, and fails nothing. `power`: the highest limit of a GPU of this model."""
    measured, rows = gpu.measured, gpu.measured.remapped_rows
    if measured.ecc_corrected:
        yield f"{measured.ecc_corrected} corrected ECC errors during the run"
    if measured.nvlink_errors:
        yield f"{measured.nvlink_errors} NVLink errors during the run"
    if rows and (rows.corrected or rows.uncorrected):
        yield f"{rows.corrected + rows.uncorrected} rows of memory replaced so far"
    if measured.temperature_c is not None and measured.temperature_c >= HOT:
        yield f"{measured.temperature_c} °C under load"
    if measured.power_limit_w and measured.power_limit_w < power:
        yield f"its power limit is {measured.power_limit_w:.0f} W, of another {gpu.name} {power:.0f} W"
    for reason in measured.throttle or ():
        if not reason.startswith((*THROTTLES, "sw_power_cap")):
            yield f"its clock was limited by {reason}"
    if (model := find_model(gpu.name)) and measured.pcie_generation_max and measured.pcie_width_max:
        generation, width = map(int, model.pcie.split("x"))
        if measured.pcie_generation_max < generation or measured.pcie_width_max < width:
            slot = f"{measured.pcie_generation_max} x{measured.pcie_width_max}"
            yield f"its slot gives it PCIe {slot} of {generation} x{width}"


def name_of(gpu: Gpu) -> str:
    """Its UUID; of one that did not answer so far its address."""
    return gpu.uuid or gpu.pci or gpu.name


def _problem(gpu: Gpu, code: str, what: str, layer: Layer, cause: str = "", fix: str = "") -> Problem:
    return Problem(code, what, layer, name_of(gpu), cause, f"{fix}.")


def summarize(judgements: Sequence[Judgement]) -> Verdict:
    """Of a host's GPUs together; `partly`: some were skipped, `skipped`: all."""
    results = {judgement.result for judgement in judgements}
    if "failed" in results:
        return "failed"
    if "accepted" not in results:
        return "skipped"
    return "partly" if "skipped" in results else "accepted"
