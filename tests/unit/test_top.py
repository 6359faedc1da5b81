"""`gpunode top`: its screens, what keys do to them, and the terminal that it leaves."""

import json
import os
import re
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.cells import cell_len
from typer.testing import CliRunner

from gpunode.cli import app
from gpunode.cli.inspection import _words
from gpunode.cli.options import InCluster
from gpunode.commands import history
from gpunode.commands.pause import pause, toggle_pause
from gpunode.commands.top import _join
from gpunode.contract.status import Reason
from gpunode.contract.usage import Gpu, User
from gpunode.engine import record
from gpunode.engine.history import find_current, is_running, note_current, read
from gpunode.engine.overview import HostCell, Overview, Rank, RunLine, make_cell, sort_cells, sum_up_run
from gpunode.engine.record import Progress, Record, RunOptions, State
from gpunode.errors import Problem, UsageError
from gpunode.links.plugin.usage import NodeUsage
from gpunode.report.keyboard import keys
from gpunode.report.top import View, draw, press, selected
from tests import forks, tables, terminal

XID = "Xid 79: the GPU has fallen off the bus; a reset needs a reboot"
RUN = RunLine("20261126T033000Z-4f1c", "running", 32, 11, {"failed": 1}, 0, 3, 8, 700.0)
RANKED: dict[int, tuple[Rank, str, str]] = {
    3: ("bad", "1 GPU unhealthy", XID),
    5: ("unknown", "no plugin", "gpunode's device plugin does not run there"),
    6: ("working", "changing", ""),
    7: ("waiting", "waiting", ""),
}


def fleet(hosts: int, run: RunLine | None = RUN) -> Overview:
    """Of each eight hosts, some are as in RANKED."""
    cells = []
    for number in range(1, hosts + 1):
        rank, state, why = RANKED.get(number % 100 if hosts > 8 else number, ("ok", "ok", ""))
        known = rank != "unknown"
        cells.append(
            HostCell(
                f"h100-{number:04}", rank, state, why, 8 if known else None, number % 9, 97 if known else None
            )
        )
    return Overview(f"{8 * hosts} GPUs on {hosts} nodes", sort_cells(cells), run)


def text(overview: Overview, view: View | None = None, width: int = 80, height: int = 24) -> list[str]:
    return [line.plain.rstrip() for line in draw(overview, view or View(), width, height)]


def test_a_narrow_screen_of_eight_hosts():
    assert text(fleet(8), width=60, height=14) == [
        " 64 GPUs on 8 nodes",
        " batch 3/8 ███░░░░░░░ 11/32 hosts · 1 failed · about 12 min",
        "",
        " ✗ h100-0003    3/8  97 %  1 GPU unhealthy: Xid 79: the GPU…",
        " ? h100-0005               no plugin: gpunode's device plug…",
        " ▶ h100-0006 changing    · h100-0007 waiting",
        " ✓ h100-0001  1/8  97 %  ✓ h100-0002  2/8  97 %",
        " ✓ h100-0004  4/8  97 %  ✓ h100-0008  8/8  97 %",
        *[""] * 4,
        " h100-0003  1 GPU unhealthy · 8 GPUs, 3 in use · 97 % busy …",
        " ↵ chain  p pods  l log  d plan  b pause  / filter  q quit",
    ]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("hosts", [1, 8, 60, 1000])
def test_every_size_shows_failures_first_and_no_line_is_too_wide(hosts: int, width: int):
    """Of 1,000 hosts each is one column, where all of them fit the screen."""
    overview = fleet(hosts)
    lines = text(overview, width=width, height=32)
    assert len(lines) == 32
    assert max(map(cell_len, lines)) <= width
    assert lines[-1].endswith("q quit")
    wrong = [cell.name for cell in overview.cells if cell.rank in ("bad", "unknown")]
    listed = [name for line in lines[3:-2] for name in re.findall(r"^ [✗?] (h100-\d+)", line)]
    assert listed == wrong[: len(listed)]
    assert len(listed) == min(len(wrong), 8)
    grid = "".join(lines[3 + len(listed) : -3])
    assert len(re.findall(r"[✗?▶·✓▁▂▃▄▅▆▇█]", grid)) == hosts - len(listed)


