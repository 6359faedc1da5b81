"""What `up` and `down` tell the person who waits: one line a step, with its seconds."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path


class CannotRun(Exception):
    """This machine cannot run the lab; the message is the one sentence that says why (exit code 77)."""


class LabError(Exception):
    """The lab should have worked and did not; the message names the part and its log."""


def say(line: str) -> None:
    with contextlib.suppress(OSError):  # nobody listens any more
        sys.stderr.write(f"lab: {line}\n")  # at once: labs come up side by side


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    start = time.monotonic()
    yield
    say(f"{time.monotonic() - start:6.1f} s  {name}")


def wait(what: str, ready: Callable[[], bool], timeout: float = 60, log: Path | None = None) -> None:
    """Poll `ready()` until it is true; after `timeout` seconds say what was waited for and where to look."""
    deadline = time.monotonic() + timeout
    while not ready():
        if time.monotonic() > deadline:
            raise LabError(f"{what} did not happen within {timeout:.0f} s" + (f"; see {log}" if log else ""))
        time.sleep(0.1)
