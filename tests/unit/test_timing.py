"""Where a run's time went, and what is shown while the cluster is waited for."""

import io
from typing import get_args

from rich.console import Console

from gpunode.engine import batch
from gpunode.engine.member import Member
from gpunode.engine.phases import WORK, Laps, Spent
from gpunode.model import Change, Host, Outcome, Ssh
from gpunode.report.terminal import Line


def test_seconds_are_summed_by_phase_and_those_that_took_none_are_left_out():
    laps = Laps()
    laps.add("packages", 100.0)
    laps.add("packages", 21.0)
    laps.add("pods", 0.2)
    laps.add("nobody's", 5.0)
    spent = Spent(laps.seconds, {"reboots": 70.4, "waits": 0.0})
    assert spent == {"packages": 121.0, "reboots": 70.4, "pods": 0.2}
    assert str(spent) == "packages 121 s, reboots 70 s"


def test_a_host_waits_while_others_of_its_batch_are_changed():
    outcome = Outcome("a", "changed", spent=Spent({"files": 30.0}))
    spent = batch._sum_up(Member(Host("a", Ssh("a")), outcome), {"pods": 5.0}, 100.0)
    assert spent == {"files": 30.0, "pods": 5.0, "waits": 70.0}


def test_every_change_has_a_phase():
    assert {kind.__name__ for kind in get_args(Change)} == set(WORK)


def test_a_line_is_replaced_in_its_place_cut_to_the_terminal_and_taken_away():
    console = Console(file=io.StringIO(), force_terminal=True, width=40)
    line = Line(console)
    line.clear()
    line.show("the plugin runs on 1 of 50 Ready nodes")
    line.show("bad \x1b[31m words")
    line.clear()
    written = console.file.getvalue()  # type: ignore[attr-defined]
    first, second, last = written.split("\r\x1b[2K")[1:4]
    assert first == " 00:00  the plugin runs on 1 of 50 Rea…"[: len(first)]
    assert len(first) < 40
    assert second == r" 00:00  bad \x1b[31m words"
    assert last == ""