@pytest.mark.parametrize("width", range(1, 21))
def test_no_width_is_too_narrow(width: int):
    lines = text(fleet(8), press(View(), "down", fleet(8), width, 24), width=width)
    assert len(lines) == 24
    assert max(map(cell_len, lines)) <= width


def test_a_reason_of_several_lines_is_told_in_one():
    cell = HostCell("h", "bad", "refused", "config.toml does not parse\nline 3: not valid TOML", 2, 1, 50)
    shown = text(replace(fleet(1), cells=(cell,)), View("h"), width=99)
    assert [line.count("config.toml does not parse: line 3") for line in shown if "parse" in line] == [1, 1]


def test_without_colour_a_screen_says_the_same():
    """Signs tell states apart, and the chosen host is named below."""
    signs = {line.strip()[:1] for line in text(fleet(8))[3:7]}
    assert signs == {"✗", "?", "▶", "✓"}
    assert text(fleet(8), View("h100-0007"))[-2] == " h100-0007  waiting · 8 GPUs, 7 in use · 97 % busy"


@pytest.mark.parametrize(
    ("run", "line"),
    [
        (RunLine("4f1c", "running", 3, 0, {}, 0), "run ░░░░░░░░░░ 0 of 3 hosts · run 4f1c"),
        (RunLine("4f1c", "running", 3, 1, {}, 0, 2, 3, -5.0), "batch 2 of 3 ███░░░░░░░ 1 of 3 hosts · longer than estimated · run 4f1c"),
        (RunLine("4f1c", "pausing", 3, 1, {"failed": 1}, 0, 2, 3, 90.0), "batch 2 of 3 ███░░░░░░░ 1 of 3 hosts · 1 failed · pausing after this batch · run 4f1c"),
        (RunLine("4f1c", "ended", 3, 3, {}, 0), "run ended TIME: 3 of 3 hosts done"),
        (RunLine("4f1c", "cut off", 1, 0, {"failed": 1}, 0), "run cut off TIME: 0 of 1 host done · 1 failed · `gpunode resume` continues"),
    ],
)  # fmt: skip
def test_the_line_of_a_run(run: RunLine, line: str):
    shown = text(fleet(1, run), width=99)[1].strip()
    assert re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d \w+", "TIME", shown) == line


ALONE = {
    "inventory": Path("nothing.yaml"),
    "origin": "DEFAULT",
    "kubeconfig": Path("k"),
    "context": "prod",
    "namespace": "gpus",
}
USED = Gpu("GPU-a", "0", "H100", 1, utilization=90, users=(User("ml/a", "c", "nvidia.com/gpu", 1),))
LOST = Gpu("GPU-b", "1", "H100", 1, unhealthy=Reason("xid-79", XID))
CORDONED = Gpu(
    "GPU-c", "2", "H100", 1, utilization=10, unhealthy=Reason("cordoned", "fan is broken"), users=()
)
NODE = NodeUsage("h", (USED, CORDONED))


@pytest.mark.parametrize(
    ("usage", "state", "running", "cell"),
    [
        (NODE, None, False, HostCell("h", "ok", "ok", "fan is broken", 2, 1, 50)),
        (NODE, "proven", True, HostCell("h", "ok", "ok", "fan is broken", 2, 1, 50)),
        (NodeUsage("h", (USED, LOST)), None, False, HostCell("h", "bad", "1 GPU unhealthy", XID, 2, 1, 90)),
        (NodeUsage("h", (USED, LOST)), "changing", True, HostCell("h", "working", "changing", "", 2, 1, 90)),
        (NODE, "drained", False, HostCell("h", "bad", "unfinished", "the run was cut off while drained; `gpunode resume` continues", 2, 1, 50)),
        (NODE, "failed", False, HostCell("h", "bad", "failed", "why", 2, 1, 50)),
        (NODE, "skipped", False, HostCell("h", "waiting", "skipped", "why", 2, 1, 50)),
        (NodeUsage("h", reason=Problem("not-provisioned", "undone 27 Nov")), None, False, HostCell("h", "absent", "not provisioned", "undone 27 Nov")),
        (NodeUsage("h", reason=Problem("no-plugin", "it is not there")), None, False, HostCell("h", "unknown", "no plugin", "it is not there")),
        (NodeUsage("h", reason=Problem("no-node", "no node has its hostname")), None, False, HostCell("h", "unknown", "not in the cluster yet")),
        (NodeUsage("h", reason=Problem("no-node", "")), "finished", False, HostCell("h", "absent", "no node")),
    ],
)  # fmt: skip
def test_a_hosts_cell(usage: NodeUsage, state: State | None, running: bool, cell: HostCell):
    assert make_cell("h", usage, Progress(state, 0, "why") if state else None, running=running) == cell


