"""What a command costs the machine that it is started on, with all processes that it starts, those included that outlive it."""

import ctypes
import os
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

SUBREAPER, EVERY = (
    36,
    0.5,
)  # of linux/prctl.h: PR_SET_CHILD_SUBREAPER; seconds between two looks at the memory


@dataclass(frozen=True)
class Cost:
    """Seconds until the command has ended, processor seconds, and MiB of memory (PSS) when it was highest."""

    wall: float
    processor: float
    memory: float

    def __str__(self) -> str:
        return f"{self.wall:7.2f} s {self.processor:7.2f} s {self.memory:5.0f} MiB"


class Failed(Exception):
    """The command ended with another status than 0; its output is in the message."""


def adopt_orphans() -> None:
    """ssh's masters outlive Ansible: let them be children of this process."""
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)


def run(command: Sequence[str | Path], env: Mapping[str, str], stdin: bytes = b"") -> Cost:
    """Run it. Raises Failed. Whatever it leaves is ended, after the time is taken."""
    with tempfile.TemporaryFile() as output, tempfile.TemporaryFile() as text:
        text.write(stdin)
        text.seek(0)
        before, began = os.times(), time.monotonic()
        process = subprocess.Popen(command, env=env, stdin=text, stdout=output, stderr=output)
        over, peaks = threading.Event(), [0.0]

        def watch() -> None:
            while True:
                peaks.append(sum(map(_memory, _family(process.pid))))
                if over.wait(EVERY):
                    return

        watching = threading.Thread(target=watch)
        watching.start()
        status = process.wait()
        wall = time.monotonic() - began
        over.set()
        watching.join()
        _end_orphans()
        after = os.times()
        if status:
            output.seek(0)
            raise Failed(f"{command}: {status}: {output.read().decode(errors='replace')[-3000:]}")
    spent = after.children_user + after.children_system - before.children_user - before.children_system
    return Cost(wall, spent, max(peaks))


def _parents() -> dict[int, int]:
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except (OSError, IndexError):  # it has ended
            continue
    return parents


def _family(pid: int) -> set[int]:
    parents = _parents()
    pids = {pid}
    while more := {child for child, parent in parents.items() if parent in pids} - pids:
        pids |= more
    return pids


def _memory(pid: int) -> float:
    try:
        rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
        return int(rollup.partition("\nPss:")[2].split()[0]) / 1024
    except (OSError, IndexError):
        return 0.0


def _end_orphans() -> None:
    """Only masters of ssh: sshd and the network are this process's own children, too."""
    for pid in [child for child, parent in _parents().items() if parent == os.getpid()]:
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        if b"[mux]" in words:
            os.kill(pid, 15)
            os.waitpid(pid, 0)
