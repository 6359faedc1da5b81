"""`gpunode history`, `show`, `pause` and `undo`: the recorded runs of this operator."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from gpunode.cli import options
from gpunode.cli.options import visits_hosts
from gpunode.cli.session import load_inventory, load_inventory_of_runs, session
from gpunode.local import files


def complete_runs(incomplete: str) -> list[str]:
    """Ids of recorded runs, and `last`."""
    from gpunode.engine import record

    paths = files.runs_folder(options.usual()).glob("*.jsonl")
    names = [record.LAST, *sorted(path.stem for path in paths)]
    return [name for name in names if name.startswith(incomplete)]


RecordedRun = Annotated[
    str,
    typer.Argument(
        help="The run's id, a prefix of it, or `last`.",
        metavar="RUN",
        autocompletion=complete_runs,
        show_default=False,
    ),
]


def history(
    count: Annotated[
        int, typer.Option("--count", "-n", help="Number of runs to list.", min=1, metavar="N")
    ] = 20,
    json: options.Json = False,
) -> None:
    """List this machine's recorded runs of `provision`, `resume`, `undo` and `forget`, newest first: command, time, duration, inventory,
    results.

    Example: gpunode history --count 50
    """
    from gpunode import report
    from gpunode.commands.history import list_runs

    folder = files.runs_folder(options.usual())
    raise typer.Exit(list_runs(report.make(json=json, quiet=False), folder, count))


def show(
    invocation: typer.Context,
    run: Annotated[
        str,
        typer.Argument(
            help="The run's id, a prefix of it, or `last`; or a file of `plan --out`.",
            metavar="RUN|FILE",
            autocompletion=complete_runs,
            show_default=False,
        ),
    ],
    inventory: options.InventoryPath = options.INVENTORY,
    diff: Annotated[
        bool | None,
        typer.Option(
            "--diff/--no-diff",
            help="--diff: show the diffs of files and cluster objects. --no-diff: omit them, also from --json.",
            show_default=False,
        ),
    ] = None,
    json: options.Json = False,
) -> None:
    """Show a recorded run: operator, question and answer, each host's result, its changes with reasons and whether they were
    made, and times by phase. Or show the plan in a file of `plan --out`.

    Connects to nothing. Records and plans have no secrets. `last` is the last run of the inventory, also a `forget`;
    in a folder without one, of all.

    Example: gpunode show last --diff
    """
    from gpunode import report
    from gpunode.commands.history import show_plan, show_run
    from gpunode.engine import plan_file
    from gpunode.errors import UsageError

    named = options.origin(invocation) != options.DEFAULT or inventory.exists()
    reporter = report.make(json=json, quiet=False)
    if plan := plan_file.read(Path(run)):
        raise typer.Exit(show_plan(reporter, Path(run), plan, diff=diff))
    if "." in run or "/" in run:  # as no run's id
        what = "a file of another kind, no plan" if Path(run).exists() else "no such file"
        hint = "`gpunode plan --out FILE` writes a plan; `gpunode history` lists recorded runs."
        raise UsageError(f"{run}: {what}", hint=hint)
    raise typer.Exit(
        show_run(reporter, run, inventory, of_all=not named, diff=json if diff is None else diff)
    )


def pause(
    invocation: typer.Context,
    inventory: options.InventoryPath = options.INVENTORY,
    cancel: Annotated[bool, typer.Option("--cancel", help="Let a pausing run continue.")] = False,
    json: options.Json = False,
) -> None:
    """End the run of this inventory after its batch: hosts already started are finished, no other is started. The run ends with
    exit code 8 if hosts are left; `gpunode resume` continues it. A `forget` continues with the same command.

    Works for a run of this user on this machine, from any terminal, until the run has ended.

    Example: gpunode pause inventory.yaml
    """
    from gpunode import report
    from gpunode.commands.pause import pause as pause_run

    if not files.exists(inventory):
        load_inventory_of_runs("pause", inventory, options.origin(invocation))
    reporter = report.make(json=json, quiet=False)
    named = report.Named(reporter, inventory) if inventory != options.usual() else reporter
    raise typer.Exit(pause_run(named, inventory, cancel=cancel))


@visits_hosts
def undo(
    *,
    run: RecordedRun,
    yes: options.Yes = False,
    batch: options.Batch = None,
    common: options.Common,
) -> int:
    """Undo a recorded run's changes on its hosts: plan, ask, apply, batch by batch, protecting work as provision does.

    Plans from each host's journal, and for the cluster from the run's record. Keeps later changes. Before the question it
    names them, and the changes that cannot be undone. An undo is itself a run: you can resume, show and undo it.

    `last` is the inventory's newest run that changed something and that an undo can still restore. Finish an unfinished undo
    first. With a run's id you need no inventory: the run's own is used unless you name another.

    Example: gpunode undo last --limit gpu-01
    """
    from gpunode.commands import undo as undoing
    from gpunode.engine import history, record
    from gpunode.engine.batch_order import Size
    from gpunode.errors import UsageError
    from gpunode.wording import few

    folder = files.runs_folder(common.inventory)
    passed: dict[str, str] = {}
    if run.lower() == record.LAST:
        recorded, passed = history.find_undoable(common.inventory)
    else:
        recorded = history.find(run, folder)
    later = few([f"{name} ({why})" for name, why in passed.items()], 1)
    note = f" Skips {later}." if later else ""
    if common.origin == options.DEFAULT and str(common.inventory.absolute()) != recorded.inventory:
        common = dataclasses.replace(common, inventory=Path(recorded.inventory))
    known = {host.name for host in load_inventory(common.inventory, common.origin).hosts}
    hosts = [name for name in recorded.hosts if name in known]
    if not hosts:
        raise UsageError(
            f"{common.inventory} has none of the hosts of run {recorded.id}", hint="Name its inventory."
        )
    size = Size.parse(batch) if batch is not None else None
    limit = common.limit or hosts
    with session(dataclasses.replace(common, limit=limit), accepted=yes) as work:
        names = [host.name for host in work.hosts]
        if not recorded.hosts.keys() & {*names}:
            hint = f"It has: {few(hosts, 5)}."
            if did := history.find_change(common.inventory, names):
                hint = f"The last run that did: `gpunode undo {did} --limit {','.join(names)}`."
            raise UsageError(f"run {recorded.id} did not touch {few(names, 5)}", hint=hint)
        return undoing.undo(work, recorded, undoing.UndoOptions(yes, size, note=note))
