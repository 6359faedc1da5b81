"""dnf and rpm of a simulated host: what the real ones say, kept as a table, and what is so afterwards.

`test_rpm_as_real.py` asks the real ones, where they are installed.
"""

from __future__ import annotations

import io
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.sim.host import hosts, kinds
from gpunode.sim.host.programs.dnf import dnf
from gpunode.sim.host.programs.rpm import rpm
from gpunode.sim.host.state import State


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    status: int
    out: str
    err: str


Ask = Callable[[str], Said]


@pytest.fixture
def state(tmp_path: Path) -> State:
    """An RPM host, and NVIDIA's repositories in its files."""
    hosts.lay_out(tmp_path)
    made = hosts.create(tmp_path, kinds.rpm("rocky"))
    for name in ("cuda", "libnvidia-container"):
        text = f"[{name}]\nname={name}\nbaseurl=http://packages.demo.example/{name}\n"
        (made.root / f"etc/yum.repos.d/{name}.repo").write_text(text)
    return made


@pytest.fixture
def ask(state: State, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs a command on it; stdin is empty."""
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def ran(command: str) -> Said:
        program, *arguments = shlex.split(command)
        status = {"dnf": dnf, "rpm": rpm}[program](state, arguments)
        return Said(status, *capsys.readouterr())

    return ran


@pytest.mark.parametrize(
    "command", ["dnf history", "dnf", "rpm -qi make", "rpm -i x.rpm", "rpm --whatprovides x"]
)
def test_what_the_simulation_has_not_it_says(ask: Ask, command: str) -> None:
    """It claims nothing of the real one then."""
    said = ask(command)
    assert (said.status, said.out) == (1, "")
    assert "the simulation has" in said.err


def test_the_driver_comes_with_its_packages_and_goes_with_them(state: State, ask: Ask) -> None:
    """nvidia-smi, the library and the module, as on a host with apt."""
    environment = hosts.environment(state, state.machine())

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = ["/bin/sh", "-c", command]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert run("nvidia-smi").returncode == 127
    assert run("modprobe nvidia").returncode == 1
    said = ask("dnf install -y nvidia-driver-cuda-580.178.04")
    assert said.status == 0
    assert "Installing dependencies:" in said.out
    assert said.out.endswith("\nComplete!\n")
    assert "/usr/lib64/libnvidia-ml.so.1" in run("ldconfig -p").stdout
    assert (state.root / "lib64/libnvidia-ml.so.1").resolve().name == "libnvidia-ml.so.580.178.04"
    assert run("modprobe nvidia && nvidia-smi").stdout.count("H100") == 2
    assert (
        "Open Kernel Module for x86_64  580.178.04" in (state.root / "proc/driver/nvidia/version").read_text()
    )
    assert ask("rpm -q nvidia-driver-cuda").out == "nvidia-driver-cuda-580.178.04-1.el9.x86_64\n"
    ask("dnf remove -y libnvidia-ml")
    assert run("nvidia-smi").returncode == 127
    assert not run("ldconfig -p").stdout
    assert not [name for name in state.now().packages if "nvidia" in name or name in ("dkms", "gcc")]


def test_a_driver_for_another_kernel_than_the_running_one_is_not_loaded(state: State, ask: Ask) -> None:
    """dkms built it for the kernel whose headers are there."""
    ask("dnf install -y nvidia-driver-cuda")
    with state.change() as now:
        now.packages["kernel-devel"].version = "5.14.0-611.el9"
    words = ["/bin/sh", "-c", "modprobe nvidia"]
    done = subprocess.run(
        words, env=hosts.environment(state, state.machine()), capture_output=True, text=True, check=False
    )
    assert "Module nvidia not found in directory /lib/modules/5.14.0-570.el9.x86_64" in done.stderr


@pytest.mark.parametrize("fault", ["a host that nobody knows", "the network is down"])
def test_a_repository_that_does_not_answer_stops_it(state: State, ask: Ask, fault: str) -> None:
    """With its id and address; nothing is changed."""
    place = state.root / "etc/yum.repos.d/aaa.repo"
    place.write_text("[aaa]\nname=A\nbaseurl=http://nosuch.example/cuda\n")
    if fault == "the network is down":
        with state.change() as now:
            now.faults["repository-unreachable"] = "1"
    else:
        place.write_text("[aaa]\nname=A\nbaseurl=http://nosuch.example/repo\n")
    before = state.now()
    said = ask("dnf install -y gcc")
    assert said.status == 1
    assert "Errors during downloading metadata for repository 'aaa':\n  - Curl error (6)" in said.err
    assert said.err.endswith("Cannot download repodata/repomd.xml: All mirrors were tried\n")
    assert state.now() == before
    assert ask("dnf list --installed bash").status == 0
