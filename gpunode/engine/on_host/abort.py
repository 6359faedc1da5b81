"""Ending the running apply."""

import json
import os
import signal
import time
from typing import Iterator

from gpunode.agent.lock import lock_holder, take_lock
from gpunode.agent.processes import send_signal, started_at
from gpunode.agent.record import Run, readable
from gpunode.agent.system import Message, has_systemd, run, text_of
from gpunode.engine.on_host.restore import forget_payloads, leftovers

ABORT_SECONDS = 240  # for an apply to restore its guarded files and end


def abort(patience: float, beat: float) -> Iterator[Message]:
    """End the running apply, which restores its guarded files. One that does not end is killed; they are restored here."""
    holder = lock_holder()
    if holder is not None:
        this = Run(holder["run"])
        yield dict(holder, type="aborting", doing=doing(this))
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
        for sentence in leftovers():
            yield {"type": "progress", "text": sentence}
        forget_payloads()
        lock.close()
    yield {"type": "end", "ok": True}


def doing(this: Run) -> str:
    """What an apply is doing: its change and the last progress message."""
    found = "nothing yet"
    path = this.live + "/job.json"
    changes = readable(json.loads(text_of(path) or "{}"), path).get("changes", [])
    for message in this.story():
        if message["type"] == "start" and message["n"] < len(changes):
            change = changes[message["n"]]
            names = change.get("install", []) + change.get("load", []) + change.get("unload", [])
            names = [
                name if isinstance(name, str) else "=".join(filter(None, (name["name"], name["version"])))
                for name in names
            ]
            what = change.get("path") or change.get("unit") or change.get("reference") or " ".join(names)
            found = "%s %s" % ("restart" if change.get("restart") else change["kind"].replace("_", " "), what)
        elif message["type"] == "progress":
            found = found.split(" (")[0] + " (%s)" % message["text"]
        elif message["type"] == "done":
            found = "nothing, after " + found
    return found.strip()
