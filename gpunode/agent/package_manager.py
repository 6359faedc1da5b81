"""Running a package manager: waiting for its locks, and for as long as it prints something."""

import fcntl
import os
import signal
import struct
import subprocess
import time
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Tuple

from gpunode.agent import system
from gpunode.agent.failures import Failure
from gpunode.agent.journal import sync
from gpunode.agent.processes import command_of
from gpunode.agent.record import Run
from gpunode.agent.system import Message, below, have, last, text_of

PLANNED = "/planned.txt"  # of a change of packages that is under way: those that its dry runs named
SILENCE = 1800  # seconds without output after which a package manager hangs; building a module takes minutes


class PackageSystem(NamedTuple):
    """What the host half of a package system does. `read`: version and `held` of the installed packages whose names fit, with True
    also of those half installed. `make`: install these, and remove those; with True their configuration, too."""

    read: Callable[..., Dict[str, Dict[str, Any]]]
    refresh: Callable[[Run], None]
    make: Callable[[Run, List[Message], List[str], bool], None]
    hold: Callable[[Run, List[str]], None]
    release: Callable[[Run, List[str]], None]  # of holds
    # Whether a repository has this version of a package, by the lists that are there; None: that is not known.
    offers: Optional[Callable[[str, str], bool]] = None


def wait_for_lock(this: Run, name: str, holder: Callable[[], Optional[int]], code: str = "") -> None:
    """Wait until no process holds a lock; every 5 s a progress message names the holder. Raises Failure where one still does."""
    deadline = time.monotonic() + this.load().get("apt_wait", 120)
    reported = 0.0
    while True:
        pid = holder()
        if pid is None:
            return
        if time.monotonic() > deadline:
            raise locked_failure(name, pid, code)
        if time.monotonic() - reported > 5:
            reported = time.monotonic()
            this.progress("waiting for %s: %s (pid %d) is using it" % (name, command_of(pid), pid))
        time.sleep(0.25)


def locked_failure(name: str, pid: Optional[int], code: str = "") -> Failure:
    """The failure of a package manager whose lock another process holds. `code`: `NAME-locked` where none is given."""
    holder = "%s (pid %d)" % (command_of(pid), pid) if pid else "another program"
    return Failure(code or name + "-locked", "%s is in use by %s" % (name, holder))


def refuse_unplanned(
    program: str, text: str, removed: List[str], downgraded: List[str], kernel: str = ""
) -> None:
    """Raises Failure if a dry run shows that packages would go, or go back, that the plan does not name, or a kernel would come."""
    for code, extra in (("remove", removed), ("downgrade", downgraded)):
        if extra:
            sentence = "%s would also %s %s, which was not planned" % (program, code, " ".join(extra))
            raise Failure("would-" + code, sentence, last(text, 12))
    if kernel:
        sentence = "%s would also install a kernel, %s, which the next boot would take" % (program, kernel)
        raise Failure("would-install-kernel", sentence, last(text, 12))


def note_planned(this: Run, names: Iterable[str]) -> None:
    """Before packages are changed: note their names, for the journal of an apply that is killed meanwhile. On disk when this returns."""
    with open(below(this.record + PLANNED), "a") as file:
        file.write("".join(name + "\n" for name in names))
    sync(below(this.record + PLANNED))
    sync(below(this.record))


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


def run_exclusively(
    this: Run,
    command: List[str],
    pass_fds: Tuple[int, ...] = (),
    heard: Callable[[str], None] = lambda _text: None,
    what: str = "the package manager",
    env: Optional[Dict[str, str]] = None,
    logs_to: str = "",
) -> Tuple[int, str]:
    """Run a package manager for as long as it prints something: its status, and its output without passwords.

    The output is in memory, for root alone, until it has ended; then it goes into output.log. `heard` gets it as it comes; `env` is added to its
    environment; what it writes to its own log, `logs_to`, counts as output.
    """
    patience = this.load().get("apt_silence", SILENCE)
    path = below(this.live + "/packages.log")
    with open(path, "wb") as log:  # a file, not a pipe: a daemon that a package starts may keep it open
        process = subprocess.Popen(
            command,
            executable=have(command[0]),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=dict(system.ENV, **(env or {})),
            pass_fds=pass_fds,
            start_new_session=True,
        )
    size, logged, this.last_output = 0, size_of(logs_to), time.monotonic()
    try:
        while process.poll() is None:
            if os.path.getsize(path) != size:
                with open(path, "rb") as log:
                    log.seek(size)
                    news = log.read()
                size, this.last_output = size + len(news), time.monotonic()
                heard(news.decode("utf-8", "replace"))
            if size_of(logs_to) != logged:
                logged, this.last_output = size_of(logs_to), time.monotonic()
            if time.monotonic() - this.last_output > patience:
                raise hang_failure(process, patience, what)
            time.sleep(0.05)
    finally:  # also of an abort
        end(process)
        from gpunode.agent.redaction import redact  # only here: a probe must not wait for its tables

        with open(path, "rb") as log:
            text = redact(log.read().decode("utf-8", "replace"))
        try:
            with open(below(this.record + "/output.log"), "ab") as kept:
                kept.write(text.encode())
        except OSError:
            pass  # a full disk; the caller still gets the output
    return process.returncode, text


def size_of(path: str) -> int:
    """Of a file of the host; 0 where there is none."""
    try:
        return os.path.getsize(below(path)) if path else 0
    except OSError:
        return 0


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


def hang_failure(process: "subprocess.Popen[bytes]", patience: float, what: str) -> Failure:
    """The failure of a silent package manager, with the chain of processes that it waits for."""
    names: List[str] = []
    children = [str(process.pid)]
    pid = process.pid
    while children:
        pid = int(children[-1])
        names.append(command_of(pid))
        children = (text_of("/proc/%d/task/%d/children" % (pid, pid)) or "").split()
    sentence = "%s printed nothing for %d minutes and was ended; it waited for %s (pid %d)"
    return Failure("packages-hang", sentence % (what, patience // 60, " > ".join(names), pid))


def check_space(needs: Iterable[Tuple[str, float]]) -> None:
    """Raises Failure if a file system has less space than these folders need together, in bytes."""
    by_device: Dict[int, Tuple[str, float]] = {}
    for path, amount in needs:
        where = path
        while not os.path.exists(below(where)):
            where = os.path.dirname(where)
        device = os.stat(below(where)).st_dev
        by_device[device] = (where, amount + by_device.get(device, ("", 0.0))[1])
    for where, amount in by_device.values():
        mounted = os.statvfs(below(where))
        free = mounted.f_bavail * mounted.f_frsize
        if amount > free:
            # rounded up and down, so that the need is always printed as larger
            sentence = "the packages need %d MB, and %s has %d MB free" % (
                -(-amount // 1e6),
                where,
                free // 1e6,
            )
            raise Failure("disk-full", sentence)