@tables.rows("keys-of-top")
def test_keys_choose_and_filter(pressed: str, selected: str, filtered: str):
    view, overview = View(), fleet(8)
    for key in pressed.split():
        view = press(view, key.replace("-", " "), overview, 60, 14)
    assert (view.selected or selected, view.filter, view.typing) == (selected, filtered, False)


def test_failures_stay_on_the_screen_while_other_hosts_are_paged():
    overview = fleet(1000)
    pages = [text(overview, View(name), 60, 20) for name in ("h100-0001", "h100-1000")]
    assert [line for line in pages[0] if "✗ h" in line] == [line for line in pages[1] if "✗ h" in line] != []
    counted = [re.sub(r"\d+", "N", page[-3]) for page in pages]
    assert counted == [" N more hosts below (page down)", " N more hosts above"]
    hidden = int(pages[0][-3].split()[0])
    shown = len(re.findall(r"[✗?▶·✓▁▂▃▄▅▆▇█]", "".join(pages[0][3:-3])))
    assert hidden + shown == 1000


def test_what_a_filter_lets_through_is_all_that_is_shown():
    lines = text(fleet(1000), View(filter="fallen off"), height=20)
    assert [line[3:12] for line in lines[3:8]] == [f"h100-{n:04}" for n in (3, 103, 203, 303, 403)]
    assert "h100-0005" not in "".join(lines)
    assert lines[-3] == " only `fallen off`"
    assert selected(fleet(8), View("h100-0005", "fallen off")) == fleet(8).cells[0]
    assert selected(fleet(8), View(filter="zz")) is None
    assert " no host has `zz`" in text(fleet(8), View(filter="zz"))


def test_keys_of_a_terminal():
    assert keys(b"\x1b[A\x1bOB\x1b[6~q\x1b") == ["up", "down", "page down", "q", "escape"]
    assert keys(b"/\xc3\xa4\r\x03") == ["/", "ä", "enter", "interrupt"]
    assert keys(b"") == ["interrupt"]  # the terminal is gone


@pytest.mark.parametrize(
    ("key", "options", "line"),
    [
        ("enter", {}, "verify --no-run i.yaml --limit h"),
        ("d", {"ask_sudo": True}, "plan i.yaml -K --limit h"),
        ("p", {}, "status i.yaml --limit h"),
        ("l", {}, "show 4f1c"),
        ("enter", ALONE, "why node h --kubeconfig k --context prod --namespace gpus"),
        ("p", ALONE, "status --limit h --kubeconfig k --context prod --namespace gpus"),
        ("d", ALONE, "A plan needs an inventory."),
    ],
)
def test_a_key_shows_a_command_that_users_can_repeat(key: str, options: dict[str, Any], line: str):
    """Without an inventory, those for which a kubeconfig is enough."""
    common = InCluster(**{"inventory": Path("i.yaml"), "origin": "COMMANDLINE", **options})
    seen = Overview(run=RunLine("4f1c", "ended", 1, 1, {}, 0))
    words = _words(key, "h", seen, common)
    assert (words if isinstance(words, str) else " ".join(words)) == line


@pytest.mark.parametrize("key", ["enter", "l"])
def test_a_key_before_the_first_figures_is_not_answered_as_if_there_were_no_host(key: str):
    assert _words(key, "", Overview(), InCluster()) == "The hosts are still being read."


@pytest.fixture
def under_way(tmp_path, monkeypatch) -> Record:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return Record.begin(tmp_path / "inventory.yaml", ["a", "b"], RunOptions())


