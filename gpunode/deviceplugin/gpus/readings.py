"""What a GPU does at this moment, read through NVML."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .handles import Handles


@dataclass(frozen=True, slots=True)
class Reading:
    """Bytes of memory in use, percent of time with a kernel running, °C, and processes; None where NVML does not say."""

    used: int | None = None
    utilization: int | None = None
    temperature: int | None = None
    processes: int | None = None


def read(handles: Handles, uuid: str) -> Reading:
    """The reading of a GPU. Each value that fails is None, so that a GPU that is lost has none."""
    nvml = handles.nvml

    def asked(ask: Callable[[], Any]) -> int | None:
        try:
            return int(ask())
        except (nvml.NVMLError, AttributeError):  # a library, or a driver, without this function
            return None

    try:
        handle = handles.of(uuid)
    except nvml.NVMLError:
        return Reading()
    return Reading(
        used=asked(lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used),
        utilization=asked(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu),
        temperature=asked(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        processes=asked(lambda: len(nvml.nvmlDeviceGetComputeRunningProcesses(handle))),
    )
