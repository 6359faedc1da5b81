"""Reading files as facts, and writing them atomically."""

import glob
import hashlib
import os
import stat
import sys
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpunode.agent.system import Message, below, glob_of, resolve

CONTENT_LIMIT = 256 * 1024
CHUNK = 1024 * 1024


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def read_files(patterns: List[str]) -> Dict[str, Dict[str, Any]]:
    """Files by path. A plain path is always in the answer; a pattern adds the paths that it matches."""
    found = {}
    for pattern in patterns:
        for path in glob_of(pattern) if glob.has_magic(pattern) else [pattern]:
            found[path] = read_file(path)
    return found


def read_file(path: str) -> Dict[str, Any]:
    try:
        real = below(resolve(path))
        status = os.stat(real)
        if not stat.S_ISREG(status.st_mode):
            return {"exists": True, "error": "not a regular file"}
        digest, data = hashlib.sha256(), b""
        with open(real, "rb") as file:
            for chunk in iter(lambda: file.read(CHUNK), b""):
                digest.update(chunk)
                data = data + chunk if status.st_size <= CONTENT_LIMIT else b""
    except (FileNotFoundError, NotADirectoryError):
        return {"exists": False}
    except OSError as error:
        return {"exists": True, "error": error.strerror}
    found: Message = {"exists": True, "sha256": digest.hexdigest(), "mode": stat.S_IMODE(status.st_mode)}
    found["mtime"], found["ctime"] = status.st_mtime, status.st_ctime
    if status.st_size > CONTENT_LIMIT:
        return dict(found, error="larger than %d KiB" % (CONTENT_LIMIT // 1024))
    try:
        return dict(found, content=data.decode("utf-8"))
    except UnicodeDecodeError:
        return dict(found, error="not UTF-8")


def current(path: str) -> Optional[bytes]:
    try:
        with open(below(path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def state_of(path: str) -> Optional[str]:
    """What is at a path, for comparison: a file's digest, `-> TARGET` of a link, None if it does not exist."""
    if os.path.islink(below(path)):
        return "-> " + os.readlink(below(path))
    found = current(path)
    return None if found is None else sha256(found)


def sync(path: str) -> None:
    """Flush a file's data, or a folder's names, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def put(
    path: str,
    data: bytes,
    mode: int,
    owner: Optional[Tuple[int, int]],
    run_name: str,
    check: Optional[Callable[[str], None]] = None,
) -> None:
    """Write a file atomically. `check` gets the new file's temporary path; if it raises, nothing is changed."""
    real = below(path)
    temporary = "%s/.%s.gpunode-%s" % (os.path.dirname(real), os.path.basename(real), run_name)
    if os.path.lexists(temporary):
        os.unlink(temporary)  # of this run, killed or cut off by a reboot
    try:
        with open(
            temporary, "wb", opener=lambda name, flags: os.open(name, flags | os.O_EXCL, 0o600)
        ) as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            if owner:
                os.fchown(file.fileno(), owner[0], owner[1])
            copy_labels(real, temporary)
            os.fsync(file.fileno())
        if check:
            check(temporary)
        os.rename(temporary, real)
    except BaseException:
        if os.path.exists(temporary):
            os.unlink(temporary)
        raise
    sync(os.path.dirname(real))


def copy_labels(source: str, target: str) -> None:
    """Copy extended attributes (the SELinux label, ACLs) from a file that is about to be replaced."""
    if sys.platform != "linux" or not hasattr(os, "listxattr"):
        return  # Python has them there only, and a simulated host may be on another system
    try:
        names = os.listxattr(source)
    except OSError:
        return  # there is no such file yet, or its file system has none
    for name in names:
        try:
            os.setxattr(target, name, os.getxattr(source, name))
        except OSError:
            continue  # some are the kernel's own
