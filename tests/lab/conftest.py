"""Fixtures for tests on the real cluster. Where it cannot run, they skip and say why."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import jsonlines

from . import api, machine
from .builds import CHECKOUT
from .lab import is_cold
from .pods import Pods, pods
from .progress import CannotRun, LabError

GPUNODE = Path(sys.executable).with_name("gpunode")
# Begun first, so that in the end no lab is busy for long while the others are not.
LONGEST = (
    "test_interrupted",
    "test_provision",
    "test_deviceplugin_modes",
    "test_switch_over",
    "test_deviceplugin_publish",
    "test_hosts_as_real",
    "test_memory_sharing",
    "test_share",
    "test_reboot",
    "test_faults",
    "test_runtime_files",
    "test_container",
    "test_readiness",
    "test_dra",
    "test_accept",
)
# Begun last: they leave a host bare, which the next file would have to provision. The longest of them are first.
BARE = ("test_undo", "test_restore", "test_forget", "test_rpm", "test_outside", "test_memory_limits")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In this order; `make lab-test` hands files out as they come."""
    order = {name: number for number, name in enumerate((*LONGEST, "", *BARE))}
    items.sort(key=lambda item: order.get(item.path.stem, len(LONGEST)))


@dataclass(frozen=True)
class Ran:
    """What one run of gpunode said. `lines` is stdout as JSON lines."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[dict[str, Any]]:
        return jsonlines.parse(self.stdout)

    def of(self, kind: str, host: str | None = None) -> list[dict[str, Any]]:
        """The JSON lines of one type, of one host."""
        return [
            line for line in self.lines if line["type"] == kind and (host is None or line.get("host") == host)
        ]

    def status(self, host: str) -> str:
        """How the host's story ended, as the last outcome says."""
        return str(self.of("outcome", host)[-1]["status"])

    def __str__(self) -> str:
        return f"exit {self.code}\n--- stdout\n{self.stdout[-6000:]}\n--- stderr\n{self.stderr[-3000:]}"


@pytest.fixture(scope="session")
def lab(worker: int) -> api.Lab:
    """The running lab of this checkout; each of several processes that run tests has one of its own."""
    try:
        machine.check()
        try:
            return api.load(worker + 1)
        except LabError as error:
            machine.check_room(1, cold=is_cold())
            pytest.fail(str(error))
    except CannotRun as reason:
        pytest.skip(f"no lab: {reason}")


@pytest.fixture(scope="session")
def gpunode(lab: api.Lab) -> Callable[..., Ran]:
    """Run gpunode as a user does, against the lab's inventory unless another is given. `die`: where its applies are killed (dying.py)."""

    def run(
        command: str,
        *options: str,
        inventory: Path | None = None,
        timeout: float = 600,
        die: Mapping[str, Sequence[str]] | None = None,
    ) -> Ran:
        program = [sys.executable, "-m", "tests.lab.dying", json.dumps(die)] if die else [str(GPUNODE)]
        words = [*program, *command.split(), str(inventory or lab.inventory), *options]
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            timeout=timeout,
            stdin=subprocess.DEVNULL,
            check=False,
            cwd=CHECKOUT,
        )
        return Ran(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def inventory(lab: api.Lab) -> Iterator[Callable[..., Path]]:
    """Writes variants of the lab's inventory beside it, where its relative paths hold."""
    made: list[Path] = []

    def write(change: Callable[[str], str]) -> Path:
        path = lab.inventory.with_name(f"variant-{len(made)}.yaml")
        path.write_text(change(lab.inventory.read_text()))
        made.append(path)
        return path

    yield write
    for path in made:
        path.unlink()


@pytest.fixture
def made(lab: api.Lab) -> Iterator[Pods]:
    """Makes pods for one test."""
    with pods(lab) as made:
        yield made


@pytest.fixture(scope="module")
def provisioned(gpunode: Callable[..., Ran]) -> Iterator[None]:
    """All hosts are GPU nodes, and afterwards the plugin is as the inventory has it."""
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran
    yield
    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran
