"""An apply on the host: started, followed and aborted by jobs. `work`, a process of its own, makes the changes.

That one imports what makes them; a host compiles it once for an apply, not here, too.
"""

import json
import os
import signal
import subprocess
import time
from typing import BinaryIO, Iterator, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.processes import send_signal, started_at
from gpunode.agent.record import LOCK, Run, check_format, lock_holder, take_lock
from gpunode.agent.system import Message, failure_of, has_systemd, last, run, run_transient, text_of

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
    n = 0
    try:
        this.store(program, job)
        for index, payload in enumerate(job["payloads"]):
            from gpunode.links.plugin.on_host import spool

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
KILL_SECONDS = 20  # for a killed one to be gone


def abort(patience: float, beat: float) -> Iterator[Message]:
    """End the running apply, which restores its guarded files. One that does not end is killed; they are restored here. Raises Failure
    where even that does not end it."""
    from gpunode.engine.on_host.guard import end_killed_runs, forget_payloads

    holder = lock_holder()
    if holder is not None:
        this = Run(holder["run"])
        yield dict(holder, type="aborting", doing=activity(this))
        pid = holder["pid"]
        started = holder.get("started", started_at(pid))  # older gpunodes did not write it
        send_signal(pid, started, signal.SIGTERM)
        begun = beaten = time.monotonic()
        killed = False
        while (lock_holder() or {}).get("run") == this.name:
            if time.monotonic() - begun > (min(patience, KILL_SECONDS) if killed else patience):
                if killed:
                    why = "another process holds " + LOCK
                    if started_at(pid) == started:
                        why = "its process %d hangs in the kernel" % pid
                    raise Failure("unkillable", "the apply was killed, and does not end: " + why)
                if has_systemd():
                    run("systemctl", "kill", "--signal=KILL", "gpunode-%s.service" % this.name)
                send_signal(pid, started, signal.SIGKILL)
                begun, killed = time.monotonic(), True
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
