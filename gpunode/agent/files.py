"""Files of the host: read as facts, checked, written atomically, and restored from the run's journal after a failure."""

import glob
import os
import stat
import sys
from typing import Any, Callable, Dict, Iterable, List, Optional, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.journal import append, entries_of, guarding, records, sync
from gpunode.agent.record import Run
from gpunode.agent.system import Answer, Message, below, glob_of, last, naming, resolve

try:  # hashlib loads OpenSSL, which costs a probe more than all that it hashes
    from _sha256 import sha256 as new_sha256  # type: ignore[import-not-found]  # up to Python 3.11
except ImportError:
    try:
        from _sha2 import sha256 as new_sha256  # type: ignore[import-not-found]
    except ImportError:  # RHEL's Python has no other
        from hashlib import sha256 as new_sha256

CONTENT_LIMIT = 256 * 1024
CHUNK = 1024 * 1024


def sha256(data: bytes) -> str:
    return str(new_sha256(data).hexdigest())


def read_files(patterns: List[str]) -> Dict[str, Dict[str, Any]]:
    """Files by path. A plain path is always in the answer; a pattern adds the paths that it matches."""
    files = {}
    for pattern in patterns:
        for path in glob_of(pattern) if glob.has_magic(pattern) else [pattern]:
            files[path] = read_file(path)
    return files


def read_file(path: str) -> Dict[str, Any]:
    try:
        real = below(resolve(path))
        status = os.stat(real)
        if not stat.S_ISREG(status.st_mode):
            return {"exists": True, "error": "not a regular file"}
        digest, data = new_sha256(), b""
        with open(real, "rb") as file:
            for chunk in iter(lambda: file.read(CHUNK), b""):
                digest.update(chunk)
                data = data + chunk if status.st_size <= CONTENT_LIMIT else b""
    except (FileNotFoundError, NotADirectoryError):
        return {"exists": False}
    except OSError as error:
        return {"exists": True, "error": error.strerror}
    facts: Message = {"exists": True, "sha256": digest.hexdigest(), "mode": stat.S_IMODE(status.st_mode)}
    facts["mtime"], facts["ctime"] = status.st_mtime, status.st_ctime
    if status.st_size > CONTENT_LIMIT:
        return dict(facts, error="larger than %d KiB" % (CONTENT_LIMIT // 1024))
    try:
        return dict(facts, content=data.decode("utf-8"))
    except UnicodeDecodeError:
        return dict(facts, error="not UTF-8")


def read_current(path: str) -> Optional[bytes]:
    try:
        with open(below(path), "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None


def state_of(path: str) -> Optional[str]:
    """What is at a path, for comparison: a file's digest, `-> TARGET` of a link, None if it does not exist, `? ERROR` of
    what cannot be read."""
    if os.path.islink(below(path)):
        return "-> " + os.readlink(below(path))
    try:
        data = read_current(path)
    except OSError as error:  # a folder, for one
        return "? %s" % error.strerror
    return None if data is None else sha256(data)


def put(
    path: str,
    data: bytes,
    mode: int,
    owner: Optional[Tuple[int, int]],
    run_name: str,
    check: Optional[Callable[[str], None]] = None,
) -> None:
    """Write a file atomically. `check` gets the new file's temporary path; if it raises, nothing is changed."""
    real, temporary = below(path), temporary_of(path, run_name)
    if os.path.lexists(temporary):
        os.unlink(temporary)  # of this run, killed or cut off by a reboot
    try:
        with naming(os.path.dirname(real)), open(temporary, "wb", opener=create) as file:
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


def temporary_of(path: str, run_name: str) -> str:
    """Where a run writes a file before it takes its place."""
    return below("%s/.%s.gpunode-%s" % (os.path.dirname(path), os.path.basename(path), run_name))


def remove_temporaries() -> None:
    """Remove the new files of killed applies that have not taken their places. Needs the lock."""
    for folder in records():
        try:
            for entry in entries_of(folder):
                if entry.get("path") and not entry["ended"]:
                    os.unlink(temporary_of(entry["path"], os.path.basename(folder)))
        except Exception:  # there is none; or a newer gpunode's journal, or a damaged one
            continue


def create(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


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


def changed_files(this: Run) -> Dict[str, Message]:
    """The changed files by path: each as it was before its first change, with all that the run wrote there."""
    entries: Dict[str, Message] = {}
    for entry in entries_of(this.record):
        if "path" in entry:
            entries.setdefault(entry["path"], dict(entry, wrote=[]))["wrote"].append(entry["wrote"])
    return entries


def keep(this: Run, path: str, wrote: Optional[str]) -> None:
    """Before `path` is changed: record and copy the original, and record the new state. On disk when this returns."""
    entry: Message = {"path": path, "file": None, "was": state_of(path), "wrote": wrote}
    entry.update(unit=guarding(this, path)[0], new_folder=not os.path.isdir(below(os.path.dirname(path))))
    if os.path.islink(below(path)):
        entry["link"] = os.readlink(below(path))
    elif os.path.exists(below(path)):
        status = os.stat(below(path))
        entry["file"] = "files/%d" % len(os.listdir(below(this.record + "/files")))
        entry.update(mode=stat.S_IMODE(status.st_mode), uid=status.st_uid, gid=status.st_gid)
        entry["label"] = label_of(below(path))
        copy = below(this.record + "/" + entry["file"])
        with open(below(path), "rb") as original, naming(copy), open(copy, "wb", opener=create) as file:
            file.write(original.read())
        sync(copy)
    append(this, entry)


def label_of(real: str) -> Optional[str]:
    """SELinux's label of a file; None where there is none."""
    if sys.platform != "linux":  # a simulated host may be on another system
        return None
    try:
        return os.getxattr(real, "security.selinux").decode().rstrip("\0")
    except OSError:
        return None


def put_files_back(this: Run, paths: Iterable[str]) -> Tuple[List[str], List[str]]:
    """Restore those of `paths` that are still as this run wrote them; returns them, and a sentence for each other one."""
    entries = changed_files(this)
    done, kept = [], []
    for path in paths:
        entry = entries.get(path)
        now = state_of(path)
        if entry is None or now == entry["was"]:
            continue
        original = below(this.record + "/" + entry["file"]) if entry["file"] else None
        if now not in entry["wrote"]:
            was = entry.get("link") or ("missing" if original is None else "as in " + original)
            kept.append("%s was edited meanwhile and is not restored; before gpunode it was %s" % (path, was))
            continue
        os.makedirs(os.path.dirname(below(path)), exist_ok=True)  # it may have gone with the file
        if original:
            with open(original, "rb") as file:
                put(path, file.read(), entry["mode"], (entry["uid"], entry["gid"]), this.name)
        else:
            if now is not None:
                os.unlink(below(path))
            if entry.get("link"):
                os.symlink(entry["link"], below(path))
            sync(os.path.dirname(below(path)))
        done.append(path)
    return done, kept


def unexpected_result(program: str, path: str, wrong: List[str]) -> Failure:
    sentence = "%s would read the new %s otherwise than planned: %s" % (program, path, wrong[0])
    return Failure("check-failed", sentence, wrong[:8])


def refuse_file(path: str, temporary: str, program: str, answer: Answer) -> None:
    lines = [line.replace(temporary, path) for line in last(answer.message, 8)]
    raise Failure("check-failed", "%s does not accept the new %s: %s" % (program, path, lines[-1]), lines)
