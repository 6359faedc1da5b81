"""Ends the remaining processes of a demo and removes its folder."""

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
COMMAND = "command.lock"  # held by the gpunode command that the show runs; names its process


def clear(demo: Path) -> None:
    """End the applies and the show's command of a demo, and remove its folder."""
    _end(demo / COMMAND, os.kill)
    for root in demo.glob("hosts/*/root"):
        end_apply(root)
    # A process that ends may still be writing.
    deadline = time.monotonic() + PATIENCE
    while demo.exists() and time.monotonic() < deadline:
        shutil.rmtree(demo, ignore_errors=True)
        time.sleep(0.02)


def end_apply(root: Path) -> None:
    """End the running apply on a host: it has a process group of its own."""
    _end(root / "run/gpunode/lock", os.killpg)


def held(lock: IO[bytes]) -> bool:
    """True if another process holds the lock; if not, this process holds it while the file is open."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _end(path: Path, kill: Callable[[int, int], None]) -> None:
    """End the process that holds a lock and is named in its file."""
    with contextlib.suppress(OSError, ValueError, KeyError), path.open("rb") as lock:
        if held(lock):
            kill(int(json.loads(lock.read())["pid"]), signal.SIGKILL)
