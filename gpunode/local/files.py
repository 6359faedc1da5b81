"""Files of this machine: those that a user names are read up to a limit, never waited for, and replaced only if they are gpunode's own; and
where this user's records are."""

import errno
import os
import select
import stat
import time
from collections.abc import Callable
from pathlib import Path

from gpunode.errors import UsageError

LARGEST = 8 << 20  # bytes; configurations, keys and lists of known hosts are far smaller
PATIENCE = 60.0  # seconds for the end of a pipe
STATE = ".gpunode"  # a folder beside an inventory, as in a demo, with its records in place of $XDG_STATE_HOME


def read(path: Path, most: int = LARGEST) -> bytes:
    """The content. Raises OSError with its reason: also for more than `most` bytes, for what never ends, and for a name that no
    file can have.

    A pipe that nobody writes to is empty; one that a shell made, as with `<(…)`, is read to its end.
    """
    try:
        file = os.open(path, os.O_RDONLY | os.O_NONBLOCK)  # a pipe is opened at once
    except ValueError as error:  # a NUL in it
        raise OSError(errno.EINVAL, "no file has such a name", str(path)) from error
    try:
        return _content(file, most, str(path))
    finally:
        os.close(file)


def _content(file: int, most: int, name: str) -> bytes:
    content, state, end = bytearray(), os.fstat(file), time.monotonic() + PATIENCE
    pipe = stat.S_ISFIFO(state.st_mode)
    device = stat.S_ISCHR(state.st_mode) or stat.S_ISBLK(state.st_mode)
    if device and state.st_rdev != Path(os.devnull).stat().st_rdev:
        raise OSError(errno.EINVAL, "it is a device, not a file", name)
    ready = select.poll()
    ready.register(file, select.POLLIN)
    while len(content) <= most:
        try:
            part = os.read(file, 1 << 20)
        except BlockingIOError:
            if not pipe:  # the kernel's messages, for instance
                raise OSError(errno.EINVAL, "it has no end", name) from None
            ready.poll(1000 * max(0.0, end - time.monotonic()))
            part = None
        if part == b"":
            return bytes(content)
        if pipe and time.monotonic() > end:
            raise OSError(errno.ETIMEDOUT, f"it is a pipe without an end within {PATIENCE:g} seconds", name)
        content += part or b""
    raise OSError(errno.EFBIG, "it is too large", name)


def text(path: Path, most: int = LARGEST) -> str:
    """The same as text; bytes that are not UTF-8 become marks."""
    return read(path, most).decode("utf-8", "replace")


def check_replaceable(option: str, path: Path, is_own: Callable[[bytes], bool], other: str) -> None:
    """Raise UsageError where the option's file cannot be written, or would replace one whose beginning is not gpunode's own: `other`."""
    named = f"{option} {path}"
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(f"{named}: no file can be written there", hint="Name a file in an existing folder.")
    try:
        if not path.exists() or (path.is_file() and is_own(begin(path))):
            return
    except OSError as error:
        raise UsageError(f"{named}: cannot be read: {error.strerror}", hint="Name another file.") from error
    raise UsageError(f"{named}: {other}", hint="Name another file, or remove that one.")


def begin(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(200)


def replace(path: Path, text: str) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    draft = path.with_name(f".{path.name}.gpunode")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def full(name: str) -> Path:
    """The path with the user's home for `~`; `~USER` of an unknown user stays, and is reported as missing."""
    try:
        return Path(name).expanduser()
    except RuntimeError:
        return Path(name)


def is_file(path: Path) -> bool:
    """Whether it is a regular file; False, too, for a name that no file can have."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file raises OSError for long names


def is_own_folder(path: Path) -> bool:
    """Whether it is a folder of this user's that no other may write to."""
    try:
        state = path.lstat()
    except (OSError, ValueError):
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o022


def exists(path: Path) -> bool:
    """Whether there is anything; False, too, for a name that no file can have."""
    return os.path.exists(path)  # noqa: PTH110 - Path.exists raises OSError for long names


def state_folder(inventory: Path) -> Path:
    """The folder with this user's records of the inventory: beside it where there is a folder for them, as in a demo."""
    if is_own_folder(own := inventory.absolute().parent / STATE):
        return own / "gpunode"
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local/state") / "gpunode"


def runs_folder(inventory: Path) -> Path:
    """The folder with the records of this user's runs of the inventory."""
    return state_folder(inventory) / "runs"
