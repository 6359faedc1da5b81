"""Report every host's chain, link by link."""

from __future__ import annotations

from gpunode import converge
from gpunode.rollout import nodes
from gpunode.rollout.chains import chains
from gpunode.rollout.session import Session
from gpunode.verify import coverage
from gpunode.wording import Advice, Command


def verify(session: Session, *, run: bool) -> int:
    """Judge and tell every link; the exit code. `run`: with pods."""
    listener, inventory = session.listener, session.inventory
    nodes.usable(inventory)
    members = session.probed(converge.look)
    found = chains(inventory, members, listener, run=run)
    for host, links in found.items():
        listener.links(host, links)
    for one in members:
        for restart in one.outcome.facts.unconfirmed if one.outcome and one.outcome.facts else ():
            listener.note(Advice(f"{one.host.name}: {restart}. `", Command("provision"), "` confirms it."))
    if inventory.cluster.plugin is None:
        listener.note(
            "The inventory names no `cluster.plugin`, so nothing in the cluster was checked. Add it to check the whole chain."
        )
    listener.total(coverage.sentence(found), coverage.numbers(found))
    broken = list(coverage.broken(found))
    unreachable = [one.host.name for one in members if one.outcome and one.outcome.status == "unreachable"]
    return 0 if not broken else 3 if broken == unreachable else 1
