"""GPU models that a lab node can have: what PCI, NVML and the driver's support tables say about each.

Names, memory and PCI ids are those of real boards; `branch_min`/`branch_max` (0: no end) and the flavours say
which driver takes the GPU.
"""

from __future__ import annotations

from typing import Any

_SERVER = {
    "class": "030200", "persistence": 0, "display": 0, "compute_mode": 0, "bus_type": 2, "ecc": 1, "temperature": 34,
    "pcie_replays": 0, "multi_gpu_board": 0, "branch_max": 0, "proprietary": 1, "events": 0x1F,
}
_REMAPS = {"remapped": 0, "remap_pending": 0, "remap_failed": 0}
_NO_MIG: dict[str, Any] = {"enabled": 0, "devices": []}


def _profiles(*rows: tuple[int, int, str, int, int, int, int]) -> list[dict[str, Any]]:
    names = ("profile", "id", "name", "slices", "count", "multiprocessors", "memory_mib")
    return [dict(zip(names, row, strict=True)) for row in rows]


MODELS: dict[str, dict[str, Any]] = {
    "P100-PCIE-16GB": {
        **_SERVER, "name": "Tesla P100-PCIE-16GB", "device": "15f8", "subsystem": "10de:118f", "memory_mib": 16384,
        "reserved_mib": 112, "bar1_mib": 16384, "cc": "6.0", "architecture": 4, "brand": 2, "multiprocessors": 56,
        "cores": 3584, "bus_width": 4096, "pstate": 0, "power_mw": 26100, "power_limit_mw": 250000,
        "clock_mhz": 1328, "clock_memory_mhz": 715, "pcie_generation": 3, "pcie_width": 16, "vbios": "86.00.52.00.02",
        "part": "900-2H400-6300-031", "inforom": "H400.0201.00.08", "retired_pages_pending": 0,
        "branch_min": 375, "branch_max": 580, "open": 0,
    },
    "V100-SXM2-32GB": {
        **_SERVER, "name": "Tesla V100-SXM2-32GB", "device": "1db5", "subsystem": "10de:1249", "memory_mib": 32768,
        "reserved_mib": 265, "bar1_mib": 32768, "cc": "7.0", "architecture": 5, "brand": 2, "multiprocessors": 80,
        "cores": 5120, "bus_width": 4096, "pstate": 0, "power_mw": 42500, "power_limit_mw": 300000,
        "clock_mhz": 1530, "clock_memory_mhz": 877, "pcie_generation": 3, "pcie_width": 16, "vbios": "88.00.80.00.01",
        "part": "900-2G503-0010-000", "inforom": "G503.0203.00.05", "retired_pages_pending": 0,
        "nvlink_version": 2, "nvlink_lanes": 6, "branch_min": 384, "branch_max": 580, "open": 0,
    },
    "A100-SXM4-40GB": {
        **_SERVER, **_REMAPS, "name": "NVIDIA A100-SXM4-40GB", "device": "20b0", "subsystem": "10de:144e",
        "memory_mib": 40960, "reserved_mib": 555, "bar1_mib": 65536, "cc": "8.0", "architecture": 7, "brand": 14,
        "multiprocessors": 108, "cores": 6912, "bus_width": 5120, "pstate": 0, "power_mw": 52000,
        "power_limit_mw": 400000, "clock_mhz": 1410, "clock_memory_mhz": 1215, "pcie_generation": 4, "pcie_width": 16,
        "vbios": "92.00.45.00.03", "part": "692-2G506-0200-002", "inforom": "G506.0200.00.04", "addressing_mode": 0,
        "nvlink_version": 3, "nvlink_lanes": 12,
        "branch_min": 450, "open": 1,
        "mig": {**_NO_MIG, "profiles": _profiles(
            (0, 19, "1g.5gb", 1, 7, 14, 4864), (1, 14, "2g.10gb", 2, 3, 28, 9856), (2, 9, "3g.20gb", 3, 2, 42, 19968),
            (3, 5, "4g.20gb", 4, 1, 56, 19968), (4, 0, "7g.40gb", 7, 1, 98, 40192))},
    },
    "H100-SXM5-80GB": {
        **_SERVER, **_REMAPS, "name": "NVIDIA H100 80GB HBM3", "device": "2330", "subsystem": "10de:16c1",
        "memory_mib": 81559, "reserved_mib": 551, "bar1_mib": 131072, "cc": "9.0", "architecture": 9, "brand": 14,
        "multiprocessors": 132, "cores": 16896, "bus_width": 5120, "pstate": 0, "power_mw": 70800,
        "power_limit_mw": 700000, "clock_mhz": 1980, "clock_memory_mhz": 2619, "pcie_generation": 5, "pcie_width": 16,
        "vbios": "96.00.89.00.01", "part": "692-2G520-0200-000", "inforom": "G520.0200.00.05", "addressing_mode": 0,
        "nvlink_version": 4, "nvlink_lanes": 18, "branch_min": 525, "open": 1,
        "mig": {**_NO_MIG, "profiles": _profiles(
            (0, 19, "1g.10gb", 1, 7, 16, 9984), (9, 15, "1g.20gb", 1, 4, 26, 20096), (1, 14, "2g.20gb", 2, 3, 32, 20096),
            (2, 9, "3g.40gb", 3, 2, 60, 40448), (3, 5, "4g.40gb", 4, 1, 64, 40448), (4, 0, "7g.80gb", 7, 1, 132, 81152))},
    },
    "B200-180GB": {
        **_SERVER, **_REMAPS, "name": "NVIDIA B200", "device": "2901", "subsystem": "10de:1999", "memory_mib": 183359,
        "reserved_mib": 723, "bar1_mib": 262144, "cc": "10.0", "architecture": 10, "brand": 14, "multiprocessors": 148,
        "cores": 18944, "bus_width": 8192, "pstate": 0, "power_mw": 142000, "power_limit_mw": 1000000,
        "clock_mhz": 1965, "clock_memory_mhz": 3996, "pcie_generation": 5, "pcie_width": 16, "vbios": "97.00.88.00.0F",
        "part": "692-2G525-0220-000", "inforom": "G525.0220.00.03", "addressing_mode": 0, "nvlink_version": 5, "nvlink_lanes": 18,
        "branch_min": 570, "open": 1, "proprietary": 0,
        "mig": {**_NO_MIG, "profiles": _profiles(
            (0, 19, "1g.23gb", 1, 7, 18, 23552), (1, 14, "2g.45gb", 2, 3, 36, 46080), (4, 0, "7g.180gb", 7, 1, 148, 182272))},
    },
}
