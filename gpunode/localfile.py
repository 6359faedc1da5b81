"""Files of this machine that a user names: read up to a limit, and never waited for."""

from __future__ import annotations

import errno
import os
from pathlib import Path

LARGEST = 8 << 20  # bytes; configurations, keys and lists of known hosts are far smaller


def read(path: Path, most: int = LARGEST) -> bytes:
    """The content. Raises OSError with its reason: also for more than `most` bytes, and for a name that no file can have.

    A pipe that nobody writes to is empty; one that a shell made, as with `<(…)`, is read to its end.
    """
    try:
        with open(path, "rb", opener=_opened) as file:
            os.set_blocking(file.fileno(), True)
            found = file.read(most + 1)
    except ValueError as error:  # a NUL in it
        raise OSError(errno.EINVAL, "no file has such a name", str(path)) from error
    if len(found) > most:
        raise OSError(errno.EFBIG, "it is too large", str(path))
    return found


def _opened(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)  # a pipe is opened at once


def text(path: Path, most: int = LARGEST) -> str:
    """The same as text; bytes that are not UTF-8 become marks."""
    return read(path, most).decode("utf-8", "replace")


def full(name: str) -> Path:
    """The path with the user's home for `~`; `~USER` of an unknown user stays, and is reported as missing."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def is_file(path: Path) -> bool:
    """Whether it is a regular file; False, too, for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises OSError for long names


def exists(path: Path) -> bool:
    """Whether there is anything; False, too, for a name that no file can have."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises OSError for long names
