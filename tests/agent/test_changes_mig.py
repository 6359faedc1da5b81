"""The agent cuts GPUs by MIG, through an nvidia-smi that keeps two of them in files; and so does the script of each boot."""

import os
import subprocess
from collections.abc import Sequence

import pytest

from gpunode.engine import undo
from gpunode.host import wire
from gpunode.model import Facts, Gpu, GpuLayout, Layout, Left, MigDevice, MigLayout, Os
from gpunode.planning.templates import template
from tests.agent.conftest import PROGRAMS, Host

A, B = "0000:19:00.0", "0000:3b:00.0"
CUT = ("3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb")


@pytest.fixture
def gpus(host: Host) -> Host:
    """A host with two GPUs without MIG."""
    host.program("nvidia-smi", (PROGRAMS / "nvidia-smi").read_text())
    for pci in (A, B):
        put(host, pci, None)
    return host


def put(host: Host, pci: str, layout: Layout) -> None:
    rows = ("Disabled",) if layout is None else ("Enabled", *layout)
    host.write(f"/state/mig/{pci}", "".join(f"{row}\n" for row in rows))


def layout_of(host: Host, pci: str) -> Layout:
    mode, *profiles = host.read(f"/state/mig/{pci}").splitlines()
    return tuple(profiles) if mode == "Enabled" else None


def change(*after: Layout, services: Sequence[str] = ()) -> MigLayout:
    gpus = tuple(GpuLayout(pci, layout) for pci, layout in zip((A, B), after, strict=False))
    return MigLayout(gpus, "why", tuple(services))


def acts(host: Host) -> list[str]:
    return [call for call in host.calls() if {"-mig", "-cgi", "-dgi", "stop", "start"} & set(call.split())]


@pytest.mark.parametrize(
    ("before", "after"),
    [(None, CUT), ((), CUT), (CUT, ("7g.80gb",)), (CUT, None), (CUT, ())],
    ids=["off", "on", "cut otherwise", "to be off", "to be whole"],
)
def test_a_gpu_gets_its_layout(gpus: Host, before: Layout, after: Layout):
    """Whatever it had; that is told, for the way back."""
    put(gpus, A, before)
    done = [message for message in gpus.apply(change(after)) if message["type"] == "done"]
    assert layout_of(gpus, A) == after
    assert done[0]["detail"]["layouts"] == {A: list(before) if before is not None else None}
    assert layout_of(gpus, B) is None


def test_a_gpu_that_has_its_layout_is_not_touched(gpus: Host):
    """In another order, too."""
    put(gpus, A, tuple(reversed(CUT)))
    assert gpus.apply(change(CUT, None))[-1]["ok"]
    assert acts(gpus) == []


def test_dcgm_makes_way_while_gpus_are_cut(gpus: Host):
    """And comes back; one that does not run stays so."""
    gpus.unit("nvidia-dcgm.service")
    gpus.write("/run/gpunode/stopped", "nvidia-persistenced.service")
    assert gpus.apply(change(CUT, services=["nvidia-dcgm.service"]))[-1]["ok"]
    first, *cuts, last = acts(gpus)
    assert (first, last) == ("systemctl stop nvidia-dcgm.service", "systemctl start nvidia-dcgm.service")
    assert not [act for act in cuts if act.startswith("systemctl")]


def test_nothing_is_cut_under_a_process(gpus: Host):
    """It is named, and the layouts stay."""
    gpus.path("/dev").mkdir()
    gpus.path("/dev/nvidia0").touch()
    gpus.write("/proc/4711/cmdline", "python3\0")
    gpus.path("/proc/4711/fd").mkdir()
    os.symlink("/dev/nvidia0", gpus.path("/proc/4711/fd/3"))
    failed = gpus.fail(change(CUT))
    assert failed["code"] == "gpus-in-use"
    assert "python3 (pid 4711)" in failed["error"]
    assert acts(gpus) == []


