"""Files and Unix sockets in directories that other processes also write to; changes by the kernel's inotify.

By ctypes rather than a library: three calls of libc suffice, and the image has one dependency less.
"""

import asyncio
import ctypes
import errno
import logging
import os
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

log = logging.getLogger(__name__)

# From <sys/inotify.h>
IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF = 0x400
EVENT = struct.Struct("iIII")  # watch, mask, cookie, bytes of the name that follows

POLL = 2.0  # seconds between two checks without inotify


class Directory:
    """While entered, call `on_change` in the event loop whenever a file in `path` is created, removed or written.

    If the machine has no inotify instance left (the usual limit is 128 for all of root's processes, and busy nodes
    reach it), call it every POLL seconds instead. Entering raises OSError if there is no such directory.
    """

    def __init__(self, path: Path, on_change: Callable[[], None]) -> None:
        self._path = path
        self._on_change = on_change
        self._fd = -1
        self.gone = False  # the directory that is watched; another may be at its path (its inode number may be the same)
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> "Directory":
        try:
            self._fd = watch(self._path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOSPC):
                raise
            log.warning("%s; raise fs.inotify.max_user_instances. Checking every %.0f s instead", error, POLL)
            self._timer = asyncio.get_running_loop().call_later(POLL, self._tick)
        else:
            asyncio.get_running_loop().add_reader(self._fd, self._readable)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is not None:
            self._timer.cancel()
        else:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)

    def _readable(self) -> None:
        events, at = os.read(self._fd, 65536), 0
        while at < len(events):  # other events do not matter: the files are checked
            _, mask, _, size = EVENT.unpack_from(events, at)
            self.gone = self.gone or bool(mask & IN_DELETE_SELF)
            at += EVENT.size + size
        self._on_change()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(POLL, self._tick)
        self._on_change()


def watch(path: Path) -> int:
    """A file descriptor that is readable after an event in the directory. Raises OSError."""
    libc = ctypes.CDLL(None, use_errno=True)
    fd = int(libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC))
    if fd < 0:
        raise _error("inotify_init1", path)
    mask = IN_CLOSE_WRITE | IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF
    if libc.inotify_add_watch(fd, os.fsencode(path), mask) < 0:
        error = _error("inotify_add_watch", path)
        os.close(fd)
        raise error
    return fd


def _error(call: str, path: Path) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}", str(path))


Identity = tuple[int, int, int, int]


def identity(path: Path) -> Identity | None:
    """An identity that differs between two files made at the same path, or two contents; None if there is no file."""
    try:
        status = path.stat()
    except OSError:
        return None
    # Not ctime: a relabel or chmod changes it.
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


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
