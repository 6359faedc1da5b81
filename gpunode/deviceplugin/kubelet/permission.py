"""What keeps this process's user from the kubelet's directory, and what to do about it."""

from __future__ import annotations

import os
from pathlib import Path


def refused(kubelet: Path) -> str | None:
    """Why it can make no socket beside `kubelet`, the kubelet's own, or not connect to that; None if it can.

    What is not there is no reason: it may come.
    """
    folder = kubelet.parent
    for path, wanted in ((folder, os.R_OK | os.W_OK | os.X_OK), (kubelet, os.R_OK | os.W_OK)):
        try:
            status = path.stat()
        except OSError:
            return None
        if os.access(path, wanted):
            continue
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"{folder} is mounted read-only: let the pod write there"
        user, owner = os.getuid(), status.st_uid
        told = f"user {user} may not use {path}, which belongs to user {owner} (mode {status.st_mode & 0o7777:04o})"
        instead = f"run the plugin as user {owner} (runAsUser), or " if owner != user else ""
        return f"{told}: {instead}let user {user} write there"
    return None
