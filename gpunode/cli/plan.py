"""`gpunode plan`: what would change and why."""

from __future__ import annotations

from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.session import exit_code, session

DRIFT, DRIFT_AND_MORE = (
    5,
    6,
)  # exit codes: all was checked and changes wait; changes wait where it could be checked


def plan(
    inventory: options.InventoryPath = options.INVENTORY,
    limit: options.Limit = None,
    exclude: options.Exclude = None,
    diff: Annotated[
        bool | None,
        typer.Option(
            "--diff/--no-diff",
            help="Show what changes inside files and cluster objects; --diff: new and removed objects whole, too.",
            show_default=False,
        ),
    ] = None,
    exit_with: Annotated[
        bool,
        typer.Option(
            "--exit-code",
            help="Exit with 5 when changes wait, on hosts or in the cluster; with 6 when, besides, not all could be checked.",
        ),
    ] = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    forks: options.Forks = options.FORKS,
    ask_sudo: options.AskSudo = False,
) -> None:
    """Show what provision would change on every host and in the cluster, and why. Changes nothing.

    Example: gpunode plan inventory.yaml --limit p100 --exit-code
    """
    from gpunode import converge
    from gpunode.errors import ClusterError
    from gpunode.rollout import nodes, planned

    with session(
        inventory, limit=limit, exclude=exclude, json=json, quiet=quiet, forks=forks, ask_sudo=ask_sudo
    ) as run:
        outcomes = run.each(converge.look)
        run.report.plans(outcomes, diff=diff is not False)
        objects: int | None = None  # of the cluster, if it was checked
        failed = 0
        if run.inventory.cluster.plugin is not None:
            hosts = [host for host, outcome in zip(run.hosts, outcomes, strict=True) if outcome.error is None]
            facts = {outcome.host: outcome.facts for outcome in outcomes if outcome.facts}
            try:
                api = nodes.connect(run.inventory)
                waiting = planned.plan(api, run.inventory, hosts, facts, run.report, diff=diff, strict=False)
                objects, failed = waiting.objects, 1 if waiting.conflicts else 0
            except ClusterError as error:  # the hosts' plans are told, and counted
                run.report.problem(error)
                failed = error.exit_code
        else:
            run.report.note(nodes.WITHOUT_PLUGIN)
        run.report.summary(outcomes, cluster=objects)
    code = failed or exit_code(outcomes)
    if exit_with and (objects or any(outcome.plan for outcome in outcomes)):
        code = DRIFT_AND_MORE if code else DRIFT
    raise typer.Exit(code)
