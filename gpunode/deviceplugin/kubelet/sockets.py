"""Unix sockets in a directory that others write to, too."""

from __future__ import annotations

import socket
from pathlib import Path

Identity = tuple[int, int, int]


def identity(path: Path) -> Identity | None:
    """What tells one file at `path` from the next one at the same path; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    # Not ctime: a relabel or chmod makes no other file.
    return status.st_dev, status.st_ino, status.st_mtime_ns


def alive(path: Path) -> bool:
    """Whether somebody listens on the Unix socket at `path`. At once: one that hangs is alive."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True
