"""Restoring files of killed applies: by the timer, at a boot, before the next apply."""

import glob
import os
import time
from typing import Iterator

from gpunode.agent.failures import Failure
from gpunode.agent.lock import take_lock
from gpunode.agent.record import RECORDS, Run
from gpunode.agent.system import below, failure_of, unrooted
from gpunode.engine.on_host.guard import disarm, put_back, read_guard


def restore_later(this: Run, wait: bool = True) -> None:
    """Run by the timer, and without `wait` by the unit at boot, before the units whose files it restores."""
    guard = read_guard(this)
    if guard is None:
        return
    holder = {"run": this.name, "by": guard["by"], "since": time.time(), "pid": os.getpid()}
    lock = take_lock(holder, wait)  # a running apply of its own ends first
    guard = read_guard(this)
    if lock is not None and guard is not None:
        restored, words = put_back(this, guard, start=wait)
        for line in ["put back " + path for path in restored] + words:
            print("gpunode: " + line)
        this.forget()
        this.close()


def leftovers() -> Iterator[str]:
    """Restore files of killed applies; yields sentences about it. An unreadable guard is renamed for the operator."""
    for path in sorted(glob.glob(below(RECORDS + "/*/guard.json"))):
        killed = Run(os.path.basename(os.path.dirname(path)))
        try:
            guard = read_guard(killed)
            restored, words = put_back(killed, guard) if guard is not None else ([], [])
        except Exception as error:
            why = failure_of(error)
            if why.code in ("disk-full", "read-only", "newer-record"):
                raise
            aside = path + ".unusable"
            disarm(killed, aside)
            where = unrooted(aside)
            restored, words = [], ["%s names the files to restore, but cannot be used: %s" % (where, error)]
            words.append("compare the originals in %s/files with the current files" % killed.record)
        for file in restored:
            yield "put back %s, which a killed apply had changed" % file
        for sentence in words:
            yield sentence
        killed.forget()
        killed.close()


def forget_payloads(but: str = "") -> None:
    """Remove the images sent to killed applies, but not to the run `but`. Needs the lock."""
    for path in glob.glob(below(RECORDS + "/*/payload-*")):
        killed = Run(os.path.basename(os.path.dirname(path)))
        try:
            begun = killed.story()
        except Failure:  # a newer gpunode's
            continue
        if killed.name != but and begun:  # else its images may still be on their way
            os.unlink(path)
