"""The agent's operations: a job is answered by messages, which for an apply are those of its own process.

Each imports what it needs: a host compiles the modules of one job, and a probe needs half of them.
"""

import json
import os
import sys
from typing import Callable, Dict, Iterator

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run
from gpunode.agent.system import Message, below, from_os_error


def answer(program: bytes, job: Message) -> Iterator[Message]:
    try:
        for message in OPERATIONS.get(job["op"], refuse_unknown)(program, job):
            yield message
    except Failure as failure:  # the whole job is refused
        yield failure.message(None)
        yield {"type": "end", "ok": False}


def answer_probe(_program: bytes, job: Message) -> Iterator[Message]:
    from gpunode.engine.on_host.probe import PROBE_SECONDS, probe

    yield {"type": "facts", "facts": probe(job["watch"], patience=job.get("patience", PROBE_SECONDS))}


def answer_journal(_program: bytes, job: Message) -> Iterator[Message]:
    from gpunode.engine.on_host.journal import read_journal

    yield {"type": "journal", "entries": read_journal(job["run"])}


def answer_apply(program: bytes, job: Message) -> Iterator[Message]:
    from gpunode.engine.on_host.runs import apply

    return apply(program, job, sys.stdin.buffer)


def answer_follow(_program: bytes, job: Message) -> Iterator[Message]:
    from gpunode.engine.on_host.confirmation import confirm
    from gpunode.engine.on_host.runs import BEAT_SECONDS, follow

    this = Run(job["run"])
    if job.get("confirms") is not None:
        confirm(this, job["confirms"])
    return follow(this, job.get("beat", BEAT_SECONDS))


def answer_confirm(_program: bytes, job: Message) -> Iterator[Message]:
    from gpunode.engine.on_host.confirmation import confirm

    for name in job["runs"]:
        confirm(Run(name))
    yield {"type": "end", "ok": True}


def answer_container(_program: bytes, job: Message) -> Iterator[Message]:
    from gpunode.agent.section import Section
    from gpunode.engine.on_host.runs import BEAT_SECONDS
    from gpunode.links.runtime.on_host.container_test import test_container

    test = Section(test_container, job["runtime"], job["image"])
    try:
        while not test.wait(job.get("beat", BEAT_SECONDS)):
            yield {"type": "alive"}
    finally:
        test.wait()  # without a reader, too, as it removes its container
    yield dict(test.result(), type="container")


def answer_measure(_program: bytes, job: Message) -> Iterator[Message]:
    from gpunode.links.pod.on_host.measure import measure

    return measure(job["program"], job["level"], job["seconds"])


def answer_abort(_program: bytes, job: Message) -> Iterator[Message]:
    from gpunode.engine.on_host.runs import ABORT_SECONDS, BEAT_SECONDS, abort

    return abort(job.get("patience", ABORT_SECONDS), job.get("beat", BEAT_SECONDS))


def refuse_unknown(_program: bytes, job: Message) -> Iterator[Message]:
    raise Failure("unknown-operation", "the agent knows no operation `%s`" % job["op"])


OPERATIONS: Dict[str, Callable[[bytes, Message], Iterator[Message]]] = {
    "probe": answer_probe,
    "journal": answer_journal,
    "apply": answer_apply,
    "follow": answer_follow,
    "confirm": answer_confirm,
    "container": answer_container,
    "measure": answer_measure,
    "abort": answer_abort,
}


def main(program: bytes, raw_job: bytes) -> None:
    """Answer on stdout the job that the bootstrap has read."""
    job = json.loads(raw_job.decode("utf-8"))
    out = sys.stdout.buffer
    out.write(b"\n@gpunode-begin %s\n" % job["nonce"].encode())
    out.flush()
    try:
        for message in answer(program, job):
            out.write(json.dumps(message).encode() + b"\n")
            out.flush()
        out.write(b"@gpunode-end %s\n" % job["nonce"].encode())
        out.flush()
    except BrokenPipeError:
        os._exit(0)  # the connection is gone; an apply goes on on its own
    except OSError as error:
        sys.stderr.write("gpunode: %s\n" % from_os_error(error).error)
        sys.exit(1)


def detached(verb: str, name: str) -> None:
    """Run the stored program as a file: `work` by an apply, `restore` by a timer, `boot` at a boot."""
    this = Run(name)
    crash = os.open(below(this.record + "/crash.log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(crash, 2)
    if verb == "work":
        from gpunode.engine.on_host.work import work

        work(this)
    else:
        from gpunode.engine.on_host.guard import restore_later

        restore_later(this, wait=verb == "restore")
