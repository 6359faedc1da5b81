"""Build results outside the checkout, each in a folder named by the hash of its inputs.

A fresh clone with the same inputs finds them; two checkouts that build the same thing at once build it once.
"""

import fcntl
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from .progress import step

UNUSED_DAYS = 14  # an entry that no `up` asked for in this time is removed when its kind is built anew


def root() -> Path:
    """The cache folder: GPUNODE_LAB_CACHE, or gpunode-lab in the user's cache."""
    user = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("GPUNODE_LAB_CACHE") or Path(user) / "gpunode-lab")


def key(inputs: Iterable[str | Path]) -> str:
    """Hash of texts and of files or folders (relative names, executable bits, contents)."""
    digest = hashlib.sha256()
    for part in inputs:
        if isinstance(part, Path):
            part.stat()  # a folder that is not there has no files, either
            files = [part] if part.is_file() else sorted(p for p in part.rglob("*") if not p.is_dir())
            for file in files:
                if "__pycache__" in file.parts:
                    continue
                name = "" if file == part else str(file.relative_to(part))
                content = os.readlink(file).encode() if file.is_symlink() else file.read_bytes()
                runs = (
                    not file.is_symlink() and os.access(file, os.X_OK) and bool(file.stat().st_mode & 0o111)
                )
                digest.update(f"{name}\0{runs:d}\0{len(content)}\0".encode() + content)
        else:
            digest.update(part.encode() + b"\0")
    return digest.hexdigest()[:16]


def entry(kind: str, inputs: Iterable[str | Path], build: Callable[[Path], None]) -> Path:
    """The folder of `kind` made from `inputs`; `build(folder)` fills it if no checkout has done so before.

    The folder appears under its name only when it is complete.
    """
    folder = root() / f"{kind}-{key(inputs)}"
    if not folder.exists():
        locks = root() / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / folder.name).open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                with step(f"build {kind}"):
                    temporary = Path(tempfile.mkdtemp(prefix=".building-", dir=root()))
                    try:
                        build(temporary)
                        temporary.chmod(0o755)
                        temporary.rename(folder)
                    finally:
                        shutil.rmtree(temporary, ignore_errors=True)
                _forget_unused(kind)
    os.utime(folder)
    return folder


def _forget_unused(kind: str) -> None:
    oldest = time.time() - UNUSED_DAYS * 86400
    for folder in root().glob(f"{kind}-*"):
        if len(folder.name) == len(kind) + 17 and folder.stat().st_mtime < oldest:
            shutil.rmtree(folder, ignore_errors=True)
