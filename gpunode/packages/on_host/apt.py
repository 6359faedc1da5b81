"""Running apt-get, one at a time."""

import os
import re
import threading
import time
from typing import BinaryIO, Optional, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.package_manager import attend, lock_free, posix_holder
from gpunode.agent.processes import command_of
from gpunode.agent.record import Run

APT = (
    "-q -y -o DPkg::Lock::Timeout=60 -o Dpkg::Use-Pty=0 -o APT::Color=0"
    " -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
).split()
APT_LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)
SAID = r"^(?:E|W|Error|Warning): "


def apt_get(this: Run, *arguments: str) -> Tuple[int, str]:
    """Wait for apt's locks and run apt-get: its status, and its output without passwords."""
    wait_for_apt(this)
    read_end, write_end = os.pipe()
    reader = threading.Thread(target=follow_apt, args=(this, os.fdopen(read_end, "rb")))
    reader.daemon = True
    reader.start()
    try:
        status, text = attend(
            this, ["apt-get", *APT, "-o", "APT::Status-Fd=%d" % write_end, *arguments], (write_end,)
        )
    finally:
        os.close(write_end)
    reader.join(1)
    if status and re.search(r"Could not get lock|Unable to (acquire|lock)", text):
        held = re.search(r"held by process (\d+)", text)
        raise apt_locked(int(held.group(1)) if held else None)
    return status, text


def follow_apt(this: Run, stream: BinaryIO) -> None:
    """Turn apt's status lines (`pmstatus:PACKAGE:PERCENT:WORDS`) into at most two progress messages a second."""
    sent, last = 0.0, ("", "")
    for line in stream:
        this.last_output = time.monotonic()
        # A package's name may hold a colon, before its architecture.
        found = re.match(r"[dp][lm]status:.*?:([\d.]+):(.*)", line.decode("utf-8", "replace"))
        if found and found.groups() != last and time.monotonic() - sent > 0.5:
            sent, last = time.monotonic(), (found.group(1), found.group(2))
            this.progress(found.group(2), round(float(found.group(1)), 1))


def wait_for_apt(this: Run) -> None:
    """Wait until apt's and dpkg's locks are free."""
    pid = lock_free(this, "apt", lambda: next((pid for pid in map(posix_holder, APT_LOCKS) if pid), None))
    if pid is not None:
        raise apt_locked(pid)


def apt_locked(pid: Optional[int]) -> Failure:
    holder = "%s (pid %d)" % (command_of(pid), pid) if pid else "another program"
    return Failure("apt-locked", "apt is in use by " + holder)
