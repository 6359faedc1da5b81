"""`make gpu`: everything marked `gpu`, on this machine's GPUs, and what docs/support.md can say of it.

python -m tests.gpu_block [pytest's arguments]. Without a GPU it says so and succeeds.
"""

import datetime
import json
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

from gpunode.deviceplugin.nvml import Nvml

FIGURES = ("memory_gbps", "compute_tflops", "to_device_gbps", "from_device_gbps", "memory_tested_mib")


class Seen:
    """Outcomes of tests, and the documents that they recorded by `record_property("measurements", …)`."""

    def __init__(self) -> None:
        self.outcomes: Counter[str] = Counter()
        self.documents: list[str] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[report.outcome] += 1
        if report.when == "call":
            self.documents += [str(text) for name, text in report.user_properties if name == "measurements"]


def block(seen: Seen, seconds: float) -> str:
    """Markdown: the run, then a line for each GPU and level."""
    nvml = Nvml()
    nvml.nvmlInit()
    driver = nvml.nvmlSystemGetDriverVersion()
    names = Counter(
        nvml.nvmlDeviceGetName(nvml.nvmlDeviceGetHandleByIndex(index))
        for index in range(nvml.nvmlDeviceGetCount())
    )
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    gpus = ", ".join(f"{count} × {name}" for name, count in names.items())
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(seen.outcomes.items()))
    today = datetime.datetime.now(datetime.timezone.utc).date()
    lines = [
        "| date | GPUs | driver | commit | tests | seconds |",
        "| --- | --- | --- | --- | --- | --- |",
        f"| {today} | {gpus} | {driver} | {commit or '–'} | {outcomes} | {seconds:.0f} |",
        "",
        f"| level | GPU | {' | '.join(FIGURES)} | seconds |",
        "| --- " * (len(FIGURES) + 3) + "|",
    ]
    for document in map(json.loads, seen.documents):
        for gpu in document["gpus"]:
            cells = [str(gpu["measured"].get(name, "–")) for name in FIGURES]
            lines.append(f"| {document['level']} | {gpu['name']} | {' | '.join(cells)} | {gpu['seconds']} |")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if not Path("/dev/nvidia0").exists():
        print("skipped: no NVIDIA GPU on this machine: /dev/nvidia0 is not there")
        return 0
    seen, began = Seen(), time.monotonic()
    status = int(pytest.main(["-m", "gpu", *arguments], plugins=[seen]))
    print(f"\n{block(seen, time.monotonic() - began)}")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
