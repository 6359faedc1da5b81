"""An apply on the host: started, followed and aborted by jobs; its own process makes the changes."""

import json
import os
import shutil
import signal
import subprocess
import time
from typing import Any, BinaryIO, Iterator, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.machine import run_transient
from gpunode.agent.processes import send_signal, started_at
from gpunode.agent.record import Run, check_format, lock_holder, take_lock
from gpunode.agent.system import Message, below, failure_of, has_systemd, last, line_of, run, text_of
from gpunode.engine.on_host.changes import make, why_unknown
from gpunode.engine.on_host.guard import end_killed_runs, forget_payloads, put_back, read_guard
from gpunode.engine.on_host.probe import probe
from gpunode.links.driver.on_host.runfile import fetch
from gpunode.links.plugin.on_host import spool

BEAT_SECONDS = 10  # between two `alive` of a silent apply


def follow(this: Run, beat: float = BEAT_SECONDS) -> Iterator[Message]:
    """The messages of an apply from its first to its last, as they come; `alive` after every `beat` without one."""
    messages = this.open_messages()
    if messages is None:
        yield {"type": "unknown", "run": this.name}
        yield {"type": "end", "ok": False}
        return
    message: Message = {}
    begun: Optional[int] = None
    sent = time.monotonic()
    patience = sent + 15  # for the process to start and take the lock
    with messages as file:
        while True:
            # before the lock is checked: it may take the lock and send its first message right after that
            heard = bool(message)
            holder = lock_holder()
            alive = bool(holder and holder["run"] == this.name)
            for message in this.messages(file):
                if message["type"] in ("start", "done", "failed"):
                    begun = message["n"] if message["type"] == "start" else None
                sent = time.monotonic()
                yield message
            if message.get("type") == "end":
                return
            if not alive and (heard or (not message and time.monotonic() > patience)):
                break
            if time.monotonic() - sent > beat:
                sent = time.monotonic()
                yield {"type": "alive"}
            time.sleep(0.05)
    crash = last(text_of(this.record + "/crash.log") or "", 12)
    if not message:
        raise OSError("the apply did not start: " + (crash or ["its process printed nothing"])[-1])
    if begun is not None:
        sentence = "the apply was killed, or the machine went down, during this change"
        yield Failure("interrupted", sentence, crash).message(begun)
    yield {"type": "end", "ok": False}


def apply(program: bytes, job: Message, stdin: BinaryIO) -> Iterator[Message]:
    this = Run(job["run"])
    holder = lock_holder()
    if holder:
        yield dict(holder, type="locked")
        yield {"type": "end", "ok": False}
        return
    for n, change in enumerate(job["changes"]):
        why = why_unknown(change)
        if why is not None:
            yield why.message(n)
            yield {"type": "end", "ok": False}
            return
    n = 0
    try:
        this.store(program, job)
        for index, payload in enumerate(job["payloads"]):
            n = [change.get("payload") for change in job["changes"]].index(index)
            spool(this.payload(index), payload, stdin)
        this.begin()
        launch(this)
    except (Failure, OSError) as error:
        this.forget()
        this.close()
        yield failure_of(error).message(n)
        yield {"type": "end", "ok": False}
        return
    for message in follow(this, job.get("beat", BEAT_SECONDS)):
        yield message


def launch(this: Run) -> None:
    """Start `work` so that it outlives this process."""
    command = this.command("work")
    if has_systemd():
        answer = run_transient("--unit", "gpunode-" + this.name, *command)
        if answer.status:
            raise OSError(answer.message)
        return
    null = subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)


ABORT_SECONDS = 240  # for an apply to restore its guarded files and end


def abort(patience: float, beat: float) -> Iterator[Message]:
    """End the running apply, which restores its guarded files. One that does not end is killed; they are restored here."""
    holder = lock_holder()
    if holder is not None:
        this = Run(holder["run"])
        yield dict(holder, type="aborting", doing=activity(this))
        pid = holder["pid"]
        started = holder.get("started", started_at(pid))  # older gpunodes did not write it
        send_signal(pid, started, signal.SIGTERM)
        begun = beaten = time.monotonic()
        while (lock_holder() or {}).get("run") == this.name:
            if time.monotonic() - begun > patience:
                if has_systemd():
                    run("systemctl", "kill", "--signal=KILL", "gpunode-%s.service" % this.name)
                send_signal(pid, started, signal.SIGKILL)
                begun = time.monotonic()
            if time.monotonic() - beaten > beat:
                beaten = time.monotonic()
                yield {"type": "alive"}
            time.sleep(0.1)
        for message in this.story():
            if message["type"] == "failed":
                yield message
    mine = {"run": "abort", "by": "gpunode abort", "since": time.time(), "pid": os.getpid()}
    lock = take_lock(mine)
    if lock is not None:  # else the next apply has begun, which does this itself
        for sentence in end_killed_runs():
            yield {"type": "progress", "text": sentence}
        forget_payloads()
        lock.close()
    yield {"type": "end", "ok": True}


def activity(this: Run) -> str:
    """What an apply is doing: its change and the last progress message."""
    text = "nothing yet"
    path = this.live + "/job.json"
    changes = check_format(json.loads(text_of(path) or "{}"), path).get("changes", [])
    for message in this.story():
        if message["type"] == "start" and message["n"] < len(changes):
            change = changes[message["n"]]
            names = change.get("install", []) + change.get("load", []) + change.get("unload", [])
            names = [
                name if isinstance(name, str) else "=".join(filter(None, (name["name"], name["version"])))
                for name in names
            ]
            what = change.get("path") or change.get("unit") or change.get("reference") or " ".join(names)
            text = "%s %s" % ("restart" if change.get("restart") else change["kind"].replace("_", " "), what)
        elif message["type"] == "progress":
            text = text.split(" (")[0] + " (%s)" % message["text"]
        elif message["type"] == "done":
            text = "nothing, after " + text
    return text.strip()


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
        for this.n, change in enumerate(changes):
            fetch(this, change)
        for this.n, change in enumerate(changes):
            start = time.monotonic()
            this.send({"type": "start", "n": this.n})
            detail = make(this, change)
            this.send({"type": "done", "n": this.n, "seconds": time.monotonic() - start, "detail": detail})
    except (Exception, KeyboardInterrupt) as error:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # restoring is not interrupted
        ok = False
        this.send(undo(this, failure_of(error)).message(this.n))
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
    except Exception as error:
        this.send(failure_of(error).message(0))
        return False
    return True


def prune(this: Run) -> None:
    """Remove the oldest records. Needs the lock, and no guard that is still armed."""
    folder = below(os.path.dirname(this.record))
    others = [name for name in os.listdir(folder) if name != this.name]
    others.sort(key=lambda name: os.stat(os.path.join(folder, name)).st_mtime)
    for name in others[: max(0, len(others) - KEPT_RUNS + 1)]:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
