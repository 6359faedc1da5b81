"""The demo from its start to its end: it does what it tells, and leaves nothing."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpunode.sim import demo as demos
from gpunode.sim import kinds
from gpunode.sim.demo import Demo
from gpunode.sim.rehearsal import rehearsal

GPUNODE = [sys.executable, "-m", "gpunode"]


@pytest.fixture(autouse=True)
def room(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Demos make their folders here (a short path, for the sockets in it); none may be left."""
    with tempfile.TemporaryDirectory(prefix="gpn-") as name:
        monkeypatch.setattr("tempfile.tempdir", name)
        monkeypatch.setenv("TMPDIR", name)
        yield Path(name)
        assert not folders(Path(name))


def folders(room: Path) -> list[Path]:
    return list(room.glob(f"{demos.PREFIX}*"))


def gone(folder: Path, seconds: float = 20) -> bool:
    """Whether a demo's folder and processes are gone before the time is over."""
    deadline = time.monotonic() + seconds
    while (folder.exists() or processes(folder)) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not folder.exists() and not processes(folder)


def processes(folder: Path) -> list[str]:
    """Processes that have to do with a demo's folder."""
    shown = subprocess.run(["ps", "-ww", "-eo", "pid,args"], capture_output=True, text=True, check=True)
    return [line for line in shown.stdout.splitlines() if str(folder) in line]


def test_two_demos_stand_side_by_side_and_leave_nothing(room: Path) -> None:
    """Each with its own folder, hosts and cluster."""
    with Demo([kinds.new("one")]) as first, Demo([kinds.new("two")]) as second:
        for demo, name in ((first, "one"), (second, "two")):
            plan = subprocess.run(
                [*GPUNODE, "plan", str(demo.inventory)], capture_output=True, text=True, check=False
            )
            assert plan.returncode == 0, plan.stderr
            assert name in plan.stdout
        both = (first.folder, second.folder)
        assert all(processes(folder) for folder in both)
    assert not any(processes(folder) for folder in both)


def test_one_that_is_kept_goes_on_until_it_is_stopped(room: Path) -> None:
    """`gpunode demo stop` ends it, and what one that was killed left."""
    with Demo([kinds.without("cpu-1")]) as demo:
        demo.keep()
    stale = room / f"{demos.PREFIX}stale"
    stale.mkdir()
    look = subprocess.run(
        [*GPUNODE, "plan", str(demo.inventory)], capture_output=True, text=True, check=False
    )
    assert "no NVIDIA GPU on the PCI bus" in look.stdout
    stopped = subprocess.run([*GPUNODE, "demo", "stop"], capture_output=True, text=True, check=True)
    assert str(demo.folder) in stopped.stdout
    assert not folders(room)
    assert not processes(demo.folder)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_an_interrupted_show_leaves_nothing(room: Path, number: signal.Signals) -> None:
    """However it ends: its server notices."""
    words = [*GPUNODE, "demo", "--fast", "--hosts", "2"]
    with subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    ) as show:
        assert show.stdout
        while b"$ gpunode plan" not in show.stdout.readline():
            assert show.poll() is None
        folder = folders(room)[0]
        os.kill(show.pid, number)
        if number is not signal.SIGKILL:
            assert show.wait(timeout=20) == 130
        assert gone(folder)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(show.pid, signal.SIGKILL)  # gpunode's command of that moment


def test_the_show_goes_from_bare_to_verified(room: Path) -> None:
    """Without a terminal it is plain text, without pauses."""
    words = [*GPUNODE, "demo", "--hosts", "1"]
    show = subprocess.run(words, capture_output=True, text=True, check=False)
    assert show.returncode == 0, show.stdout + show.stderr
    assert "simulation" in show.stdout.splitlines()[1]
    assert "\033" not in show.stdout + show.stderr
    for said in ("✓ pod", "nvidia-tesla-p100", "nothing to do"):
        assert said in show.stdout
    assert show.stdout.count(" passed") >= 2


def test_a_link_that_is_not_known_is_refused_with_those_that_are() -> None:
    """Exit code 2, as for other mistakes of usage."""
    show = subprocess.run(
        [*GPUNODE, "demo", "--break", "everything"], capture_output=True, text=True, check=False
    )
    assert show.returncode == 2
    assert "xid" in show.stderr


def test_a_rehearsal_invents_hosts_that_fit_the_inventory() -> None:
    """Names say what GPUs there are; groups and wishes stay."""
    machines, groups, _ = rehearsal(Path("inventories/fleet.yaml"))
    models = {machine.name: machine.gpus[0].name for machine in machines}
    assert models["p100-07"] == "Tesla P100-PCIE-16GB"
    assert models["h100-17"] == "NVIDIA H100 80GB HBM3"
    assert len(groups["h100"]["hosts"]) == 17
    pinned = next(host for host in groups["h100"]["hosts"] if host["name"] == "h100-17")
    assert (pinned["driver"], pinned["runtime"]) == ("580.95.05", "class")
