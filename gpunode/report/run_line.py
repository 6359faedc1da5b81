"""The line of a run, in `gpunode top` and in the live view of the run itself: its batch, its hosts, the time left."""

from __future__ import annotations

import time

from gpunode.engine.estimate import Estimate
from gpunode.engine.overview import RunLine
from gpunode.report.plain import Part
from gpunode.wording import several

BAR = 10  # columns
NARROW, ROOMY = (
    70,
    100,
)  # columns of a terminal: less than that for short words, as many for more and for longer bars


def run_line(run: RunLine, width: int) -> list[Part]:
    """` batch 3 of 8 ████░░░░░░ 11 of 32 hosts · 1 failed · about 12 min left`, or how the run ended."""
    of = "/" if width < NARROW else " of "
    bad = [f"{run.bad} failed"] if run.bad else []
    done = f"{run.finished}{of}{several(run.hosts, 'host')}"
    if not run.is_running:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.since))
        rest = [] if run.finished == run.hosts else ["`gpunode resume` continues"]
        return [f" run {run.state} {when}: ", " · ".join([f"{done} done", *bad, *rest])]
    bar = BAR if width < ROOMY else 2 * BAR
    filled = bar * run.finished // max(run.hosts, 1)
    batch = f" batch {run.batch}{of}{run.batches} " if run.batches else " run "
    left = [] if run.left is None else ["longer than estimated"]
    if run.left and run.left > 0:
        left = [f"{Estimate(run.left, typical=False)}{'' if width < NARROW else ' left'}"]
    last = run.batch == run.batches > 0  # after which there is nothing to pause
    state = ["pausing after this batch"] if run.state == "pausing" and not last else left
    named = [] if width < NARROW else [f"run {run.id}"]
    text = " · ".join([done, *bad, *state, *named])
    return [(batch, "bold"), ("█" * filled + "░" * (bar - filled), "cyan"), f" {text}"]
