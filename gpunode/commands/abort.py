"""Ends the apply of an earlier run on hosts."""

from gpunode.engine import converge, exit_codes
from gpunode.engine.converge import Ended
from gpunode.engine.fleet import Visit
from gpunode.engine.member import outcomes
from gpunode.engine.session import Session
from gpunode.model import OnEvent, Outcome


def abort(session: Session) -> int:
    """End running applies, and report them; the exit code."""
    ended: dict[str, Ended] = {}

    def end_apply(visit: Visit, emit: OnEvent) -> Outcome:
        name = visit.host.name
        ended[name] = converge.abort(visit, emit)
        return Outcome(name, "changed" if ended[name] != Ended() else "right")

    members = session.for_each_host(end_apply)
    session.reporter.rows(
        "abort",
        ("host", "ended", "by", "since", "results"),
        [
            (name, end.doing or "nothing was under way", end.by, end.since, "; ".join(end.results))
            for name, end in ((host.name, ended[host.name]) for host in session.hosts if host.name in ended)
        ],
    )
    session.reporter.failures(outcomes(members))
    return exit_codes.worst(members)
