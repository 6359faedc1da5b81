"""How a run ended, as the documented exit code."""

from collections.abc import Iterable

from gpunode.engine import gate
from gpunode.engine.chain import find_manual_fix
from gpunode.engine.member import PAUSED, Member, outcomes
from gpunode.errors import NO_RIGHTS

REFUSED = 4
DRIFT, DRIFT_AND_MORE = 5, 6  # all was checked and changes wait; changes wait where it could be checked
HOSTS_LEFT = 8  # its operator paused or interrupted the run


def worst(members: Iterable[Member]) -> int:
    """The exit code of the hosts' outcomes, pending changes aside: what is broken comes before what was refused, and this before what is
    unreachable. A host that is right but has a broken link counts as 1, one that this user may not read as refused."""
    ended = outcomes(members)
    statuses = {
        "refused" if each.problem and each.problem.code == NO_RIGHTS and not each.applied else each.status
        for each in ended
    }
    if "failed" in statuses or any(map(find_manual_fix, ended)):
        return 1
    if statuses & {"refused", "declined"}:
        return REFUSED
    return 3 if "unreachable" in statuses else 0


def of_run(members: Iterable[Member]) -> int:
    """The exit code of a run: 1 if a host that could be proven is not, HOSTS_LEFT if only the operator prevented it, 4 if only a gate did,
    else as `worst`. A right host whose GPUs are all in use counts as right."""
    members = tuple(members)
    missed = [
        member
        for member in members
        if (member.host_ok or member.has_changes) and not (member.proven or member.in_use)
    ]
    missed += [
        member for member in members if member.outcome is None and member.reason
    ]  # a node without a host
    codes = {member.reason.code if member.reason else "" for member in missed}
    if codes - {gate.CLOSED, PAUSED} or worst(members) == 1:
        return 1
    if PAUSED in codes:
        return HOSTS_LEFT
    return REFUSED if codes else worst(members)


def of_undo(members: Iterable[Member], *, restored: bool, paused: bool, kept: bool) -> int:
    """As `of_run`. Without `restored` the cluster's objects are still owed. `kept`: all that the run changed on a host stays."""
    owed = 0 if restored else HOSTS_LEFT if paused else 1
    return of_run(members) or owed or (REFUSED if kept else 0)
