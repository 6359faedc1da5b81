"""Takes the changes of a recorded run back, host by host: by their journals, in provision's batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpunode.commands.history import rfc3339
from gpunode.commands.provision import ProvisionOptions, provision
from gpunode.engine import converge
from gpunode.engine import undo as planning
from gpunode.engine.fleet import Planner, Visit
from gpunode.engine.history import find
from gpunode.engine.record import BEGUN
from gpunode.engine.reporter import Moment
from gpunode.engine.session import Session
from gpunode.errors import Refused


def undo(session: Session, run: str, options: ProvisionOptions) -> int:
    """Undo the run with this id on the session's hosts. Returns the exit code. Nothing is proven: what the run brought is gone."""
    recorded = find(run)
    hosts = recorded.hosts
    session.reporter.note(
        f"Undoes run {run}: began {Moment(rfc3339(recorded.began))}, by {recorded.by or 'an older gpunode'}, of {recorded.inventory}."
    )
    changed = {name for name, progress in hosts.items() if progress.made or progress.state in BEGUN}
    for name, visit in session.visits.items():
        visit.choose_planner = partial(_choose_planner, run, name in changed)
    return provision(session, replace(options, undo=run, run=False))


def _choose_planner(run: str, changed: bool, visit: Visit) -> Planner:
    """Read the host's journals, and extend what its probes read. Raises Refused where they have nothing of a run that `changed` it."""
    journal = converge.read_journal(visit, run)
    if changed and not any(entry.run == run for entry in journal):
        raise Refused(
            visit.host.name,
            f"its journal has nothing of run {run}: the host was forgotten or installed again since, or an older gpunode made the run",
            hint=f"`gpunode show {run} --diff` shows what was changed; take it back by hand.",
        )
    visit.watch = planning.watch(visit.watch, journal, run)
    return partial(planning.plan_host, visit.host, journal, run)
