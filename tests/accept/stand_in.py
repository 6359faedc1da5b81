"""The lab's stand-in driver for programs of this machine: libcuda and libnvidia-ml on a state that a test writes.

Nothing is installed, no namespace and no root is needed: its libraries look below the folder that LAB_GPUS names.
Programs are forked from one that has its libraries' path and what they import: a start of Python is half of what they cost.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Mapping
from functools import cached_property, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpunode.sim.forkserver import ForkServer
from tests import forks
from tests.lab import cache
from tests.lab.gpu import SOURCES, _describe, build_libraries, compiler
from tests.lab.gpu import __file__ as gpu_package

ROOT = Path(__file__).parents[2]
VERSION, CUDA = "580.178.04", 13000


class StandIn:
    """A driver in `folder`. `gpus` sets what it drives; `set` changes a fact, at once and for running programs too."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._facts: dict[str, str] = {}
        self._generation = 0
        key = [SOURCES, Path(gpu_package), compiler(), VERSION, str(CUDA)]
        built = cache.entry("gpu-libraries", key, lambda to: build_libraries(to, VERSION, CUDA))
        for name in ("libnvidia-ml", "libcuda"):
            (folder / f"{name}.so.1").symlink_to(built / f"{name}.so.{VERSION}")

    def gpus(self, *gpus: Mapping[str, Any], driver: str = VERSION) -> None:
        """As for `tests.lab.gpu.install`."""
        shutil.rmtree(self.folder / "dev", ignore_errors=True)
        (self.folder / "dev/nvidia-caps").mkdir(parents=True)
        described = [
            {**_describe(gpu, number, len(gpus)), "minor": number} for number, gpu in enumerate(gpus)
        ]
        for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{number}" for number in range(len(gpus)))):
            (self.folder / "dev" / name).touch()
        for minor, gpu in enumerate(gpus):
            for instance in range(15 * 9 if gpu.get("mig_layout") else 0):
                (self.folder / "dev/nvidia-caps" / f"nvidia-cap{3 + minor * 15 * 9 + instance}").touch()
        self._facts = dict(_flat("gpus", described)) | {"driver.version": driver}
        self._write()
        self.uuids = [gpu["uuid"] for gpu in described]

    def set(self, facts: Mapping[str, object]) -> None:
        self._facts |= {key: str(value) for key, value in facts.items()}
        self._write()

    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.folder),
            "LAB_GPUS": str(self.folder),
            "PYTHONPATH": str(ROOT),
        }

    def run(self, *argv: str) -> subprocess.CompletedProcess[str]:
        """Fork a Python."""
        done: subprocess.CompletedProcess[str] = forks.run(
            [sys.executable, *argv],
            server=self._server,
            env=self.environment(),
            capture_output=True,
            text=True,
        )
        return done

    @property
    def subprocess(self) -> SimpleNamespace:
        """In place of the module where a program starts others."""
        popen = partial(forks.Popen, server=self._server)
        return SimpleNamespace(PIPE=subprocess.PIPE, TimeoutExpired=subprocess.TimeoutExpired, Popen=popen)

    @cached_property
    def _server(self) -> ForkServer:
        load = "from gpunode.accept import child, gauges, kernels, listing, stages"
        return forks.ended_at_exit(ForkServer(load, flags=(), environment=self.environment()))

    def _write(self) -> None:
        """In place, as lab-gpu does: a reader sees one generation."""
        self._generation += 1
        lines = [f"lab-gpus {self._generation}", *(f"{key} {value}" for key, value in self._facts.items())]
        text = "\n".join([*lines, f"end {self._generation}"]) + "\n"
        state = self.folder / "run/lab-gpus/state"
        state.parent.mkdir(parents=True, exist_ok=True)
        part = state.with_suffix(".part")
        part.write_text(text)
        part.replace(state)


def _flat(path: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _flat(f"{path}.{key}", entry)
    elif isinstance(value, list):
        for number, entry in enumerate(value):
            yield from _flat(f"{path}.{number}", entry)
        yield f"{path}.count", str(len(value))
    else:
        yield path, str(value)


def build(folder: Path) -> StandIn:
    if not shutil.which("gcc"):
        pytest.skip("no gcc to compile the stand-in driver with")
    return StandIn(folder)
