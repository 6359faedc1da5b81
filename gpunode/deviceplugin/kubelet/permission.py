"""Whether this process's user may use the kubelet's directory and socket, and the fix if not."""

from __future__ import annotations

import os
from pathlib import Path


def refused(kubelet: Path) -> str | None:
    """Why this user cannot connect to the socket `kubelet` or make one beside it; None if it can.

    None also while they do not exist: the kubelet may create them later.
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
        refusal = f"user {user} may not use {path}, which belongs to user {owner} (mode {status.st_mode & 0o7777:04o})"
        instead = f"run the plugin as user {owner} (runAsUser), or " if owner != user else ""
        return f"{refusal}: {instead}let user {user} write there"
    return None
