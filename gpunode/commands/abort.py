"""The end of what an earlier run still does on hosts."""

from __future__ import annotations

from gpunode.engine import converge, exit_codes
from gpunode.engine.converge import Ended
from gpunode.engine.fleet import Visit
from gpunode.engine.member import outcomes
from gpunode.engine.session import Session
from gpunode.model import OnEvent, Outcome


def abort(session: Session) -> int:
    """End it, and tell what was ended; the exit code."""
    ended: dict[str, Ended] = {}

    def story(visit: Visit, emit: OnEvent) -> Outcome:
        name = visit.host.name
        ended[name] = converge.abort(visit, emit)
        return Outcome(name, "changed" if ended[name] != Ended() else "right")

    members = session.for_each_host(story)
    session.listener.rows(
        "abort",
        ("host", "ended", "by", "since", "results"),
        [
            (name, one.doing or "nothing was under way", one.by, one.since, "; ".join(one.results))
            for name, one in ((host.name, ended[host.name]) for host in session.hosts if host.name in ended)
        ],
    )
    session.listener.failures(outcomes(members))
    return exit_codes.worst(members)
