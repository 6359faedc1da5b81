"""Takes the changes of a recorded run back, host by host: by their journals, in provision's batches."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from gpunode.commands.provision import ProvisionOptions, provision
from gpunode.engine import converge
from gpunode.engine import undo as planning
from gpunode.engine.fleet import Planner, Visit
from gpunode.engine.session import Session


def undo(session: Session, run: str, options: ProvisionOptions) -> int:
    """Undo the run with this id on the session's hosts. Returns the exit code. Nothing is proven: what the run brought is gone."""
    for visit in session.visits.values():
        visit.choose_planner = partial(_choose_planner, run)
    return provision(session, replace(options, undo=run, run=False))


def _choose_planner(run: str, visit: Visit) -> Planner:
    """Read the host's journals, and extend what its probes read."""
    journal = converge.read_journal(visit, run)
    visit.watch = planning.watch(visit.watch, journal, run)
    return partial(planning.plan_host, visit.host, journal, run)
