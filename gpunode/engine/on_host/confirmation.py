"""Confirmation from outside: a restart is kept when gpunode can connect to the host again, or its API server answers."""

import glob
import json
import os
import time
from typing import Any, Dict, Iterable, List, Optional

from gpunode.agent.failures import Failure
from gpunode.agent.files import put, sync
from gpunode.agent.record import RECORDS, VERSION, Run, readable
from gpunode.agent.system import Message, below, text_of, unrooted

KEPT = "api-server-answered"  # code: why an unconfirmed restart was kept


def judged(this: Run, unit: str) -> Message:
    """Wait for a confirmation of the unit's restart; details for its `done` message. Raises Failure: put its files back.

    The first half of the time is the operator's alone. In the second an answer of the API server is enough.
    """
    from gpunode.engine.on_host import apiserver  # a probe, which imports this module, needs no TLS

    job = this.load()
    bound = float(job.get("confirm") or 0)
    if not bound:
        return {}
    this.send({"type": "confirm", "n": this.n, "unit": unit, "seconds": bound})
    begun = time.monotonic()
    while not os.path.exists(below(sign(this, this.n))):
        waited = time.monotonic() - begun
        if waited > bound:
            sentence = (
                "%s works, but for %d seconds gpunode could not connect to this host again, nor did an "
                "API server answer it" % (unit, bound)
            )
            raise Failure("cut-off", sentence)
        if waited < bound / 2:
            time.sleep(0.05)
        elif apiserver.answers():
            mark(this, unit, job["by"])
            return {"outside": KEPT}
        else:
            time.sleep(min(1.0, bound / 20))
    return {"outside": "confirmed"}


def sign(this: Run, n: int) -> str:
    return "%s/confirmed-%d" % (this.live, n)


def mark(this: Run, unit: str, by: str) -> None:
    """Record for the next run that this restart is unconfirmed."""
    found = {"version": VERSION, "code": KEPT, "run": this.name, "unit": unit, "by": by, "since": time.time()}
    put("%s/unconfirmed-%d.json" % (this.record, this.n), json.dumps(found).encode(), 0o600, None, this.name)


def confirm(this: Run, n: Optional[int] = None) -> None:
    """A connection that was opened after the run's change `n` (None: after its end) confirms what came before."""
    if n is not None and os.path.isdir(below(this.live)):
        with open(below(sign(this, n)), "wb"):
            pass
    for path in marks(this.name):
        os.unlink(path)
        sync(os.path.dirname(path))


def unconfirmed() -> List[Dict[str, Any]]:
    """What earlier runs kept unconfirmed: {code, run, unit, by, since}, the oldest first. Raises Failure."""
    found = [
        readable(dict(json.loads(text_of(unrooted(path)) or "{}")), unrooted(path)) for path in marks("*")
    ]
    keys = ("code", "run", "unit", "by", "since")
    return sorted(({key: each[key] for key in keys} for each in found), key=lambda each: each["since"])


def marks(run: str) -> Iterable[str]:
    return sorted(glob.glob(below("%s/%s/unconfirmed-*.json" % (RECORDS, run))))
