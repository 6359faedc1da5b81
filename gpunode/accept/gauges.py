"""What NVML reports about one GPU before, under and after load. A call that the driver does not know leaves its reason."""

import statistics
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from gpunode.contract.measurements import FABRIC
from gpunode.deviceplugin.gpus import ask, mig_handles, nvlinks
from gpunode.deviceplugin.nvml import FabricInfo, FabricInfoV, Nvml, NVMLError

from .stages import Figures

INTERVAL = 0.1  # seconds between two readings under load
COUNTERS = 4  # of a link: replay, recovery, CRC of flits, CRC of data (nvmlNvLinkErrorCounter_t)
NO_NVLINK = "this GPU has no NVLink"
# nvmlClocksEventReasons of nvml.h, by the names that nvidia-smi's `clocks_throttle_reasons` has. Idle is none under load.
THROTTLE = {
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clocks_setting",
}
# Of NVLink 5, where the counters above are gone.
LINK_FIELDS = (
    Nvml.NVML_FI_DEV_NVLINK_COUNT_MALFORMED_PACKET_ERRORS,
    Nvml.NVML_FI_DEV_NVLINK_COUNT_BUFFER_OVERRUN_ERRORS,
    Nvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS,
    Nvml.NVML_FI_DEV_NVLINK_COUNT_LOCAL_LINK_INTEGRITY_ERRORS,
    Nvml.NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
)


class Lost(Exception):
    """The GPU has fallen off the bus."""


def find(nvml: Any, uuid: str) -> tuple[Any, Any]:
    """Handles of the device with this UUID and of the GPU that it is part of. Raises NVMLError.

    By index: nvmlDeviceGetHandleByUUID fails for every GPU while one is lost (nvml.h).
    """
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            gpu = nvml.nvmlDeviceGetHandleByIndex(index)
            if nvml.nvmlDeviceGetUUID(gpu) == uuid:
                return gpu, gpu
            for part in mig_devices(nvml, gpu):
                if nvml.nvmlDeviceGetUUID(part) == uuid:
                    return part, gpu
        except NVMLError:
            continue  # another GPU's problem
    raise NVMLError(Nvml.NVML_ERROR_NOT_FOUND, f"NVML lists no {uuid}")


def mig_devices(nvml: Any, gpu: Any) -> list[Any]:
    """The handles of a GPU's MIG devices; [] where the driver or the GPU has no MIG. Raises NVMLError."""
    on, _pending = ask(nvml, nvml.nvmlDeviceGetMigMode, gpu) or (False, False)
    return [handle for _, handle in mig_handles(nvml, gpu)] if on else []