def test_a_run_is_running_as_long_as_its_process_lives(under_way: Record):
    """Its record is locked; a killed process, as here one that forgets it, holds no lock."""
    under_way.batch(1, 2, 60.4)
    run = read(under_way.path)
    assert is_running(run)
    assert str(history._result(run)) == "2 waiting; under way"
    took = history._row(replace(run, began=run.began - 300), whole=False)[history.COLUMNS.index("took")]
    assert isinstance(took, float)
    assert took >= 300  # so far, also while its record grows by no line
    line = sum_up_run(run, running=True, paused=False, now=time.time())
    assert (line.batch, line.batches, line.hosts) == (1, 2, 2)
    assert find_current(Path(run.inventory)) == run
    assert note_current(run) == f"Run {run.id} is under way: batch 1 of 2, 0 of 2 hosts done."
    assert 0 < (line.left or 0) <= 60
    under_way.end()
    assert not is_running(read(under_way.path))
    assert find_current(Path(run.inventory)) is None


def test_a_record_without_its_process_is_of_no_running_run(tmp_path):
    path = tmp_path / "r.jsonl"
    path.write_text(json.dumps({"format": record.FORMAT, "hosts": ["a"], "inventory": "i"}) + "\n")
    run = read(path)
    assert not is_running(run)
    assert sum_up_run(run, running=False, paused=False, now=0).state == "cut off"
    assert str(history._result(run)) == "1 waiting; it was cut off"


def test_a_damaged_record_hides_no_figures(under_way: Record, tmp_path):
    under_way.path.write_text(under_way.path.read_text().replace('"format": 1', '"format": 99'))
    session = SimpleNamespace(
        inventory=SimpleNamespace(path=str(tmp_path / "inventory.yaml")), hosts=[SimpleNamespace(name="h")]
    )
    seen = _join(session, {"h": NODE}, Overview("2 GPUs"), recorded=True)
    assert (seen.fleet, seen.run, seen.cells[0].state) == ("2 GPUs", None, "ok")
    assert "a record of format 99" in seen.error


def test_a_forget_after_the_last_run_is_named_and_its_hosts_are_as_the_cluster_has_them(
    under_way: Record, tmp_path
):
    """A run under way beside it stays in view."""
    under_way.host("b", "failed")
    forget = Record.begin(tmp_path / "inventory.yaml", ["b"], RunOptions(command="forget"))
    forget.host("b", record.FORGOTTEN)
    forget.end()
    session = SimpleNamespace(inventory=SimpleNamespace(path=str(tmp_path / "inventory.yaml")), hosts=[])
    seen = _join(session, {"b": NODE}, Overview(), recorded=True)
    assert (seen.command, seen.cells[0].rank) == ("provision", "ok")
    under_way.end()
    assert "forget ended" in text(_join(session, {}, Overview(), recorded=True), width=99)[1]


def test_a_pause_is_asked_for_and_taken_back(under_way: Record):
    inventory = Path(read(under_way.path).inventory)
    assert "after this batch" in toggle_pause(inventory)
    assert under_way.paused
    assert toggle_pause(inventory) == "The run continues."
    assert not under_way.paused
    under_way.batch(2, 2, 60)
    assert toggle_pause(inventory) == "Batch 2 of 2 is the last: the run ends after it."
    under_way.end()
    assert not under_way.paused
    assert toggle_pause(None) == toggle_pause(inventory) == "No run is under way."


def test_a_forget_is_paused_too_and_continued_by_its_own_command(under_way: Record, tmp_path):
    forget = Record.begin(tmp_path / "inventory.yaml", ["a", "b"], RunOptions(command="forget"))
    assert (
        toggle_pause(tmp_path / "inventory.yaml")
        == "The run ends after this batch; the same command continues it."
    )
    assert (forget.paused, under_way.paused) == (True, False)
    forget.end()
    toggle_pause(tmp_path / "inventory.yaml")
    assert under_way.paused, "the run beside it goes on"


