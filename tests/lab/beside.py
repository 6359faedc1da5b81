"""`make test`: the labs come up beside the tests that need none. A run that stops early takes along those that it began."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from .progress import say

INTERRUPTED = 130


def run(make: Sequence[str], up: Sequence[str], log: Path, down: Callable[[], None]) -> int:
    """`make check sim` while `up` is at work, then `make lab-test`; the exit status.

    When a check fails, or the run is ended by a signal, `up` is ended too, and what it left goes `down`.
    """
    asked: list[int] = []  # no exceptions: one that comes while a process is begun would lose that process
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _frame: asked.append(number))
    with log.open("w") as output:
        labs = subprocess.Popen(
            up, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    status = _call([*make, "check", "sim"], asked)
    if status == 0 and _until_over(labs, asked) is not None:
        sys.stdout.write(log.read_text())
        sys.stdout.flush()
        status = _call([*make, "lab-test"], asked)
        if not asked:
            return status
    say("the run stops early: the labs that it began go down")
    _end(labs, signal.SIGTERM)
    down()
    return INTERRUPTED if asked else status


def _call(command: Sequence[str], asked: Sequence[int]) -> int:
    """In a session of its own, so that all of it hears of the end in the same way, whoever asked for it."""
    process = subprocess.Popen(command, start_new_session=True)
    status = _until_over(process, asked)
    if status is None:
        _end(process, signal.SIGINT)
    return process.returncode


def _until_over(process: subprocess.Popen[bytes], asked: Sequence[int]) -> int | None:
    """Its exit status; None once the run is asked to end."""
    while not asked:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return process.wait(0.5)
    return None


def _end(process: subprocess.Popen[bytes], first: signal.Signals) -> None:
    """End a session: with a signal that can be heeded, then with one that cannot."""
    for number in (first, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
