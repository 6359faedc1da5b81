"""`connection: openssh` on simulated hosts: the same stories as with gpunode's own client."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from gpunode.engine import converge
from gpunode.engine.fleet import Visit
from gpunode.host import openssh
from gpunode.model import Event, OnEvent, Outcome
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo
from tests.sim import operators
from tests.sim.fleets import Fleet, serving

pytestmark = pytest.mark.skipif(shutil.which("ssh") is None, reason="OpenSSH's client is not installed")


@pytest.fixture
def fleet(tmp_path) -> Iterator[Fleet]:
    """Two hosts; afterwards no master of ssh is left."""
    with serving(tmp_path, [kinds.old_host("old"), kinds.nouveau_host("new")], openssh.Dialer) as served:
        yield served
    left = subprocess.run(
        ["pgrep", "-f", f"ssh -M .*{tmp_path}"], capture_output=True, text=True, check=False
    )
    assert left.stdout == ""


def test_hosts_are_provisioned_and_rebooted(fleet: Fleet):
    """To an empty plan; a host that rebooted is reached by a new master."""
    events: list[Event] = []
    for outcome in fleet.provision(emit=events.append).values():
        assert (outcome.status, outcome.problem) == ("changed", None)
        assert not outcome.plan
    assert any(event.message == "reboot" for event in events)
    assert {outcome.status for outcome in fleet.look().values()} == {"right"}


def test_an_apply_goes_on_when_its_master_dies(fleet: Fleet):
    """A new master follows it to its end."""
    cut = []

    def emit(event: Event) -> None:
        if event.type == "change" and not cut:
            cut.append(event)
            fleet.server.cut("old")

    outcome = fleet.each(lambda visit, _: _applied(visit, emit), "old")["old"]
    assert (outcome.status, outcome.problem) == ("changed", None)
    assert cut


@pytest.mark.timeout(300)
def test_every_command_works_over_it(tmp_path, monkeypatch):
    """From bare hosts to finished pods, an interrupted run, and its resumption; and no process is left."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with Demo([kinds.old_host(f"gpu-{number}") for number in (1, 2)]) as demo:
        inventory = demo.folder / "inventory.yaml"
        inventory.write_text(
            inventory.read_text().replace("defaults:\n", "defaults:\n  connection: openssh\n")
        )
        with demo.states["gpu-2"].change() as now:
            now.faults["repository-unreachable"] = "1"
        assert _gpunode(demo, "provision", "inventory.yaml", "--yes", "--batch", "1") == 1
        with demo.states["gpu-2"].change() as now:
            now.faults.clear()
        assert _gpunode(demo, "resume", "inventory.yaml", "--yes") == 0
        assert _gpunode(demo, "verify", "inventory.yaml") == 0
        assert _gpunode(demo, "plan", "inventory.yaml", "--exit-code") == 0
        assert _gpunode(demo, "abort", "inventory.yaml") == 0
        left = subprocess.run(["pgrep", "-f", f"ssh -M .*{demo.folder}"], capture_output=True, check=False)
        assert left.stdout == b""


def _gpunode(demo: Demo, *words: str) -> int:
    return operators.gpunode(demo.folder, *words).returncode


def _applied(visit: Visit, emit: OnEvent) -> Outcome:
    return converge.apply(visit, converge.probe_and_plan(visit, emit), emit)
