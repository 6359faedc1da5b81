"""Ends a run on this machine before its next batch, from another terminal. Connects to nothing."""

import shlex
from pathlib import Path

from gpunode.engine import history, record
from gpunode.engine.record import RecordedRun
from gpunode.engine.reporter import Reporter
from gpunode.errors import GpunodeError, UsageError
from gpunode.inventory.starter import ranges
from gpunode.local import files
from gpunode.wording import Advice, Command, few

NAMED = 8  # hosts of a batch
BEGIN = "A run can be paused once its plan is accepted."


def pause(reporter: Reporter, inventory: Path, *, cancel: bool) -> int:
    """Pause this inventory's run, or `cancel` its pause; the exit code. Raises UsageError where none is under way."""
    run = _run_under_way(inventory)
    if run is None:
        raise UsageError(
            f"no run of {inventory} is under way on this machine",
            hint=_where(history.last_run(inventory), files.runs_folder(inventory)),
        )
    reporter.note(set_pause(run, on=not cancel))
    return 0


def _run_under_way(inventory: Path) -> RecordedRun | None:
    """This inventory's run of any command, while its process lives; a forget that has ended hides no other one."""
    last = (history.last_run(inventory, every=every) for every in (True, False))
    return next((run for run in last if run and history.is_running(run)), None)


def _where(last: RecordedRun | None, folder: Path) -> str:
    """What there is in its place: runs of other inventories, else the last run."""
    runs = [run for run in history.newest(record.RECENT, folder) if isinstance(run, RecordedRun)]
    running = [run for run in runs if history.is_running(run)]
    if running:
        named = [shlex.quote(run.inventory) for run in running]
        return "\n".join(f"A run of another inventory is: `gpunode pause {name}`." for name in named)
    if last and last.not_done:
        return f"Its last run has ended: `gpunode resume {shlex.quote(last.inventory)}` continues it. {BEGIN}"
    return f"{BEGIN} `gpunode history` lists the runs. Pause a run as the user that began it, on the same machine."


def set_pause(run: RecordedRun, *, on: bool) -> str:
    """Ask the run to begin no further batch, or let it begin them again; the sentence for the user."""
    file = record.pause_file(run.folder, run.id)
    try:
        if not on:
            file.unlink(missing_ok=True)
            return "The run continues."
        file.touch(mode=0o600)
    except OSError as error:
        raise GpunodeError(f"{file}: {error.strerror}") from error
    if run.batch and run.batch.batch == run.batch.of:
        return f"Batch {run.batch.batch} of {run.batch.of} is the last: the run ends after it."
    now = f"batch {run.batch.batch} of {run.batch.of}" if run.batch else "this batch"
    if under_way := run.in_state(*record.BEGUN):
        now += f" (under way: {few(ranges(under_way), NAMED)})"
    if run.options.command:  # `resume` takes up no forget
        return f"The run ends after {now}; the same command continues it."
    return Advice(f"The run ends after {now}; `", Command("resume"), "` continues it.")


def toggle_pause(inventory: Path | None) -> str:
    """Pause this inventory's run, or end its pause; the sentence for the user of a screen."""
    try:
        run = _run_under_way(inventory) if inventory else None
        if run is None:
            return "No run is under way."
        return str(set_pause(run, on=not record.pause_file(run.folder, run.id).exists()))
    except GpunodeError as error:
        return error.message