def test_a_run_is_paused_from_any_terminal(under_way: Record):
    inventory = Path(read(under_way.path).inventory)
    inventory.touch()  # what it has is not read: it may be edited meanwhile
    under_way.batch(1, 2, 60)
    under_way.host("a", "drained")
    paused = CliRunner().invoke(app, ["pause", str(inventory)])
    assert (paused.exit_code, under_way.paused) == (0, True)
    assert (
        f"The run ends after batch 1 of 2 (under way: a); `gpunode resume {inventory}` continues it."
        in paused.output
    )
    assert CliRunner().invoke(app, ["pause", str(inventory), "--cancel"]).exit_code == 0
    assert not under_way.paused


def test_a_pause_without_a_run_names_what_there_is(under_way: Record, tmp_path):
    other, mine = tmp_path / "other.yaml", tmp_path / "inventory.yaml"
    other.touch()
    with pytest.raises(UsageError, match=r"no run of .*other.yaml is under way on this machine") as caught:
        pause(cast("Any", None), other, cancel=False)
    assert caught.value.hint == f"A run of another inventory is: `gpunode pause {mine}`."
    under_way.end()
    with pytest.raises(UsageError) as caught:
        pause(cast("Any", None), mine, cancel=False)
    ended = f"Its last run has ended: `gpunode resume {mine}` continues it."
    assert caught.value.hint == f"{ended} A run can be paused once its plan is accepted."
    with pytest.raises(UsageError) as caught:
        pause(cast("Any", None), other, cancel=False)
    assert caught.value.hint.startswith("A run can be paused once its plan is accepted. `gpunode history` ")


@pytest.mark.parametrize(("batch", "shown"), [(2, "pausing after this batch"), (3, "about 1 min left")])
def test_only_a_batch_before_the_last_one_is_followed_by_a_pause(batch: int, shown: str):
    run = RunLine("4f1c", "pausing", 3, 2, {}, 0, batch, 3, 60.0)
    assert shown in text(fleet(8, run))[1]


PROGRAM = """
import signal
from gpunode.cli import _end
from gpunode.engine.overview import HostCell, Overview
from gpunode.report import keyboard
signal.signal(signal.SIGTERM, _end)

looks = []
def look():
    looks.append(1)
    if FAIL and len(looks) > 1: raise RuntimeError("a bug")
    return Overview("1 GPU on 1 node", (HostCell("gpu-1", "ok", "ok"),))
def act(key, host, seen):
    return f"{key} on {host}" if key == "p" else ["history"]
keyboard.run(look, act, interval=0.5 if FAIL else 60)
print("the end")
"""


def show(tmp_path, *, fail: bool = False) -> terminal.Started:
    program = "FAIL = " + repr(fail) + PROGRAM
    environment = {"XDG_STATE_HOME": str(tmp_path)}
    return terminal.started([sys.executable, "-c", program], environment=environment, popen=forks.Popen)


def ends_as_it_was(shown: terminal.Terminal) -> None:
    assert shown.wait() == 0
    assert shown.restored
    assert shown.text.endswith("the end\r\n")


def test_a_real_terminal_shows_it_and_takes_keys(tmp_path):
    with show(tmp_path) as shown:
        shown.wait_for("1 GPU on 1 node")
        assert shown.raw
        shown.press("p")
        shown.wait_for("p on gpu-1")
        shown.press("\r")
        shown.wait_for("gpunode history")
        shown.wait_for("No run is recorded")
        shown.wait_for("press a key")
        assert shown.raw  # for the key
        shown.press(" ")
        shown.wait_for("q quit")
        shown.resize(60, 10)
        shown.wait_for(terminal.frame(10, "q quit"))
        shown.press("q")
        ends_as_it_was(shown)


@pytest.mark.parametrize(
    "leave",
    [lambda shown: shown.press("\x03"), lambda shown: os.kill(shown.process.pid, signal.SIGTERM)],
    ids=["Ctrl-C", "SIGTERM"],
)
def test_a_terminal_is_left_as_it_was(tmp_path, leave: Callable[[terminal.Terminal], None]):
    with show(tmp_path) as shown:
        shown.wait_for("1 GPU on 1 node")
        leave(shown)
        ends_as_it_was(shown)


def test_the_terminal_is_restored_after_a_bug(tmp_path):
    with show(tmp_path, fail=True) as shown:
        assert shown.wait() == 1
        assert shown.restored
        assert "RuntimeError: a bug" in shown.text
