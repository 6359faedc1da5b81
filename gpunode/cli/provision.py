"""`gpunode provision`: plan, ask, apply, reboot where needed, deploy the device plugin, verify."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import Session, accepted, exit_code, session
from gpunode.errors import ClusterError

if TYPE_CHECKING:
    from gpunode.cluster.api import Api
    from gpunode.converge import Visit
    from gpunode.model import Event, Outcome


def provision(
    inventory: options.InventoryPath = options.INVENTORY,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    yes: options.Yes = False,
    run: Annotated[bool, typer.Option("--run/--no-run", help="Run vectoradd on the GPUs at the end.")] = True,
    batch: Annotated[
        int | None, typer.Option(help="Finish this many hosts before the next begin.", min=1)
    ] = None,
    max_fail: Annotated[
        int,
        typer.Option(help="With --batch: begin no further batch when more hosts than this failed.", min=0),
    ] = 0,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """Make every host a verified GPU node: plan, ask, apply, deploy the device plugin, prove that it works.

    Example: gpunode provision inventory.yaml --limit p100 --yes
    """
    from gpunode.rollout import bring_up, nodes

    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as work:
        wanted = work.inventory.cluster.plugin is not None
        api = nodes.connect(work.inventory) if wanted else None  # before any host is touched
        outcomes = _hosts(work, api, yes=yes, batch=batch, max_fail=max_fail)
        code = exit_code(outcomes)
        good = any(outcome.status in ("right", "changed") for outcome in outcomes)
        if api is not None and good:
            try:
                members = bring_up.bring_up(api, work.inventory, work.hosts, outcomes, work.report, run=run)
                code = code if bring_up.succeeded(members) else 1
            except ClusterError as error:
                work.report.problem(error)
                code = error.exit_code
        work.report.summary(outcomes, cluster=0 if wanted else None)
    raise typer.Exit(code)


def _hosts(work: Session, api: Api | None, *, yes: bool, batch: int | None, max_fail: int) -> list[Outcome]:
    """Rounds of plan and apply over all hosts, until no plan is left or a host does not converge."""
    from gpunode import converge
    from gpunode.rollout import nodes, planned

    def look(visit: Visit, tell: Callable[[Event], None]) -> Outcome:
        return converge.follow(visit, converge.look(visit, tell), tell)

    outcomes = {outcome.host: outcome for outcome in work.each(look)}
    work.report.plans(list(outcomes.values()))
    objects = 0
    if api is None:
        work.report.note(nodes.WITHOUT_PLUGIN)
    else:
        hosts = [host for host in work.hosts if outcomes[host.name].status in ("right", "planned")]
        facts = {name: outcome.facts for name, outcome in outcomes.items() if outcome.facts}
        if hosts:
            objects = planned.plan(api, work.inventory, hosts, facts, work.report).objects
    for number in range(1, converge.ROUNDS + 1):
        waiting = [
            host
            for host in work.hosts
            if outcomes[host.name].plan and outcomes[host.name].status in ("planned", "changed")
        ]
        if number > 1 and waiting:
            work.report.note(f"Round {number}: what could be known only now.")
            work.report.plans([outcomes[host.name] for host in waiting])
        if waiting or objects:
            parts = [f"{len(waiting)} host{'s' if len(waiting) > 1 else ''}"] if waiting else []
            parts += ["the cluster"] if objects else []
            accepted(work.report, f"Apply to {' and '.join(parts)}?", yes=yes)
        objects = 0
        if not waiting:
            break
        before = dict(outcomes)  # what each host is at before this round
        for outcome in work.each(
            lambda visit, tell, before=before: converge.apply(visit, before[visit.host.name], tell),  # type: ignore[misc]
            waiting,
            batch=batch,
            max_fail=max_fail,
        ):
            outcomes[outcome.host] = outcome
        work.report.troubles([outcomes[host.name] for host in waiting])
    return [_converged(outcomes[host.name]) for host in work.hosts]


def _converged(outcome: Outcome) -> Outcome:
    """A host that still has a plan after all rounds is not right."""
    if outcome.plan and outcome.status in ("planned", "changed"):
        left = ", ".join(step.step for step in outcome.plan.steps if step.changes)
        return replace(
            outcome,
            status="failed",
            error=f"it does not converge: changes of {left} are wanted again after each was made",
            hint="`gpunode plan` shows them; something else on the host sets them back.",
        )
    return outcome
