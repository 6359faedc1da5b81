"""Unix sockets in a directory that other processes also write to."""

from __future__ import annotations

import socket
from pathlib import Path

Identity = tuple[int, int, int]


def identity(path: Path) -> Identity | None:
    """An identity that differs between two files made at the same path; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    # Not ctime: a relabel or chmod changes it.
    return status.st_dev, status.st_ino, status.st_mtime_ns


def alive(path: Path) -> bool:
    """True if a process listens on the Unix socket at `path`. Does not wait: a process that hangs is alive."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True
