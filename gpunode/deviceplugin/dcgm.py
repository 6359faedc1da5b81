"""Figures of GPUs under the names, units and labels of NVIDIA's DCGM exporter, where they mean the same. Imported by the first scrape of
/metrics; nothing is read between scrapes.

source: etc/default-counters.csv of NVIDIA/dcgm-exporter for names and units, its README for labels; nvml.h for NVML's units
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from gpunode.contract.offer import MIB, Device

from .gpus import Handles
from .metrics import Sample, label_text
from .threads import Calls

DEADLINE = 2.0  # seconds for a GPU's figures; one that hangs has none
EVERY_LINK = 0xFFFFFFFF  # scope of a field of NVLink: all links together
HELP = {
    "DCGM_FI_DEV_SM_CLOCK": ("gauge", "SM clock frequency (in MHz)."),
    "DCGM_FI_DEV_MEM_CLOCK": ("gauge", "Memory clock frequency (in MHz)."),
    "DCGM_FI_DEV_GPU_TEMP": ("gauge", "GPU temperature (in C)."),
    "DCGM_FI_DEV_POWER_USAGE": ("gauge", "Power draw (in W)."),
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": ("counter", "Total energy consumption since boot (in mJ)."),
    "DCGM_FI_DEV_GPU_UTIL": ("gauge", "GPU utilization (in %)."),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("gauge", "Memory utilization (in %)."),
    "DCGM_FI_DEV_FB_FREE": ("gauge", "Framebuffer memory free (in MiB)."),
    "DCGM_FI_DEV_FB_USED": ("gauge", "Framebuffer memory used (in MiB)."),
    "DCGM_FI_DEV_FB_RESERVED": ("gauge", "Framebuffer memory reserved (in MiB)."),
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": ("counter", "Total number of single-bit volatile ECC errors."),
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": ("counter", "Total number of double-bit volatile ECC errors."),
    "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS": ("counter", "Number of remapped rows for correctable errors"),
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": (
        "counter",
        "Number of remapped rows for uncorrectable errors",
    ),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("gauge", "Whether remapping of rows has failed"),
    "DCGM_FI_DEV_XID_ERRORS": ("gauge", "Value of the last XID error encountered."),
    "gpunode_device_plugin_nvlink_sent_bytes_total": ("counter", "Data sent over all NVLinks"),
    "gpunode_device_plugin_nvlink_received_bytes_total": ("counter", "Data received over all NVLinks"),
}
Read = Callable[[Any, Any], Iterable[float]]  # NVML and a handle -> values


def _memory(nvml: Any, gpu: Any, *parts: str) -> list[float]:
    memory = nvml.nvmlDeviceGetMemoryInfo(gpu)
    return [getattr(memory, part) // MIB for part in parts]


def _ecc(nvml: Any, gpu: Any) -> list[float]:
    kinds = (nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED)
    return [nvml.nvmlDeviceGetTotalEccErrors(gpu, kind, nvml.NVML_VOLATILE_ECC) for kind in kinds]


def _nvlink(nvml: Any, gpu: Any) -> list[float]:
    """Bytes sent and received. Raises NVMLError for a GPU without NVLinks."""
    fields = (nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX)
    values = nvml.nvmlDeviceGetFieldValues(gpu, [(field, EVERY_LINK) for field in fields])
    for value in values:
        if value.nvmlReturn != nvml.NVML_SUCCESS:
            raise nvml.NVMLError(value.nvmlReturn)
    return [value.value.ullVal * 1024 for value in values]  # of KiB


# The names that a call of NVML is for, without their beginning, and the call.
READS: tuple[tuple[tuple[str, ...], Read], ...] = (
    (("SM_CLOCK",), lambda nvml, gpu: [nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_SM)]),
    (("MEM_CLOCK",), lambda nvml, gpu: [nvml.nvmlDeviceGetClockInfo(gpu, nvml.NVML_CLOCK_MEM)]),
    (("GPU_TEMP",), lambda nvml, gpu: [nvml.nvmlDeviceGetTemperature(gpu, nvml.NVML_TEMPERATURE_GPU)]),
    (("POWER_USAGE",), lambda nvml, gpu: [nvml.nvmlDeviceGetPowerUsage(gpu) / 1000]),
    (("TOTAL_ENERGY_CONSUMPTION",), lambda nvml, gpu: [nvml.nvmlDeviceGetTotalEnergyConsumption(gpu)]),
    (
        ("GPU_UTIL", "MEM_COPY_UTIL"),
        lambda nvml, gpu: [(rates := nvml.nvmlDeviceGetUtilizationRates(gpu)).gpu, rates.memory],
    ),
    (("FB_FREE", "FB_USED"), lambda nvml, gpu: _memory(nvml, gpu, "free", "used")),
    (
        ("FB_RESERVED",),
        lambda nvml, gpu: _memory(nvml, gpu, "reserved"),
    ),  # before driver 510 it is part of the used
    (("ECC_SBE_VOL_TOTAL", "ECC_DBE_VOL_TOTAL"), _ecc),
    (
        ("CORRECTABLE_REMAPPED_ROWS", "UNCORRECTABLE_REMAPPED_ROWS", "", "ROW_REMAP_FAILURE"),
        lambda nvml, gpu: nvml.nvmlDeviceGetRemappedRows(gpu),
    ),
    (("nvlink_sent_bytes_total", "nvlink_received_bytes_total"), _nvlink),
)


def read_figures(handles: Handles, uuid: str) -> dict[str, float]:
    """A GPU's values by name, as far as NVML gives them: none of one that is lost."""
    nvml, values = handles.nvml, dict[str, float]()
    try:
        gpu = handles.of(uuid)
    except nvml.NVMLError:
        return {}
    for names, read in READS:
        try:
            answers = list(read(nvml, gpu))
        except (nvml.NVMLError, AttributeError):  # this GPU, driver or library does not have it
            continue
        for name, answer in zip(names, answers, strict=True):
            if name:
                start = "DCGM_FI_DEV_" if name.isupper() else "gpunode_device_plugin_"
                values[start + name] = answer
    return values