@dataclass
class Gauges:
    """Readings of one GPU. `gpu` is its handle; of a MIG device that of the whole GPU, which has its clocks, power, links
    and counters."""

    nvml: Any
    gpu: Any
    reasons: dict[str, str] = field(default_factory=dict)

    def ask(self, name: str, function: Callable[..., Any], *values: Any) -> Any:
        """The answer, or None: the reason is noted under the figure's name. Raises Lost."""
        try:
            answer = function(self.gpu, *values)
        except NVMLError as error:
            if error.value == Nvml.NVML_ERROR_GPU_IS_LOST:
                raise Lost(str(error)) from None
            self.reasons[name] = f"NVML: {error}"
            return None
        self.reasons.pop(name, None)
        return answer

    def counters(self) -> Figures:
        """The counters whose growth counts."""
        nvml, figures = self.nvml, {}
        for name, kind in (
            ("ecc_corrected", Nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            ("ecc_uncorrected", Nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
        ):
            figures[name] = self.ask(name, nvml.nvmlDeviceGetTotalEccErrors, kind, Nvml.NVML_VOLATILE_ECC)
        figures["nvlink_errors"] = self._link_errors()
        return figures

    def state(self) -> Figures:
        """What does not depend on load: remapped rows, links, the fabric, limits."""
        nvml = self.nvml
        rows = self.ask("remapped_rows", nvml.nvmlDeviceGetRemappedRows)
        links = self._links()
        power = self.ask("power_limit_w", nvml.nvmlDeviceGetEnforcedPowerLimit)
        return {
            "remapped_rows": rows
            and {
                "corrected": rows[0],
                "uncorrected": rows[1],
                "pending": bool(rows[2]),
                "failed": bool(rows[3]),
            },
            "nvlink_active": sum(links.values()) if links else None,
            "nvlink_inactive": len(links) - sum(links.values()) if links else None,
            "fabric": self._fabric(),
            "power_limit_w": None if power is None else power / 1000,
            "sm_mhz_max": self.ask("sm_mhz_max", nvml.nvmlDeviceGetMaxClockInfo, Nvml.NVML_CLOCK_SM),
            "pcie_generation_max": self.ask("pcie_generation_max", nvml.nvmlDeviceGetMaxPcieLinkGeneration),
            "pcie_width_max": self.ask("pcie_width_max", nvml.nvmlDeviceGetMaxPcieLinkWidth),
        }

    def link(self) -> Figures:
        """The PCIe link now; it is slower while the GPU is idle."""
        return {
            "pcie_generation": self.ask("pcie_generation", self.nvml.nvmlDeviceGetCurrPcieLinkGeneration),
            "pcie_width": self.ask("pcie_width", self.nvml.nvmlDeviceGetCurrPcieLinkWidth),
        }

    def load(self) -> Figures:
        """Temperature, power, clock and the reasons for a slower one, now."""
        nvml = self.nvml
        power = self.ask("power_w", nvml.nvmlDeviceGetPowerUsage)
        return {
            "temperature_c": self.ask("temperature_c", nvml.nvmlDeviceGetTemperature, 0),
            "power_w": None if power is None else power / 1000,
            "sm_mhz": self.ask("sm_mhz", nvml.nvmlDeviceGetClockInfo, Nvml.NVML_CLOCK_SM),
            "throttle": self.ask("throttle", nvml.nvmlDeviceGetCurrentClocksThrottleReasons),
        }

    def _links(self) -> Mapping[int, bool]:
        """Whether each NVLink is active, by number; empty where there is none, or it is not known."""
        try:
            return nvlinks(self.nvml, self.gpu)
        except NVMLError as error:
            if error.value == Nvml.NVML_ERROR_GPU_IS_LOST:
                raise Lost(str(error)) from None
            none = error.value in {Nvml.NVML_ERROR_NOT_SUPPORTED, Nvml.NVML_ERROR_INVALID_ARGUMENT}
            why = NO_NVLINK if none else f"NVML: {error}"
            self.reasons |= dict.fromkeys(("nvlink_active", "nvlink_inactive"), why)
            return {}

    def _link_errors(self) -> int | None:
        links = self._links()
        if not links:
            self.reasons["nvlink_errors"] = self.reasons["nvlink_active"]
            return None
        total, answered = 0, False
        for link in links:
            for counter in range(COUNTERS):
                value = self.ask("nvlink_errors", self.nvml.nvmlDeviceGetNvLinkErrorCounter, link, counter)
                total, answered = total + (value or 0), answered or value is not None
        if not answered:
            fields = [(number, link) for link in links for number in LINK_FIELDS]
            values = self.ask("nvlink_errors", self.nvml.nvmlDeviceGetFieldValues, fields)
            known = [value.value.ullVal for value in values or () if not value.nvmlReturn]
            total, answered = sum(known), bool(known)
        if answered:
            self.reasons.pop("nvlink_errors", None)
            return total
        self.reasons.setdefault("nvlink_errors", "NVML: no counter of these links is supported")
        return None

    def _fabric(self) -> str | None:
        """One of FABRIC. `failed`: the probe of the fabric ended with an error."""
        info = self.ask("fabric", self.nvml.nvmlDeviceGetGpuFabricInfoV, FabricInfoV())
        if info is None:
            info = self.ask("fabric", self.nvml.nvmlDeviceGetGpuFabricInfo, FabricInfo())
        if info is None:
            return None
        state = FABRIC[min(info.state & 0xFF, 3)]
        return "failed" if state == "completed" and info.status else state


class Sampler:
    """Reads in the background while a `with running()` lasts. Without a reader there are no readings."""

    def __init__(self, read: Callable[[], Figures] | None) -> None:
        self._read = read
        self._readings: list[Figures] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Raises Lost at the end."""
        end = threading.Event()
        lost: list[Lost] = []

        def watch(read: Callable[[], Figures]) -> None:
            while not end.wait(INTERVAL):
                try:
                    self._readings.append(read())
                except Lost as error:
                    lost.append(error)
                    return

        thread = threading.Thread(target=watch, args=(self._read,), daemon=True)
        if self._read:
            thread.start()
        try:
            yield
        finally:
            end.set()
            if self._read:
                thread.join(1)
        if lost:
            raise lost[0]
        if self._read and not self._readings:
            self._readings.append(self._read())

    def values(self, name: str) -> list[Any]:
        return [reading[name] for reading in self._readings if reading[name] is not None]


def summary(link: Sampler, load: Sampler) -> Figures:
    """The figures of what was sampled: the link at its fastest, the load at its hottest, the clock as it was most of the time."""
    figures: Figures = {
        name: max(sampler.values(name), default=None)
        for sampler, names in (
            (link, ("pcie_generation", "pcie_width")),
            (load, ("temperature_c", "power_w")),
        )
        for name in names
    }
    clocks, reasons = load.values("sm_mhz"), load.values("throttle")
    return figures | {
        "sm_mhz": int(statistics.median(clocks)) if clocks else None,
        "throttle": [name for bit, name in THROTTLE.items() if any(value & bit for value in reasons)]
        if reasons
        else None,
    }