def test_a_profile_that_the_gpu_does_not_list_changes_nothing(gpus: Host):
    """Of none of the GPUs of the change."""
    put(gpus, B, ())
    failed = gpus.fail(change(CUT, ("3g.47gb",)))
    assert failed["error"] == f"GPU {B} has no MIG profile 3g.47gb: nothing was changed"
    assert acts(gpus) == []


@pytest.mark.parametrize("before", [None, (), ("7g.80gb",)], ids=["off", "on", "cut"])
def test_a_layout_that_does_not_fit_leaves_the_one_of_before(gpus: Host, before: Layout):
    """What was made of it so far is taken away."""
    put(gpus, A, before)
    gpus.write("/state/mig/full", "1g.10gb\n")
    failed = gpus.fail(change(CUT))
    assert failed["code"] == "mig-failed"
    assert "Insufficient Resources" in failed["error"]
    assert layout_of(gpus, A) == before


def test_devices_that_cannot_be_destroyed_stay(gpus: Host):
    """A client that the process list does not show has them; nvidia-smi's words say so."""
    put(gpus, A, CUT)
    gpus.write("/state/mig/busy", "")
    failed = gpus.fail(change(None))
    assert "In use by another client" in failed["error"]
    assert layout_of(gpus, A) == CUT


def test_a_mode_that_waits_for_a_reset_is_told(gpus: Host):
    """The next plan has the reboot for it."""
    gpus.write("/state/mig/pending", "")
    done = [message for message in gpus.apply(change(CUT)) if message["type"] == "done"]
    assert done[0]["detail"]["pending"] == [A]
    assert layout_of(gpus, A) is None


def test_an_undo_cuts_the_gpus_as_they_were(gpus: Host):
    """By the journal, which has the layouts of before the run, however often it cut; one that somebody cut since stays."""
    put(gpus, A, ("7g.80gb",))
    for layout in (("3g.40gb", "3g.40gb"), CUT):
        job = gpus.job(change(layout, layout), record="r1", why=["why"])
        assert gpus.ask(job)[-1]["ok"]
    (message,) = gpus.ask(wire.journal_job("r1"))
    entries = wire.read(message)["entries"]
    put(gpus, B, ("7g.80gb",))

    changes, left = undo.plan(entries, "r1", facts(gpus))

    assert gpus.apply(*changes)[-1]["ok"]
    assert (layout_of(gpus, A), layout_of(gpus, B)) == (("7g.80gb",), ("7g.80gb",))
    assert left == (Left("kept", f"MIG of {B}", "changed since the run"),)
    assert undo.plan(entries, "r1", facts(gpus))[0] == ()


def facts(host: Host) -> Facts:
    """What a probe finds, without the files below /proc and /sys that this host has not."""
    gpus = []
    for n, pci in enumerate((A, B)):
        layout = layout_of(host, pci)
        parts = tuple(MigDevice(k, f"MIG-{k}", profile) for k, profile in enumerate(layout or ()))
        gpus.append(Gpu(n, f"GPU-{n}", "NVIDIA H100", pci, 81559, parts, layout is not None))
    return Facts(1.0, "h", Os("debian", "12", ""), "6.1", "b", gpus=tuple(gpus))


@pytest.mark.parametrize(
    ("layout", "left"), [(None, CUT), ((), CUT), (("7g.80gb",), ("7g.80gb",))], ids=["off", "on", "cut"]
)
def test_each_boot_makes_the_layouts_again(gpus: Host, layout: Layout, left: Layout):
    """As they are after a boot of Hopper, of Ampere, and where somebody has cut the GPU otherwise meanwhile."""
    put(gpus, A, layout)
    script = template("etc/gpunode-mig.sh", layouts={A: CUT})
    ended = subprocess.run(["/bin/sh", "-c", script], env=gpus.environment, check=False, capture_output=True)
    assert ended.returncode == 0, ended.stderr
    assert (layout_of(gpus, A), layout_of(gpus, B)) == (left, None)
