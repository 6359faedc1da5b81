"""How a run ended, as the documented exit code."""

from __future__ import annotations

from collections.abc import Iterable

from gpunode.rollout.member import Member, outcomes

DRIFT, DRIFT_AND_MORE = 5, 6  # all was checked and changes wait; changes wait where it could be checked


def worst(members: Iterable[Member]) -> int:
    """Of the hosts' own stories; changes that wait are not judged here."""
    statuses = {outcome.status for outcome in outcomes(members)}
    if "failed" in statuses:
        return 1
    if statuses & {"refused", "declined"}:
        return 4
    return 3 if "unreachable" in statuses else 0


def of_run(members: Iterable[Member]) -> int:
    """Of a run that was to prove every host: 1 where one that was able is not, else as `worst`."""
    members = tuple(members)
    able = [one for one in members if one.good or one.waits]
    return 1 if any(not one.proven for one in able) else worst(members)
