"""Report every host's chain, link by link."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpunode.engine import converge, fleet, nodes, summary
from gpunode.engine.chains import Chain, chains
from gpunode.engine.member import Member
from gpunode.engine.session import Session
from gpunode.host import wire
from gpunode.links.runtime import link as runtime
from gpunode.model import Event, Host, OnEvent, Outcome, Verdict
from gpunode.wording import Advice, Command


def verify(session: Session, *, run: bool) -> int:
    """Judge and tell every link; the exit code. `run`: with pods."""
    listener, inventory = session.listener, session.inventory
    nodes.check_kubeconfig(inventory)
    members = session.for_each_host(converge.probe_and_plan, plans=False)
    found = chains(inventory, members, listener, run=run)
    if run:
        found = _with_containers(session, members, found)
    bad = set(summary.broken(found))
    for host, links in sorted(found.items(), key=lambda one: one[0] in bad):  # last: what is read first
        listener.links(host, links)
    for one in members:
        for restart in one.outcome.facts.unconfirmed if one.outcome and one.outcome.facts else ():
            listener.note(Advice(f"{one.host.name}: {restart}. `", Command("provision"), "` confirms it."))
    if inventory.cluster.plugin is None:
        listener.note(
            "The inventory names no `cluster.plugin`, so nothing in the cluster was checked. Add it to check the whole chain."
        )
    listener.total(summary.sentence(found), summary.numbers(found))
    broken = list(summary.broken(found))
    unreachable = [
        member.host.name for member in members if member.outcome and member.outcome.status == "unreachable"
    ]
    return 0 if not broken else 3 if broken == unreachable else 1


def _with_containers(
    session: Session, members: Sequence[Member], chains: Mapping[str, Chain]
) -> Mapping[str, Chain]:
    """The chains with the link `container` where no pod can run."""
    outcomes = {
        member.host.name: member.outcome
        for member in members
        if member.outcome and runtime.needs_container(chains[member.host.name])
    }
    plugin = session.inventory.cluster.plugin
    found: dict[str, Verdict] = {}

    def task(host: Host, on_event: OnEvent) -> Outcome:
        outcome = outcomes[host.name]
        on_event(Event("stage", host.name, "run a GPU container"))
        job = wire.container_job(runtime.runtime_of(outcome), plugin.reference if plugin else "")
        for message in session.visits[host.name].ask(job):
            if message["type"] == "container" and outcome.facts is not None:
                found[host.name] = runtime.judge_container(message, outcome.facts)
        return outcome

    for item in fleet.run(
        [host for host in session.hosts if host.name in outcomes], task, forks=session.forks
    ):
        if isinstance(item, Event):
            session.listener.event(item)
        elif item.host not in found:  # the connection was lost since
            found[item.host] = Verdict.unknown("container", f"not run: {item.why or 'no answer'}")
    return {
        host: runtime.insert_container(chain, found[host]) if host in found else chain
        for host, chain in chains.items()
    }
