"""Notices what comes and goes in a directory, through the kernel's inotify.

By ctypes rather than a library: three calls of libc are all it takes, and the image carries one dependency less.
"""

from __future__ import annotations

import asyncio
import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

# From <sys/inotify.h>
IN_MOVED_FROM, IN_MOVED_TO, IN_CREATE, IN_DELETE, IN_DELETE_SELF = 0x40, 0x80, 0x100, 0x200, 0x400


class Directory:
    """While entered, `stirred` is called in the event loop whenever a name appears in or goes from `path`.

    Entering raises OSError: no such directory, or no inotify instance left on this machine.
    """

    def __init__(self, path: Path, stirred: Callable[[], None]) -> None:
        self._path = path
        self._stirred = stirred
        self._fd = -1

    def __enter__(self) -> Directory:
        libc = ctypes.CDLL(None, use_errno=True)
        self._fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise _error("inotify_init1", self._path)
        mask = IN_MOVED_FROM | IN_MOVED_TO | IN_CREATE | IN_DELETE | IN_DELETE_SELF
        if libc.inotify_add_watch(self._fd, os.fsencode(self._path), mask) < 0:
            error = _error("inotify_add_watch", self._path)
            os.close(self._fd)
            raise error
        asyncio.get_running_loop().add_reader(self._fd, self._readable)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        asyncio.get_running_loop().remove_reader(self._fd)
        os.close(self._fd)

    def _readable(self) -> None:
        os.read(self._fd, 65536)  # what happened does not matter: the files are looked at
        self._stirred()


def _error(call: str, path: Path) -> OSError:
    number = ctypes.get_errno()
    hint = " (raise fs.inotify.max_user_instances)" if number == errno.EMFILE else ""
    return OSError(number, f"{call}: {os.strerror(number)}{hint}", str(path))