async def page(
    handles: Handles,
    devices: Iterable[Device],
    users: Iterable[Sample],
    xids: Mapping[str, int],
    hostname: str,
    calls: Calls,
) -> str:
    """Every whole GPU's figures in Prometheus' text format, a line for each container that has the GPU, or some of it. `users`:
    samples of `pod_samples`; `xids`: the last of each GPU."""
    gpus = [device for device in devices if device.profile is None]
    asked = (calls.figures(DEADLINE, read_figures, handles, device.uuid) for device in gpus)
    figures = await asyncio.gather(*asked)
    having = [labels for name, labels, _ in users if name == "pod_devices"]
    families: dict[str, list[str]] = {}
    for gpu, values in zip(gpus, figures, strict=True):
        every = {**values, "DCGM_FI_DEV_XID_ERRORS": float(xids.get(gpu.uuid, 0))} if values else values
        pods = [
            {key: labels[key] for key in ("container", "namespace", "pod")}
            for labels in having
            if labels["gpu"] == gpu.uuid
        ]
        for name, value in every.items():
            rows = families.setdefault(name, [])
            rows += [
                f"{name}{{{label_text({**_labels(gpu, hostname), **pod})}}} {value:.15g}"
                for pod in pods or [{}]
            ]
    lines: list[str] = []
    for name, (kind, text) in HELP.items():
        if several := families.get(name):
            lines += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *dict.fromkeys(several)]
    return "".join(f"{line}\n" for line in lines)


def _labels(gpu: Device, hostname: str) -> dict[str, str]:
    return {
        "gpu": gpu.index,
        "UUID": gpu.uuid,
        "pci_bus_id": f"0000{gpu.bus.upper()}",  # eight digits of domain, as NVML has them
        "device": gpu.nodes[0].rpartition("/")[2] if gpu.nodes else "",
        "modelName": gpu.name,
        "Hostname": hostname,
    }
