"""How a run ended, as the documented exit code."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.engine import gate
from gpunode.engine.chain import find_manual_fix
from gpunode.engine.member import Member, outcomes

REFUSED = 4
DRIFT, DRIFT_AND_MORE = 5, 6  # all was checked and changes wait; changes wait where it could be checked


def worst(members: Iterable[Member]) -> int:
    """Of the hosts' own stories; changes that wait are not judged here. A host that is right but broken needs a person."""
    ended = outcomes(members)
    statuses = {outcome.status for outcome in ended}
    if "failed" in statuses or any(map(find_manual_fix, ended)):
        return 1
    if statuses & {"refused", "declined"}:
        return REFUSED
    return 3 if "unreachable" in statuses else 0


def of_run(members: Iterable[Member]) -> int:
    """Of a run that was to prove every host: 1 where one that was able is not, 4 where but a gate kept it, else as `worst`.
    A host that was right and whose GPUs are all in use counts as right."""
    members = tuple(members)
    missed = [
        member
        for member in members
        if (member.host_ok or member.has_changes) and not (member.proven or member.in_use)
    ]
    if any(member.reason is None or member.reason.code != gate.CLOSED for member in missed):
        return 1
    return REFUSED if missed and worst(members) != 1 else worst(members)
