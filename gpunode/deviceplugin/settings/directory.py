"""Notices what comes, goes and is written in a directory, through the kernel's inotify.

By ctypes rather than a library: three calls of libc are all it takes, and the image carries one dependency less.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

log = logging.getLogger(__name__)

# From <sys/inotify.h>
IN_CLOSE_WRITE, IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE = 0x8, 0x40, 0x80, 0x100, 0x200
IN_DELETE_SELF = 0x400

POLL = 2.0  # seconds between two looks where inotify is not to be had


class Directory:
    """While entered, `stirred` is called in the event loop whenever a name appears in or goes from `path`, and when a
    file there has been written.

    Where the machine has no inotify instance left (128 for all of root's processes is the usual limit, and busy
    nodes reach it), it is called every POLL seconds instead. Entering raises OSError where there is no such directory.
    """

    def __init__(self, path: Path, stirred: Callable[[], None]) -> None:
        self._path = path
        self._stirred = stirred
        self._fd = -1
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> Directory:
        try:
            self._fd = watch(self._path)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOSPC):
                raise
            log.warning("%s; raise fs.inotify.max_user_instances. Looking every %.0f s instead", error, POLL)
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
        os.read(self._fd, 65536)  # what happened does not matter: the files are looked at
        self._stirred()

    def _tick(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(POLL, self._tick)
        self._stirred()


def watch(path: Path) -> int:
    """A file descriptor that is readable when something has happened in the directory. Raises OSError."""
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
