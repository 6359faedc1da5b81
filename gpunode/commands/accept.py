"""Accepts the free GPUs of hosts: measures them in pods, judges the figures, keeps the record."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress

from gpunode.acceptance.record import Acceptance
from gpunode.cluster import rights
from gpunode.engine import acceptance, nodes, proof
from gpunode.engine.reporter import progress
from gpunode.engine.session import Session
from gpunode.errors import ClusterError
from gpunode.wording import advise, few, several

NAMED = 5


def accept(session: Session, level: str, *, on_host: bool) -> int:
    """Accept the session's hosts; the exit code: 1 unless each has a GPU that was measured and none that failed. `on_host`: below
    Kubernetes, as where the inventory names no plugin."""
    if on_host or session.inventory.cluster.plugin is None:
        ended = acceptance.accept_on_hosts(session, level)
        if all(each.verdict == "failed" for each in ended.values()):
            _note_simulated(session)
    else:
        ended = _accept_nodes(session, level)
    return _summarize(session, ended, level)


def _note_simulated(session: Session) -> None:
    """Note that the hosts are a demo's, if they are: they have no driver that a program could use."""
    if session.inventory.cluster.plugin is None:
        return
    with suppress(ClusterError):
        if nodes.connect(session.inventory).simulated:
            session.reporter.note(
                advise(
                    "These hosts are simulated, without a driver: `gpunode accept` measures them in pods alone."
                )
            )


def _accept_nodes(session: Session, level: str) -> dict[str, Acceptance]:
    """Accept the hosts by pods, host -> acceptance; reports hosts that are no nodes."""
    reporter, inventory, notify = session.reporter, session.inventory, progress(session.reporter)
    api = nodes.connect(inventory)
    members = nodes.identify(api, session, notify)
    for member in members:
        proof.report_problem(reporter, member)
    namespace = inventory.cluster.namespace
    claims = rights.of_claims(namespace) if any(host.allocation == "dra" for host in session.hosts) else ()
    rights.demand(api, (*rights.of_proof(namespace), *rights.LABELS, *claims))
    ended = acceptance.accept(api, inventory, members, level, reporter, notify)
    if api.simulated:
        reporter.note("These hosts are simulated: all figures are invented.")
    return ended


def _summarize(session: Session, ended: Mapping[str, Acceptance], level: str) -> int:
    """Report the last line; the exit code."""
    counts = Counter(each.verdict for each in ended.values())
    good = counts["accepted"] + counts["partly"]
    hosts = len(session.hosts)
    text = f"{good} of {several(hosts, 'host')} accepted ({level})"
    failed = [host for host, each in ended.items() if each.verdict == "failed"]
    parts = [
        text,
        f"{counts['partly']} of them in part: GPUs are in use" if counts["partly"] else "",
        f"failed: {few(failed, NAMED)}" if failed else "",
        f"{several(counts['skipped'], 'host')} skipped: all GPUs are in use" if counts["skipped"] else "",
    ]
    numbers = {name: counts.get(name, 0) for name in ("accepted", "partly", "failed", "skipped")}
    session.reporter.total("; ".join(filter(None, parts)), {"hosts": hosts, **numbers})
    return 0 if good == hosts else 1
