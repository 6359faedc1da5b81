"""Running apt-get: one at a time, for as long as it prints something."""

import fcntl
import os
import re
import signal
import struct
import subprocess
import threading
import time
from typing import BinaryIO, List, Optional, Tuple

from gpunode.agent import system
from gpunode.agent.failures import Failure
from gpunode.agent.processes import command_of
from gpunode.agent.record import Run, without_passwords
from gpunode.agent.system import below, have, text_of

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
APT_SILENCE = (
    1800  # seconds without output after which a package manager hangs; building a module takes minutes
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


def attend(this: Run, command: List[str], pass_fds: Tuple[int, ...] = ()) -> Tuple[int, str]:
    """Run a package manager for as long as it prints something: its status, and its output without passwords.

    The output is in memory, for root alone, until it has ended; then it goes into output.log.
    """
    patience = this.load().get("apt_silence", APT_SILENCE)
    path = below(this.live + "/apt.log")
    with open(path, "wb") as log:  # a file, not a pipe: a daemon that a package starts may keep it open
        process = subprocess.Popen(
            command,
            executable=have(command[0]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=system.ENV,
            pass_fds=pass_fds,
            start_new_session=True,
        )
    size, this.last_output = 0, time.monotonic()
    try:
        while process.poll() is None:
            if os.path.getsize(path) != size:
                size, this.last_output = os.path.getsize(path), time.monotonic()
            if time.monotonic() - this.last_output > patience:
                raise hangs(process, patience)
            time.sleep(0.05)
    finally:  # also of an abort
        end(process)
        with open(path, "rb") as log:
            text = without_passwords(log.read().decode("utf-8", "replace"))
        try:
            with open(below(this.record + "/output.log"), "ab") as kept:
                kept.write(text.encode())
        except OSError:
            pass  # a full disk; the caller still gets the output
    return process.returncode, text


def end(process: "subprocess.Popen[bytes]") -> None:
    """End a program that runs, and all that it started; dpkg gets time to record its state."""
    if process.poll() is not None:
        return  # a daemon that a package has started goes on
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline = time.monotonic() + 10
        try:
            os.killpg(process.pid, number)
            while time.monotonic() < deadline:
                process.poll()
                os.killpg(process.pid, 0)  # apt-get may end before its children
                time.sleep(0.05)
        except ProcessLookupError:
            return


def hangs(process: "subprocess.Popen[bytes]", patience: float) -> Failure:
    """The failure of a silent package manager, with the chain of processes that it waits for."""
    names: List[str] = []
    children = [str(process.pid)]
    pid = process.pid
    while children:
        pid = int(children[-1])
        names.append(command_of(pid))
        children = (text_of("/proc/%d/task/%d/children" % (pid, pid)) or "").split()
    sentence = "the package manager printed nothing for %d minutes and was ended; it waited for %s (pid %d)"
    return Failure("packages-hang", sentence % (patience // 60, " > ".join(names), pid))


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
    """Wait until apt's and dpkg's locks are free; every 5 s a progress message names their holder."""
    deadline = time.monotonic() + this.load().get("apt_wait", 120)
    reported = 0.0
    while True:
        pid = next((holder for holder in map(posix_holder, APT_LOCKS) if holder), None)
        if pid is None:
            return
        if time.monotonic() > deadline:
            raise apt_locked(pid)
        if time.monotonic() - reported > 5:
            reported = time.monotonic()
            this.progress("waiting for apt: %s (pid %d) is using it" % (command_of(pid), pid))
        time.sleep(0.25)


def posix_holder(path: str) -> Optional[int]:
    """The process that holds the lock on a file, without trying to take it."""
    try:
        descriptor = os.open(below(path), os.O_RDWR)
    except OSError:
        return None
    try:
        query = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
        kind, _, _, _, pid = struct.unpack("hhqqi4x", fcntl.fcntl(descriptor, fcntl.F_GETLK, query))
        return None if kind == fcntl.F_UNLCK else pid
    finally:
        os.close(descriptor)


def apt_locked(pid: Optional[int]) -> Failure:
    holder = "%s (pid %d)" % (command_of(pid), pid) if pid else "another program"
    return Failure("apt-locked", "apt is in use by " + holder)
