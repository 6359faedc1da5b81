"""Starting an apply in a process of its own."""

import subprocess
from typing import BinaryIO, Iterator

from gpunode.agent.failures import Failure
from gpunode.agent.lock import lock_holder
from gpunode.agent.record import Run
from gpunode.agent.system import Message, failure_of, has_systemd
from gpunode.agent.systemd import transient
from gpunode.engine.on_host.changes import not_known
from gpunode.engine.on_host.follow import BEAT_SECONDS, follow
from gpunode.links.plugin.on_host import spool


def apply(program: bytes, job: Message, stdin: BinaryIO) -> Iterator[Message]:
    this = Run(job["run"])
    holder = lock_holder()
    if holder:
        yield dict(holder, type="locked")
        yield {"type": "end", "ok": False}
        return
    for n, change in enumerate(job["changes"]):
        why = not_known(change)
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
        answer = transient("--unit", "gpunode-" + this.name, *command)
        if answer.status:
            raise OSError(answer.words)
        return
    null = subprocess.DEVNULL
    subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True)
