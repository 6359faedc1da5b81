"""The messages of an apply, as they come."""

import time
from typing import Iterator, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.lock import lock_holder
from gpunode.agent.record import Run
from gpunode.agent.system import Message, last, text_of

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
        words = "the apply was killed, or the machine went down, during this change"
        yield Failure("interrupted", words, crash).message(begun)
    yield {"type": "end", "ok": False}
