"""Guarded files, which a restart reads: restored, even if the apply is killed, unless that restart is verified."""

import glob
import json
import os
import shutil
import time
from typing import Iterator, List, Optional, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.files import put, put_files_back, sync
from gpunode.agent.machine import show_units, transient
from gpunode.agent.record import RECORDS, VERSION, Run, check_format, settling, take_lock
from gpunode.agent.system import (
    Message,
    below,
    failure_of,
    has_systemd,
    line_of,
    resolve,
    run,
    text_of,
    unrooted,
)
from gpunode.engine.on_host.health import NODE_UNITS, RESTORE_SECONDS, node_units, restart, what_worked

BOOT_UNIT = "/etc/systemd/system/gpunode-restore.service"
BOOT_LINK = "/etc/systemd/system/multi-user.target.wants/gpunode-restore.service"
BOOT = """\
# By gpunode, while it changes files that {unit} reads: for a reboot before {unit} is verified.
[Unit]
Description=Restore files of an interrupted gpunode apply
ConditionPathExists={record}/guard.json
RequiresMountsFor={record}
Before={before}

[Service]
Type=oneshot
ExecStart={command}
TimeoutStartSec=60
"""


def read_guard(this: Run) -> Optional[Message]:
    """The armed guard: {unit, paths, worked, pid, boot, settle, by}; None if there is none. Raises Failure."""
    path = this.record + "/guard.json"
    text = text_of(path)
    return None if text is None else check_format(dict(json.loads(text)), path)


def disarm(this: Run, aside: str = "") -> None:
    """Remove the guard, or rename it to `aside`. It goes first: timer and boot unit do nothing without it."""
    guard = below(this.record + "/guard.json")
    if os.path.exists(guard):
        os.rename(guard, aside) if aside else os.unlink(guard)
        sync(os.path.dirname(guard))
    for path in (BOOT_LINK, BOOT_UNIT, this.record + "/agent.py"):
        if os.path.lexists(below(path)):
            os.unlink(below(path))
    if has_systemd():
        run("systemctl", "stop", "gpunode-restore-%s.timer" % this.name)


def arm(this: Run, path: str) -> None:
    """Before a file is written that a later restart reads: have it restored unless that restart is verified.

    A timer does it if this process is killed, a unit that runs at boot before the others if the machine reboots.
    """
    job = this.load()
    guarded = [
        (change["unit"], list(map(resolve, change["guards"])))
        for change in job["changes"][this.n + 1 :]
        if change["kind"] == "service"
    ]
    unit, paths = next((pair for pair in guarded if path in pair[1]), ("", []))
    if (
        not unit or read_guard(this) is not None
    ):  # one guard covers all files of a step, which come right before their restart
        return
    units = node_units(unit)
    guard = {
        "version": VERSION,
        "unit": unit,
        "paths": paths,
        "worked": what_worked(units),
        "pid": units.get(unit, {}).get("MainPID"),
        "boot": line_of("/proc/sys/kernel/random/boot_id"),
        "settle": settling(this),
        "by": job["by"],
    }
    shutil.copyfile(below(this.live + "/agent.py"), below(this.record + "/agent.py"))
    sync(below(this.record + "/agent.py"))
    put(this.record + "/guard.json", json.dumps(guard).encode(), 0o600, None, this.name)
    if os.path.isdir(below("/run/systemd/system")):
        line = " ".join(this.command("boot"))
        before = " ".join(dict.fromkeys((unit, *NODE_UNITS)))
        text = BOOT.format(unit=unit, record=this.record, before=before, command=line)
        os.makedirs(os.path.dirname(below(BOOT_LINK)), exist_ok=True)
        put(BOOT_UNIT, text.encode(), 0o644, None, this.name)
        if not os.path.lexists(below(BOOT_LINK)):
            os.symlink(BOOT_UNIT, below(BOOT_LINK))
        sync(os.path.dirname(below(BOOT_LINK)))
    if has_systemd():
        name = "gpunode-restore-" + this.name
        after = "--on-active=%d" % job.get("restore", RESTORE_SECONDS)
        exactly = "--timer-property=AccuracySec=1s"  # else systemd may take a minute more
        answer = transient(after, exactly, "--unit", name, *this.command("restore"))
        if answer.status:
            sentence = "cannot set the timer that would restore the files of %s: %s" % (unit, answer.words)
            raise Failure("unit-failed", sentence)


def put_back(this: Run, guard: Message, start: bool = True) -> Tuple[List[str], List[str]]:
    """Restore the guarded files. Returns them, and sentences about the rest. Needs the lock.

    The unit is restarted (if `start`) only if it was restarted since: else it never read the changed files.
    """
    restored, words = put_files_back(this, guard["paths"])
    unit = guard["unit"]
    if restored:
        run("systemctl", "daemon-reload", timeout=60)
    if start and (restored or not words) and not same_process(guard):
        lost = restart(unit, "restart", guard)
        state = lost[unit] if unit in lost else "runs again"
        words.append("with its files restored, %s %s" % (unit, state))
        if lost and unit not in lost:
            words.append("still not working: " + ", ".join(sorted(lost)))
    disarm(this)
    return restored, words


def same_process(guard: Message) -> bool:
    """True if the unit has not been restarted since the guard was armed."""
    try:
        pid = show_units([guard["unit"]])[0].get("MainPID")
    except OSError:
        return False
    return bool(pid == guard["pid"] and line_of("/proc/sys/kernel/random/boot_id") == guard["boot"])


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
