"""The process of an apply: makes the changes in order, restores what a failure leaves unverified, probes, and reboots last."""

import os
import shutil
import signal
import time
from typing import Any

from gpunode.agent.failures import Failure
from gpunode.agent.files import remove_temporaries
from gpunode.agent.record import Run, lock_holder, take_lock
from gpunode.agent.system import below, failure_of, last, line_of, run
from gpunode.engine.on_host.changes import CHANGES, refuse_unknown
from gpunode.engine.on_host.guard import end_killed_runs, forget_payloads, put_back, read_guard
from gpunode.engine.on_host.journal import (
    complete,
    complete_killed,
    needed_applies,
    note,
    refuse_if_grown,
)
from gpunode.engine.on_host.probe import probe
from gpunode.links.driver.on_host.runfile import fetch

REBOOT_SECONDS = 900  # for the machine to go down
KEPT_RUNS = 50  # records of earlier applies, with the originals of what they changed


def work(this: Run) -> None:
    """Make the changes in order, up to the first failure; the last message is `end`."""
    job = this.load()
    holder = {"run": this.name, "by": job["by"], "since": time.time(), "pid": os.getpid()}
    lock = take_lock(holder)
    if lock is None:
        this.send(dict(lock_holder() or holder, type="locked"))
        this.forget()
        this.send({"type": "end", "ok": False})
        this.close()
        return
    ok = restore_leftovers(this)
    if ok:
        prune(this)
    signal.signal(signal.SIGTERM, interrupt)
    changes = job["changes"] if ok else []
    try:
        if changes:
            refuse_if_grown(job)
        for this.n, change in enumerate(changes):
            refuse_unknown(change)
        for this.n, change in enumerate(changes):
            fetch(this, change)
        for this.n, change in enumerate(changes):
            start = time.monotonic()
            this.send({"type": "start", "n": this.n})
            note(this, change)
            detail = CHANGES[change["kind"]](this, change)
            complete(this, change)
            this.send({"type": "done", "n": this.n, "seconds": time.monotonic() - start, "detail": detail})
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # restoring is not interrupted
        ok = False
        why = failure_of(error)
        this.send(undo(this, why).message(this.n))
        try:
            complete(this, changes[this.n], why.code)
        except OSError:
            pass  # a full disk; it is read as that of a killed apply
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if job["then"] is not None:
        this.send({"type": "facts", "facts": probe(job["then"], this.name)})
    this.forget()
    this.send({"type": "end", "ok": ok})
    if ok and any(change["kind"] == "reboot" for change in job["changes"]):
        go_down(this)
    this.close()
    lock.close()


def interrupt(_number: int, _frame: Any) -> None:
    """The handler of SIGTERM; later ones are ignored."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def undo(this: Run, why: Failure) -> Failure:
    """The same failure, with the guarded files that were restored because their restart was not verified."""
    try:
        guard = read_guard(this)
        if guard is not None:
            why.restored, problems = put_back(this, guard)
            why.detail += problems
    except Exception as error:  # the guard stays: for the timer, the next boot, or the next apply
        why.detail.append("the files were not restored: %s" % failure_of(error).error)
    return why


def go_down(this: Run) -> None:
    """Reboot, and hold the lock until the machine is down."""
    before = line_of("/proc/sys/kernel/random/boot_id")
    time.sleep(1)  # for a follower to read the end
    answer = run("systemctl", "reboot")
    if answer.status > 0:  # negative: the reboot itself killed it
        sentence = "the host does not reboot: " + last(answer.message, 1)[0]
        this.send(Failure("reboot-failed", sentence, last(answer.message, 5)).message(this.n))
        this.send({"type": "end", "ok": False})  # for new followers; the first `end` was read
        return
    deadline = time.monotonic() + REBOOT_SECONDS
    while line_of("/proc/sys/kernel/random/boot_id") == before and time.monotonic() < deadline:
        time.sleep(0.5)


def restore_leftovers(this: Run) -> bool:
    """Restore now what timers of killed applies would restore in the middle of this one; False if it failed."""
    try:
        for sentence in end_killed_runs():
            this.progress(sentence)
        forget_payloads(this.name)
        remove_temporaries()
        complete_killed()
    except Exception as error:
        this.send(failure_of(error).message(0))
        return False
    return True


def prune(this: Run) -> None:
    """Remove the oldest records, but not what `needed_applies` has. Needs the lock, and no guard that is still armed."""
    folder = below(os.path.dirname(this.record))
    others = [name for name in os.listdir(folder) if name != this.name]
    others.sort(key=lambda name: os.stat(os.path.join(folder, name)).st_mtime)
    needed = needed_applies()
    for name in set(others[: max(0, len(others) - KEPT_RUNS + 1)]) - needed:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
