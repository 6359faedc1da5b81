"""The stand-ins of the driver's libraries, below the real plugin's code and NVIDIA's real Python binding."""

import ctypes
import json
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from gpunode.sim.host import kinds
from gpunode.sim.host.machine import Now
from gpunode.sim.host.state import State
from gpunode.sim.node.container import CannotStart, Endpoints, arguments_of, environment_of
from gpunode.sim.node.nvml import Driver, Nvml

from .clusters import ready

MACHINE = kinds.old_host("old")
PLACE = Endpoints(Path("plugins"), Path("resources"))


@pytest.fixture(scope="module")
def state(tmp_path_factory) -> State:
    return ready(tmp_path_factory.mktemp("sim"), MACHINE)


def environment(
    state: State, now: Now | None = None, handler: str = "nvidia", **asked: str
) -> dict[str, str]:
    """That of a container that asks for the host's first GPU."""
    wish = {"NVIDIA_VISIBLE_DEVICES": MACHINE.gpus[0].uuid, **asked}
    return environment_of(wish, state.folder, now or state.now(), handler, PLACE)


def vectoradd(**environment: str) -> tuple[int, dict[str, Any]]:
    """Exit status and what it printed."""
    words = arguments_of({"args": ["-m", "gpunode.deviceplugin.vectoradd", "--json", "--elements", "1000"]})
    with subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout
        said = process.stdout.read()
        return process.wait(120), json.loads(said)


def test_without_the_nvidia_runtime_there_is_no_library(state: State):
    """Nor where a container asks for no GPU, or for none of its computing."""
    for given in (
        environment(state, handler="runc"),
        environment(state, NVIDIA_VISIBLE_DEVICES="void"),
        environment(state, NVIDIA_DRIVER_CAPABILITIES="utility"),
    ):
        code, said = vectoradd(**given)
        assert (code, said["passed"]) == (2, False)
        assert "libcuda.so.1 cannot be loaded" in said["error"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"modules": {}}, "CUDA_ERROR_NO_DEVICE (100)"),
        ({"modules": {"nvidia": "595.1"}}, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH (803)"),
        ({"lost": [MACHINE.gpus[0].uuid]}, "CUDA_ERROR_UNKNOWN (999)"),
    ],
)
def test_what_happens_to_the_host_while_a_container_runs_is_seen_in_it(
    state: State, changes: dict[str, Any], words: str
):
    """The module goes, another one comes, the GPU is lost."""
    given = environment(state)
    before = state.now()
    with state.change() as now:
        for name, value in changes.items():
            setattr(now, name, value)
    try:
        code, said = vectoradd(**given)
    finally:
        with state.change() as now:
            now.modules, now.lost = before.modules, before.lost
    assert code in {1, 2}
    assert words in (said.get("error") or said["gpus"][0]["error"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"library": ""}, "load library failed: libnvidia-ml.so.1"),
        ({"modules": {}}, "driver not loaded"),
        ({"library": "595.1"}, "driver/library version mismatch"),
    ],
)
def test_a_container_does_not_start_where_the_hook_finds_no_driver(
    state: State, changes: dict[str, Any], words: str
):
    """In the words of nvidia-container-cli."""
    now = state.now()
    for name, value in changes.items():
        setattr(now, name, value)
    with pytest.raises(CannotStart, match=words):
        environment(state, now)
    assert "GPUNODE_SIM_HOST" not in environment(state, now, handler="runc")


@pytest.mark.parametrize(
    "command", [["bash"], ["python3", "-c", "print()"], ["python3", "-m", "http.server"], ["sleep", "$(id)"]]
)
def test_no_program_of_this_computer_is_run_for_a_pod(command: list[str]):
    """A container has what the plugin's image holds; all else is not found in it."""
    with pytest.raises(CannotStart, match="executable file not found"):
        arguments_of({"command": command})


def test_event_sets_that_are_made_at_once_are_each_watchs_own(state: State, monkeypatch):
    """Every GPU has a thread that listens for it: an Xid must not come to another GPU's."""
    driver = Driver(state.folder, environment(state))
    both = threading.Barrier(2, timeout=60)

    def xids() -> list[tuple[str, int]]:
        both.wait()
        return []

    monkeypatch.setattr(driver, "xids", xids)
    library = Nvml(driver)

    def make(_: int) -> int | None:
        made = ctypes.c_void_p()
        library.nvmlEventSetCreate(ctypes.byref(made))
        return made.value

    with ThreadPoolExecutor(2) as pool:
        assert len(set(pool.map(make, range(2)))) == 2


def test_a_pod_of_mps_daemons_is_told_that_they_are_not_simulated():
    """Not that its image lacks a program."""
    with pytest.raises(CannotStart, match="this host is simulated, and sharing by MPS is not"):
        arguments_of({"args": ["-m", "gpunode.deviceplugin.mps"]})
