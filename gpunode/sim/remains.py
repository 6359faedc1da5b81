"""What may be left of a demo when its processes have ended: ended and removed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

PATIENCE = 5.0
COMMAND = "command.lock"  # held by gpunode's command that the show runs now, which is named in it


def clear(demo: Path) -> None:
    """End what still works on the demo's hosts or for its show, and remove its folder."""
    _end(demo / COMMAND, os.kill)
    for root in demo.glob("hosts/*/root"):
        end_apply(root)
    # Something that ends may still be writing.
    deadline = time.monotonic() + PATIENCE
    while demo.exists() and time.monotonic() < deadline:
        shutil.rmtree(demo, ignore_errors=True)
        time.sleep(0.02)


def end_apply(root: Path) -> None:
    """End the apply that is under way on a host: it has a process group of its own."""
    _end(root / "run/gpunode/lock", os.killpg)


def held(lock: IO[bytes]) -> bool:
    """Whether another process holds a lock's file; it is this process's while the file is open, if not."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _end(path: Path, kill: Callable[[int, int], None]) -> None:
    """End the process that holds a lock, and that is named in the lock's file."""
    with contextlib.suppress(OSError, ValueError, KeyError), path.open("rb") as lock:
        if held(lock):
            kill(int(json.loads(lock.read())["pid"]), signal.SIGKILL)
