"""Where a run's time went, and what is shown while the cluster is waited for."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from gpunode.report.terminal import Line
from gpunode.report.timing import Moment, sentence, sum_by_work

RUNS = {
    "one after another": (
        [Moment(0, "a", ""), Moment(10, "a", "Packages"), Moment(70, "a", "Reboot"), Moment(100, "a", "end")],
        100,
        {"packages": 60.0, "reboots": 30.0, "probes and waiting": 10.0},
    ),
    "hosts side by side share the time": (
        [
            Moment(0, "a", "Packages"),
            Moment(0, "b", "Reboot"),
            Moment(60, "a", "end"),
            Moment(90, "b", "end"),
        ],
        90,
        {"reboots": 60.0, "packages": 30.0},
    ),
    "the cluster counts while no host works": (
        [Moment(0, "a", "Packages"), Moment(5, None, ""), Moment(10, "a", "end")],
        40,
        {"the cluster": 30.0, "packages": 10.0},
    ),
    "nothing": ([], 5, {}),
}


@pytest.mark.parametrize(("moments", "end", "found"), RUNS.values(), ids=RUNS)
def test_time_is_reported_by_work_and_is_no_more_than_the_run(
    moments: list[Moment], end: float, found: dict[str, float]
) -> None:
    assert sum_by_work(moments, end) == found
    assert sum(found.values()) <= end


def test_what_took_no_time_is_not_told() -> None:
    assert sentence({"packages": 130.0, "files": 2.0}) == "time went to packages 2:10"
    assert sentence({"files": 2.0}) == ""


def test_a_line_is_replaced_in_its_place_cut_to_the_terminal_and_taken_away() -> None:
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
