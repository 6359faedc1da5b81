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

ENDINGS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
INTERRUPTED = 130


def run(make: Sequence[str], up: Sequence[str], log: Path, down: Callable[[], None]) -> int:
    """`make check sim` while `up` is at work, then `make lab-test`; the exit status.

    When a check fails, or the run is ended by a signal, `up` is ended too, and what it left goes `down`.
    """
    for number in ENDINGS:
        signal.signal(number, _interrupt)
    with log.open("w") as output:
        labs = subprocess.Popen(
            up, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True
        )
    try:
        status = _call([*make, "check", "sim"])
        if status == 0:
            labs.wait()
            sys.stdout.write(log.read_text())
            sys.stdout.flush()
            return _call([*make, "lab-test"])
    except KeyboardInterrupt:
        status = INTERRUPTED
    _ignore_signals()
    say("the run stops early: the labs that it began go down")
    _end(labs, signal.SIGTERM)
    down()
    return status


def _interrupt(*_: object) -> None:
    _ignore_signals()
    raise KeyboardInterrupt


def _ignore_signals() -> None:
    """From now on: who asks again would leave half a lab."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)


def _call(command: Sequence[str]) -> int:
    """In a session of its own, so that all of it hears of the end in the same way, whoever asked for it."""
    process = subprocess.Popen(command, start_new_session=True)
    try:
        return process.wait()
    except KeyboardInterrupt:
        _end(process, signal.SIGINT)
        raise


def _end(process: subprocess.Popen[bytes], asked: signal.Signals) -> None:
    """End a session: asked first, and killed if it is not over in time."""
    for number in (asked, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(20)
