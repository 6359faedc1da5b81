"""Guarded files, which a restart reads: restored, even if the apply is killed, unless that restart is verified."""

import glob
import json
import os
import re
import shutil
import time
from typing import Dict, Iterable, Iterator, List, Optional, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.files import changed_files, put, put_files_back, read_file, state_of
from gpunode.agent.journal import guarding, sync
from gpunode.agent.machine import show_units
from gpunode.agent.record import RECORDS, UNPACKED, VERSION, Run, check_format, settle_time, take_lock
from gpunode.agent.system import (
    Message,
    below,
    failure_of,
    has_systemd,
    last,
    line_of,
    number,
    resolve,
    run,
    run_transient,
    text_of,
    unrooted,
)
from gpunode.links.runtime.on_host.docker import read_docker

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
    remove_all(BOOT_LINK, BOOT_UNIT, this.record + "/agent.py")
    if has_systemd():
        run("systemctl", "stop", "gpunode-restore-%s.timer" % this.name)


def remove_all(*paths: str) -> None:
    for path in map(below, paths):
        if os.path.lexists(path):
            os.unlink(path)


def arm(this: Run, path: str) -> None:
    """Before a file is written that a later restart reads: have it restored unless that restart is verified.

    A timer does it if this process is killed, a unit that runs at boot before the others if the machine reboots.
    """
    job = this.load()
    unit, paths = guarding(this, path)
    # One guard covers all files of a step, which come right before their restart
    if not unit or read_guard(this) is not None:
        return
    units = node_units(unit)
    guard = {
        "version": VERSION,
        "unit": unit,
        "paths": paths,
        "worked": find_worked(units),
        "pid": units.get(unit, {}).get("MainPID"),
        "boot": line_of("/proc/sys/kernel/random/boot_id"),
        "settle": settle_time(this),
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
        answer = run_transient(after, exactly, "--unit", name, *this.command("restore"))
        if answer.status:
            sentence = "cannot set the timer that would restore the files of %s: %s" % (unit, answer.message)
            raise Failure("unit-failed", sentence)


def put_back(this: Run, guard: Message, start: bool = True) -> Tuple[List[str], List[str]]:
    """Restore the guarded files. Returns them, and sentences about the rest. Needs the lock.

    The unit is restarted (if `start`) only if it was restarted since: else it never read the changed files.
    """
    restored, problems = put_files_back(this, guard["paths"])
    unit = guard["unit"]
    if restored:
        run("systemctl", "daemon-reload", timeout=60)
    if start and (restored or not problems) and not same_process(guard):
        lost = restart(unit, "restart", guard)
        state = lost[unit] if unit in lost else "runs again"
        problems.append("with its files restored, %s %s" % (unit, state))
        if lost and unit not in lost:
            problems.append("still not working: " + ", ".join(sorted(lost)))
    disarm(this)
    return restored, problems


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
        restored, problems = put_back(this, guard, start=wait)
        for line in ["restored " + path for path in restored] + problems:
            print("gpunode: " + line)
        this.forget()
        this.close()


def end_killed_runs() -> Iterator[str]:
    """Restore files of killed applies; yields sentences about it. An unreadable guard is renamed for the operator."""
    for path in sorted(glob.glob(below(RECORDS + "/*/guard.json"))):
        killed = Run(os.path.basename(os.path.dirname(path)))
        try:
            guard = read_guard(killed)
            restored, problems = put_back(killed, guard) if guard is not None else ([], [])
        except Exception as error:
            why = failure_of(error)
            if why.code in ("disk-full", "read-only", "newer-record"):
                raise
            aside = path + ".unusable"
            disarm(killed, aside)
            where = unrooted(aside)
            sentence = "%s names the files to restore, but cannot be used: %s" % (where, error)
            advice = "compare the originals in %s/files with the current files" % killed.record
            restored, problems = [], [sentence, advice]
        for file in restored:
            yield "restored %s, which a killed apply had changed" % file
        for sentence in problems:
            yield sentence
        killed.forget()
        killed.close()
    remove_all(BOOT_LINK, BOOT_UNIT)  # of one that was killed after its guard had gone


def put_back_next(paths: Iterable[str]) -> Dict[str, Message]:
    """Those of the paths that the next apply restores, since a killed one wrote them: as a probe will find them then."""
    back: Dict[str, Message] = {}
    for path in sorted(glob.glob(below(RECORDS + "/*/guard.json"))):
        killed = Run(os.path.basename(os.path.dirname(path)))
        try:
            guarded, entries = (read_guard(killed) or {"paths": []})["paths"], changed_files(killed)
        except Exception:  # the next apply reports it
            continue
        for name in paths:
            entry = entries.get(resolve(name))
            if entry is None or entry["path"] not in guarded or entry.get("link"):
                continue
            if state_of(entry["path"]) in entry["wrote"]:
                back[name] = {"exists": False}
                if entry["file"]:
                    back[name] = dict(read_file(killed.record + "/" + entry["file"]), mode=entry["mode"])
    return back


def forget_payloads(but: str = "") -> None:
    """Remove the images sent to killed applies, but not to the run `but`, and what an installer has unpacked. Needs the lock."""
    for path in glob.glob(below(RECORDS + "/*/" + UNPACKED)):
        shutil.rmtree(path, ignore_errors=True)
    for path in glob.glob(below(RECORDS + "/*/payload-*")):
        killed = Run(os.path.basename(os.path.dirname(path)))
        try:
            over = killed.story() or not os.path.isdir(below(killed.live))
        except Failure:  # a newer gpunode's
            continue
        if killed.name != but and over:  # else its images may still be on their way
            os.unlink(path)


NODE_UNITS = ("docker.service", "containerd.service", "kubelet.service")
CTR = {"containerd.service": ("ctr",), "snap.microk8s.daemon-containerd.service": ("microk8s", "ctr")}
HANDLER = re.compile(r"""(?m)^\s*\[plugins\..*\.containerd\.runtimes\.("[^"]+"|'[^']+'|[^.\]"']+)\]\s*$""")


def node_units(unit: str) -> Dict[str, Dict[str, str]]:
    """The unit, docker, containerd and the kubelet, as systemctl shows them."""
    names = list(dict.fromkeys((unit, *NODE_UNITS)))
    return dict(zip(names, show_units(names)))  # noqa: B905 - Python 3.10 has `strict`


def find_working(units: Dict[str, Dict[str, str]]) -> Dict[str, str]:
    """What works now: units, each with its process; containerd's CRI plugins; runtime handlers."""
    works = {
        name: shown.get("MainPID", "")
        for name, shown in units.items()
        if shown.get("ActiveState") == "active"
    }
    for unit, ctr in CTR.items():
        # With an invalid CRI section, containerd stays up and only this plugin is in error.
        listed = run(*ctr, "plugins", "ls", timeout=10).out if unit in works else ""
        for cells in map(str.split, listed.splitlines()):
            if cells[-1:] == ["ok"] and "cri" in cells[0].split(".") + cells[1:2]:
                works["containerd's plugin %s.%s" % (cells[0], cells[1])] = ""
    if "containerd.service" in works:
        dump = run("containerd", "config", "dump")
        for name in HANDLER.findall("" if dump.status else dump.out):
            works["containerd's runtime " + name.strip("\"'")] = ""
    try:
        docker = read_docker() if "docker.service" in works else None
    except OSError:
        docker = None
    for name in docker["runtimes"] if docker else ():
        works["docker's runtime " + name] = ""
    return works


def find_worked(units: Dict[str, Dict[str, str]]) -> List[str]:
    """What must still work after a restart. What did not work before is no reason to restore files."""
    works = find_working(units)
    for name, shown in units.items():
        up = time.monotonic() - count_of(shown, "ActiveEnterTimestampMonotonic") / 1e6
        if count_of(shown, "NRestarts") and up < 60:
            works.pop(name, None)  # active between two crashes
    return sorted(works)


def count_of(shown: Dict[str, str], key: str) -> int:
    """A number of `systemctl show`; 0 where it has none. Raises OSError."""
    return number(shown.get(key, ""), "%s, by systemctl show" % key)


RESTORE_SECONDS = 180  # after which the timer restores guarded files whose restart was not verified


def restart(unit: str, verb: str, guard: Message) -> Dict[str, str]:
    """(Re)start a unit: what does not work for `settle` seconds then, of it and all that worked before, and why. A unit that
    does one thing and ends works if it has done that, at once."""
    settle = guard["settle"]
    run("systemctl", "daemon-reload", timeout=60)
    run("systemctl", "reset-failed", unit)
    answer = run("systemctl", verb, unit, timeout=RESTORE_SECONDS - 60)
    begun = since = time.monotonic()
    expected = list(dict.fromkeys([unit, *guard["worked"]]))
    before: Dict[str, Optional[str]] = {}
    restarts: Optional[int] = None
    while True:
        now = time.monotonic()
        why = "no longer works"
        shown: Dict[str, str] = {}
        works: Dict[str, str] = {}
        count = restarts or 0
        try:
            units = node_units(unit)
            shown, works = units.get(unit, {}), find_working(units)
            count = count_of(shown, "NRestarts")
        except OSError as error:  # systemctl may fail for a moment while the unit is healthy
            why = "has an unknown state: %s" % error
        ended = not answer.status and shown.get("Type") == "oneshot" and not was_skipped(shown)
        lost = {name: why for name in expected if name not in works and not (ended and name == unit)}
        seen = {name: works.get(name) for name in expected}
        if lost or seen != before:
            before, since = seen, now
        if not lost and (ended or now - since >= settle):
            return {}
        restarts = count if restarts is None else restarts
        twice = shown.get("SubState") == "auto-restart" and count > restarts
        # one crash is allowed: what the unit needs may be starting, too
        late = now - begun > settle * (2 if twice else 6)
        down = (
            bool(shown)
            and not ended
            and (shown.get("ActiveState") in ("failed", "inactive") or shown.get("LoadState") != "loaded")
        )
        if down or late:
            if shown and unit not in works:
                state = "is %s (%s)" % (shown.get("ActiveState", "unknown"), shown.get("SubState", ""))
                if was_skipped(shown):
                    state = "was skipped: a condition of its own is not met"
                lost[unit] = last(answer.message, 3)[0] if answer.status else state
            return lost or {unit: "restarts again and again"}
        time.sleep(min(0.5, settle / 5.0))


def was_skipped(shown: Dict[str, str]) -> bool:
    """Whether the unit did nothing at its last start, as a condition was not met: of that `systemctl restart` is no failure."""
    return shown.get("ConditionResult") == "no" or shown.get("Result") == "exec-condition"


def reasons(lines: List[str]) -> List[str]:
    """The last five error lines of a journal, each once and without klog's prefix."""
    strong = [line for line in lines if re.match(r"[EF]\d{4} |(?i:error|fatal|panic|failed|unable)\b", line)]
    weak = [line for line in lines if re.search(r"(?i)error|fail|fatal|invalid|unknown|panic", line)]
    short = [re.sub(r"^[A-Z]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] ", "", line) for line in strong or weak or lines]
    return list(dict.fromkeys(short))[-5:]
