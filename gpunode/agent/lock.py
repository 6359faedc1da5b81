"""One apply at a time: the host's lock."""

import fcntl
import json
import os
import time
from typing import Any, BinaryIO, Dict, Optional

from gpunode.agent.processes import started_at
from gpunode.agent.record import LIVE
from gpunode.agent.system import Message, below, text_of

LOCK = LIVE + "/lock"


def lock_holder() -> Optional[Dict[str, Any]]:
    """The running apply: {run, by, since, pid, started}; None if none runs."""

    try:
        with open(below(LOCK)) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None
    except BlockingIOError:
        try:
            return dict(json.loads(text_of(LOCK) or ""))
        except ValueError:
            return None  # just taken, its owner not yet written
    except OSError:
        return None  # there never was an apply


def take_lock(holder: Message, wait: bool = False) -> Optional[BinaryIO]:
    """The host's lock with its holder written into it; None if another holds it, unless `wait`."""
    holder = dict(holder, started=started_at(holder["pid"]))
    os.makedirs(below(LIVE), 0o700, exist_ok=True)
    os.chmod(below(LIVE), 0o700)
    lock = open(below(LOCK), "ab", opener=lambda name, flags: os.open(name, flags, 0o600))
    for _ in range(20):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.1)  # lock_holder takes it for a moment
            continue
        lock.truncate(0)
        lock.write(json.dumps(holder).encode())
        lock.flush()
        return lock
    lock.close()
    return None
