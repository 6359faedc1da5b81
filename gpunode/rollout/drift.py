"""What waits on hosts and in the cluster, shown and not applied."""

from __future__ import annotations

from gpunode import converge
from gpunode.errors import ClusterError
from gpunode.rollout import exit_codes, nodes, planned
from gpunode.rollout.member import outcomes
from gpunode.rollout.session import Session


def drift(session: Session, *, diff: bool | None, waits: bool) -> int:
    """Show it; the exit code. `diff`: as in `planned.show`. `waits`: changes that wait have exit codes of their own."""
    listener, inventory = session.listener, session.inventory
    members = session.probed(converge.look)
    listener.plans(outcomes(members), diff=diff is not False)
    objects: int | None = None  # of the cluster, if it was checked
    failed = 0
    if inventory.cluster.plugin is None:
        listener.note(nodes.WITHOUT_PLUGIN)
    else:
        able = [one for one in members if one.outcome and one.outcome.error is None]
        try:
            api = nodes.connect(inventory)
            found = planned.plan(api, inventory, able, listener, diff=diff, strict=False)
            objects, failed = found.objects, 1 if found.conflicts else 0
        except ClusterError as error:  # the hosts' plans are shown and counted
            listener.problem(error)
            failed = error.exit_code
    listener.summary(outcomes(members), cluster=objects)
    code = failed or exit_codes.worst(members)
    if waits and (objects or any(one.outcome and one.outcome.plan for one in members)):
        return exit_codes.DRIFT_AND_MORE if code else exit_codes.DRIFT
    return code
