"""The /dev/shm that control daemons, servers and clients share: a small separate file system on the host.

Not a folder of /run, because a pod could then fill the host's /run through its /dev/shm.
"""

import ctypes
import os
from pathlib import Path

from .report import shm_path

SIZE = "1g"  # at most; what lies in it counts as memory of who wrote it
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_PRIVATE = 2, 4, 8, 4096, 1 << 18  # <sys/mount.h>


class NotShared(Exception):
    """Clients in other containers would not see it; the message has the reason and the fix."""


def share(root: str, ours: Path = Path("/dev/shm")) -> None:  # noqa: S108 (not a temporary file)
    """Mount it on the host below `root`, and here as /dev/shm. Raises NotShared, OSError.

    An existing mount stays: the clients of running pods use it, and would not see another.
    """
    path = shm_path(root)
    path.mkdir(parents=True, exist_ok=True)
    if not path.is_mount():
        if not propagates(root, Path("/proc/self/mountinfo").read_text()):
            raise NotShared(
                f"a mount below {root} would not reach the host: mount it into this container with "
                "mountPropagation: Bidirectional, from a host whose / is shared (mount --make-rshared /)"
            )
        _mount("shm", path, "tmpfs", MS_NOSUID | MS_NODEV | MS_NOEXEC, f"size={SIZE},mode=1777")
    _mount(str(path), ours, None, MS_BIND, None)
    _mount("none", ours, None, MS_PRIVATE, None)  # mounts made here must not reach the host


def propagates(root: str, mountinfo: str) -> bool:
    """True if mounts below `root` propagate to the host, by the text of /proc/self/mountinfo (proc(5))."""
    fields = [line.split() for line in mountinfo.splitlines()]
    above = [field for field in fields if Path(root).is_relative_to(field[4].replace("\\040", " "))]
    if not above:
        return False
    nearest = max(above, key=lambda mount: len(Path(mount[4]).parts))
    return any(field.startswith("shared:") for field in nearest[6 : nearest.index("-")])


def _mount(source: str, target: Path, kind: str | None, flags: int, options: str | None) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = [None if text is None else text.encode() for text in (source, str(target), kind, options)]
    if libc.mount(*arguments[:3], ctypes.c_ulong(flags), arguments[3]):
        number = ctypes.get_errno()
        raise OSError(number, f"cannot mount {source}: {os.strerror(number)}", str(target))
