"""What `python -m gpunode.accept` measured on a host's GPUs: one versioned document. Writer and reader share this module. Pure.

It has figures and no judgement: the CLI compares them. Programs read `code`; `text` is for people.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from .typed import parse, read

KIND = "gpunode-measurements"
VERSION = 1
LEVELS = ("quick", "standard")
SHAPES = ("whole", "mig", "shared")  # shared: the driver gives this process a part of the GPU's memory
CODES = ("hangs", "cuda", "lost", "in-use", "driver")  # of a GPU that could not be measured to the end
FABRIC = ("not-supported", "not-started", "in-progress", "completed", "failed")
TOOLS = ("dcgmi", "nvbandwidth", "nccl-tests")  # NVIDIA's, run where they are installed


@dataclass(frozen=True, slots=True)
class Failure:
    """Why the measuring of a GPU ended early. `code`: one of CODES."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class RemappedRows:
    """Rows of memory that the GPU replaced for good; `pending` takes a reset, `failed` means there is no spare left."""

    corrected: int
    uncorrected: int
    pending: bool
    failed: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """Figures of one GPU; None: not measured, and `Gpu.not_measured` has the reason. GB/s are 1e9 bytes a second.

    Clocks, power, temperature, PCIe and `throttle` (reasons) are those under load. `ecc_corrected`, `ecc_uncorrected` and
    `nvlink_errors` are what the run added. `fabric`: one of FABRIC.
    """

    pcie_generation: int | None = None
    pcie_width: int | None = None
    pcie_generation_max: int | None = None
    pcie_width_max: int | None = None
    to_device_gbps: float | None = None
    from_device_gbps: float | None = None
    memory_gbps: float | None = None
    memory_tested_mib: int | None = None
    memory_errors: int | None = None
    compute_tflops: float | None = None
    compute_errors: int | None = None
    temperature_c: int | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    sm_mhz: int | None = None
    sm_mhz_max: int | None = None
    throttle: tuple[str, ...] | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    remapped_rows: RemappedRows | None = None
    nvlink_active: int | None = None
    nvlink_inactive: int | None = None
    nvlink_errors: int | None = None
    fabric: str | None = None


FIGURES = tuple(figure.name for figure in fields(Measured))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU or MIG device. `pci`: as Linux writes it, "" if unknown. `memory_mib`: that this process may use."""

    uuid: str
    name: str
    pci: str
    capability: str
    memory_mib: int
    shape: str
    seconds: float
    error: Failure | None = None
    measured: Measured = field(default_factory=Measured)
    not_measured: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """A run of one of TOOLS: its verdict, its figures by name, its complaints as lines."""

    passed: bool
    seconds: float
    figures: Mapping[str, float] = field(default_factory=dict)
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Measurements:
    """The whole document. Each of TOOLS is in `tools`, or in `not_measured_tools` with the reason."""

    level: str
    driver: str
    cuda: str
    kernel: str
    seconds: float
    gpus: tuple[Gpu, ...]
    tools: Mapping[str, Tool] = field(default_factory=dict)
    not_measured_tools: Mapping[str, str] = field(default_factory=dict)


class UnknownVersion(ValueError):
    """A document of measurements of another version than this module's."""


def dumps(document: Measurements) -> str:
    """The document as one line of JSON. A figure without value must have its reason: ValueError."""
    text = json.dumps(as_json(document), separators=(",", ":"))
    loads(text)
    return text


def as_json(document: Measurements) -> dict[str, Any]:
    """The document as JSON's values, for one that holds it."""
    return {
        "kind": KIND,
        "version": VERSION,
        **asdict(document),
        "gpus": [_gpu_as_json(gpu) for gpu in document.gpus],
        "tools": {name: asdict(document.tools[name]) if name in document.tools else None for name in TOOLS},
    }


def loads(text: str) -> Measurements:
    """Raises UnknownVersion for a document of another version, ValueError for anything else."""
    return from_json(parse(text))


def from_json(document: object) -> Measurements:
    """The same from JSON's values."""
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ValueError(f"not a document of kind {KIND}")
    if document.get("version") != VERSION:
        raise UnknownVersion(
            f"measurements of version {document.get('version')}, this program reads version {VERSION}"
        )
    try:
        runs = {name: run for name, run in document["tools"].items() if run is not None}
        gpus = tuple(map(gpu_from_json, document["gpus"]))
        known: Measurements = read(Measurements, {**document, "gpus": [], "tools": runs}, "measurements")
        _one_place(TOOLS, known.tools, known.not_measured_tools)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"measurements with a wrong or missing field: {error!r}") from None
    _one_of("level", known.level, LEVELS)
    return replace(known, gpus=gpus)


def _gpu_as_json(gpu: Gpu) -> dict[str, Any]:
    measured = {name: value for name, value in asdict(gpu.measured).items() if value is not None}
    return {**asdict(gpu), "measured": measured}


def gpu_from_json(entry: Mapping[str, Any]) -> Gpu:
    """One of the document's `gpus`. Raises ValueError, KeyError or TypeError."""
    _one_place(FIGURES, entry["measured"], entry["not_measured"])
    gpu: Gpu = read(Gpu, entry, "gpu")
    _one_of("shape", gpu.shape, SHAPES)
    if gpu.measured.fabric:
        _one_of("fabric", gpu.measured.fabric, FABRIC)
    if gpu.error is not None:
        _one_of("error.code", gpu.error.code, CODES)
    return gpu


def _one_place(names: tuple[str, ...], values: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    for name in names:
        if (name in values) == (name in reasons):
            raise ValueError(
                f"{name} has {'both a value and' if name in values else 'neither a value nor'} a reason"
            )


def _one_of(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name} is {value!r}, not one of {', '.join(known)}")
