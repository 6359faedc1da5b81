"""Commands of the operator's machine that decide whether a batch may begin."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from gpunode import report
from gpunode.engine import exit_codes, gate
from gpunode.engine.history import read
from gpunode.engine.member import PAUSED, Member
from gpunode.engine.record import Record, RunOptions
from gpunode.errors import Problem
from gpunode.model import Cluster, GateCommand, Host, Inventory, Outcome, Ssh

HOST = Host("gpu-1", Ssh("gpu-1"))


def inventory(folder: Path, *commands: str, timeout: float = 20.0) -> Inventory:
    gates = tuple(GateCommand(command, timeout) for command in commands)
    return Inventory(str(folder / "inventory.yaml"), (HOST,), Cluster(), gates)


def closed(folder: Path, *commands: str, timeout: float = 20.0) -> tuple[str, list[dict[str, Any]]]:
    """Why the batch may not begin, and what is recorded of its gates."""
    wanted = inventory(folder, *commands, timeout=timeout)
    record = Record.begin(folder / "inventory.yaml", ["gpu-1"], RunOptions())
    members = [Member(HOST, Outcome("gpu-1", "right")), Member(Host("gpu-2", Ssh("gpu-2")))]
    why = gate.run_gates(wanted, members, (2, 5), record, report.make(json=True, quiet=False))
    assert read(record.path).hosts["gpu-1"].state == "waiting"  # a reader of hosts passes over gates
    lines = [json.loads(line) for line in record.path.read_text().splitlines()]
    return why, [line for line in lines if "gate" in line]


def test_gates_that_succeed_let_the_batch_begin(tmp_path):
    """Each is recorded with what it knew of the batch, run where the inventory is."""
    names = "GPUNODE_HOSTS GPUNODE_NODES GPUNODE_BATCH GPUNODE_BATCHES GPUNODE_INVENTORY"
    why, seen = closed(tmp_path, "true", f'for name in {names}; do eval echo \\"\\$$name\\"; done; pwd')
    assert why == ""
    assert [(each["status"], each["hosts"]) for each in seen] == [(0, ["gpu-1", "gpu-2"])] * 2
    said = ["gpu-1 gpu-2", "2", "5", str(tmp_path / "inventory.yaml"), str(tmp_path)]
    assert seen[1]["output"].splitlines() == said


def test_the_first_that_fails_stops_the_run_by_its_own_words(tmp_path, capsys):
    """Its last lines, without secrets; no later gate is run."""
    failing = "seq 100; echo alert: GpuHot >&2; echo api_key=hunter2hunter2; exit 3"
    why, seen = closed(tmp_path, failing, "touch later")
    assert why == f"gate `{failing}` exited with 3"
    assert not (tmp_path / "later").exists()
    (each,) = seen
    assert each["status"] == 3
    assert each["output"].splitlines()[-2:] == ["alert: GpuHot", "api_key=<secret, 14 characters>"]
    assert len(each["output"].splitlines()) == gate.LINES
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    error = next(line for line in told if line["type"] == "error")
    assert "exited with 3, before batch 2 of 5\n" in error["error"]
    assert "GpuHot" in error["error"]
    assert "hunter2" not in json.dumps([told, seen])


def test_a_gate_that_does_not_end_is_ended_with_all_that_it_began(tmp_path):
    child_file = tmp_path / "child"
    child_file.touch()
    for seconds in (0.5, 5, 50):  # a loaded machine starts no shell in half a second
        why, (each,) = closed(tmp_path, "sleep 600 & echo $! > child; wait", timeout=seconds)
        if child_file.read_text():
            break
    assert "did not end within" in why
    assert each["status"] is None
    child = int(child_file.read_text())
    end = time.monotonic() + 60
    while _runs(child) and time.monotonic() < end:
        time.sleep(0.01)
    assert not _runs(child)


def test_output_that_nobody_reads_does_not_hold_a_gate(tmp_path):
    """A child that keeps the output open, and more than fits into memory or a pipe."""
    why, (each,) = closed(tmp_path, "sleep 600 & yes | head -c 1000000; echo done")
    assert (why, each["output"].splitlines()[-1]) == ("", "done")


def test_a_gate_that_cannot_be_started_stops_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(gate, "SHELL", "/nowhere/sh")
    why, (each,) = closed(tmp_path, "true")
    assert why == "gate `true` exited with 126"
    assert each["output"] == "it could not be started: No such file or directory"


@pytest.mark.parametrize(
    ("members", "code"),
    [
        ([("right", None), ("right", None)], 0),
        ([("right", None), ("right", gate.CLOSED)], 4),
        ([("failed", None), ("right", gate.CLOSED)], 1),
        ([("right", "stopped"), ("right", gate.CLOSED)], 1),
        ([("unreachable", None), ("right", gate.CLOSED)], 4),
        ([("unreachable", None), ("right", None)], 3),
        ([("right", None), ("right", PAUSED)], 8),
        ([("failed", None), ("right", PAUSED)], 1),
        ([("right", "stopped"), ("right", PAUSED)], 1),
        ([("refused", None), ("right", PAUSED)], 8),
    ],
)
def test_a_run_that_a_gate_or_its_operator_stopped_has_an_exit_code_of_its_own(
    members: list[tuple[Any, str | None]], code: int
):
    """Unless something failed; a gate has that of a refusal."""
    made = [
        Member(HOST, Outcome("gpu-1", status), reason=Problem(why, why) if why else None)
        for status, why in members
    ]
    assert exit_codes.of_run(made) == code


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
