"""Restarts on simulated hosts are confirmed over a connection of their own; who could not do it leaves that to the next run."""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.sim.host import kinds
from gpunode.sim.process import Demo
from tests import jsonlines

from . import operators
from .clusters import until
from .fleets import serving
from .operators import worked

# gpunode as a user runs it, but killed with -9 when it is about to open the connection that confirms.
KILLED = """
import os, signal, sys
from gpunode.engine import converge
from gpunode.host import wire
follow = wire.follow_job
def killed(run, confirms=None):
    if confirms is not None:
        os.kill(os.getpid(), signal.SIGKILL)
    return follow(run, confirms)
wire.follow_job = killed
converge.CONFIRM_SECONDS = float(sys.argv.pop(1))
from gpunode.__main__ import main
main()
"""


@pytest.fixture
def demo(tmp_path, monkeypatch) -> Iterator[Demo]:
    """A host that was never provisioned, whose kubelet knows its API server."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    with Demo([kinds.old_host("gpu-1")]) as made:
        joined = made.states["gpu-1"].root / "etc/kubernetes/kubelet.conf"
        joined.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(made.folder / "kubeconfig", joined)
        written = yaml.safe_load(made.inventory.read_text())
        del written["cluster"]  # hosts alone: no Lease of a killed run to wait for
        made.inventory.write_text(yaml.safe_dump(written))
        yield made


def gpunode(demo: Demo, *words: str, killed: float = 0) -> subprocess.CompletedProcess[str]:
    """`killed`: before it confirms, with so many seconds for the host to wait."""
    if not killed:
        return operators.gpunode(demo.folder, *words)
    command = [sys.executable, "-c", KILLED, str(killed), *words]
    return subprocess.run(
        command, cwd=demo.folder, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def planned(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """The plan's line of the host."""
    lines = jsonlines.parse(done.stdout)
    return next(line for line in lines if line["type"] == "plan")


def records(demo: Demo, name: str) -> list[Path]:
    return list((demo.states["gpu-1"].root / "var/lib/gpunode/runs").glob(f"*/{name}"))


def test_an_operator_killed_before_the_confirmation_leaves_a_mark_that_the_next_run_takes_away(demo: Demo):
    """The API server answers the host: the change stays. A plan tells, and a provision confirms."""
    done = gpunode(demo, "provision", "inventory.yaml", "--yes", killed=1)
    assert done.returncode == -9, done.stdout + done.stderr
    until(lambda: records(demo, "unconfirmed-*.json"))
    until(lambda: '"end"' in records(demo, "messages.jsonl")[0].read_text())

    for _ in range(2):  # a plan changes nothing
        (restart,) = planned(gpunode(demo, "plan", "inventory.yaml", "--json"))["unconfirmed"]
        assert (restart["code"], restart["unit"]) == ("api-server-answered", "docker.service")
    words = gpunode(demo, "plan", "inventory.yaml", "--no-diff").stdout
    assert f"unconfirmed: after the restart of docker.service by {restart['by']}" in words

    notes = gpunode(demo, "verify", "inventory.yaml", "--json").stdout
    assert "gpu-1: unconfirmed: after the restart of docker.service" in notes

    done = worked(gpunode(demo, "provision", "inventory.yaml", "--yes", "--json"))
    assert planned(done)["unconfirmed"] == [restart]
    assert records(demo, "unconfirmed-*.json") == []
    assert "unconfirmed" not in planned(gpunode(demo, "plan", "inventory.yaml", "--json"))


def test_a_confirmation_is_one_connection_and_a_run_without_changes_makes_none(tmp_path):
    """One exec to probe, one to apply and one for each guarded restart."""
    with serving(tmp_path, [kinds.old_host("gpu-0")]) as fleet:
        outcome = fleet.provision()["gpu-0"]
        assert outcome.status == "changed"
        guarded = [change for change in outcome.applied if getattr(change, "guards", ())]
        applies = len(list((fleet.states["gpu-0"].root / "var/lib/gpunode/runs").iterdir()))
        assert guarded
        before = fleet.server.execs("gpu-0")
        assert before == 1 + applies + len(guarded)
        assert fleet.look()["gpu-0"].status == "right"
        assert fleet.server.execs("gpu-0") == before + 1
