"""What waits on hosts and in the cluster, shown and not applied."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode.cluster.api import Api
from gpunode.engine import (
    cluster_diff,
    control_plane,
    converge,
    exit_codes,
    gate,
    impact,
    nodes,
    prerequisites,
    rounds,
)
from gpunode.engine.choices import reasons
from gpunode.engine.member import Members, outcomes
from gpunode.engine.session import Session
from gpunode.errors import ClusterError


def drift(session: Session, *, diff: bool | None, waits: bool, why: bool = False) -> int:
    """Show it; the exit code. `diff`: as in `cluster_diff.show`. `waits`: changes that wait have exit codes of their own.
    `why`: with the choices that each plan rests on."""
    listener, inventory = session.listener, session.inventory
    nodes.check_kubeconfig(inventory)
    members = prerequisites.add_repositories(session, session.for_each_host(converge.probe_and_plan), None)
    api: Api | None = None
    found: Members = ()
    wrong: ClusterError | None = None
    try:
        api = nodes.connect(inventory) if inventory.cluster.plugin else None
        found = impact.locate(api, members)
    except ClusterError as error:  # the hosts' plans are shown and counted
        wrong = error
    namespace = inventory.cluster.namespace
    members = control_plane.refuse_unnamed(
        inventory, impact.find_impact(api, namespace, members, found, strict=False)
    )
    listener.plans(outcomes(members), diff=diff is not False)
    if why:
        listener.rows("why", ("host", "code", "chosen", "why"), list(_choices(members)))
    objects: int | None = None  # of the cluster, if it was checked
    conflicts = False
    if inventory.cluster.plugin is None:
        listener.note(nodes.WITHOUT_PLUGIN)
    elif api is not None and wrong is None:
        try:
            order = rounds.order_batches(members)
            shown = cluster_diff.plan(api, inventory, found, listener, diff=diff, strict=False, order=order)
            objects, conflicts = shown.objects, bool(shown.conflicts or shown.obstructed)
        except ClusterError as error:
            wrong = error
    if wrong is not None:
        listener.problem(wrong.problem)
    gate.show(inventory, listener)
    listener.summary(outcomes(members), cluster=objects)
    code = wrong.exit_code if wrong else 1 if conflicts else exit_codes.worst(members)
    if waits and (objects or any(member.outcome and member.outcome.plan for member in members)):
        return exit_codes.DRIFT_AND_MORE if code else exit_codes.DRIFT
    return code


def _choices(members: Members) -> Iterator[tuple[str, ...]]:
    for member in members:
        if member.outcome and member.outcome.facts:
            for choice in reasons(member.host, member.outcome.facts, member.outcome.desired):
                yield member.host.name, choice.code, choice.chosen, choice.why
