"""Recorded runs of this operator: a list, or one with its plan, its answers, its ends and its times. Connects to nothing."""

import shlex
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict
from datetime import datetime, timezone
from pathlib import Path

from gpunode.acceptance.stamp import describe_age
from gpunode.engine import history, record
from gpunode.engine.phases import PHASES
from gpunode.engine.plan_file import PlanFile, write_options
from gpunode.engine.record import BEGUN, CLUSTER, RecordedRun
from gpunode.engine.reporter import Counts, Duration, ForPrograms, Headline, Moment, Names, Reporter, Silent
from gpunode.engine.shown import ShownPlan
from gpunode.errors import GpunodeError
from gpunode.local import files
from gpunode.wording import several

COLUMNS = ("run", "command", "resumes", "undoes", "began", "took", "by", "inventory", "hosts", "result", "ended", "version", "question", "answer")  # fmt: skip
SHORT = 15  # characters of an inventory's path in the list
GATE = ("gate", "hosts", "status", "seconds", "output")
RECORDED = ("host", "state", "why", "seconds", "changes")
REVIEWED = ("host", "why", "disturbed", "disturbs", "changes")


def list_runs(reporter: Reporter, folder: Path, count: int) -> int:
    """Report the newest runs of this folder, the newest first; the exit code. Records that cannot be read are problems, and no run."""
    seen = list(history.newest(count + 1, folder))
    runs = [run for run in seen[:count] if isinstance(run, RecordedRun)]
    reporter.rows("run", COLUMNS, [_row(run, whole=False) for run in runs])
    for error in seen[:count]:
        if isinstance(error, GpunodeError):
            reporter.problem(error.problem)
    more = f"; there are earlier ones: --count {2 * count}" if len(seen) > count else ""
    text = f"{several(len(runs), 'run')}{more}" if seen else "No run is recorded on this machine"
    reporter.total(f"{text}. Records are in {folder}.", {"runs": len(runs)})
    return 0


def show_run(reporter: Reporter, name: str, inventory: Path, *, of_all: bool, diff: bool) -> int:
    """Report the run that `name` means, as of `history.find`; LAST: of this inventory, or `of_all`. Itself, its gates, its hosts
    with their changes, and where its time went; the exit code."""
    last = name.lower() == record.LAST and not of_all
    run = (
        history.find_last(inventory, every=True) if last else history.find(name, files.runs_folder(inventory))
    )
    reporter.rows("run", COLUMNS, [_row(run, whole=True)])
    gates = [
        (gate["gate"], Names(gate.get("hosts", ())), *(gate.get(key) for key in GATE[2:]))
        for gate in run.gates
    ]
    reporter.rows("gate", GATE, gates)
    reporter.rows("recorded", RECORDED, list(_hosts(run, diff=diff)))
    reporter.rows("phase", ("phase", "seconds", "hosts", "slowest", "most"), list(_phases(run)))
    hosts = {name: progress.spent for name, progress in run.hosts.items() if progress.spent}
    times = [(host, round(sum(spent.values()), 3), spent) for host, spent in hosts.items()]
    reporter.rows("time", ("host", "seconds", "phases"), times)
    if not run.version:
        reporter.note("An older gpunode wrote this record: it has no plan and no answer.")
    reporter.total("", {"hosts": len(run.hosts)})
    return 0


def show_plan(reporter: Reporter, path: Path, plan: PlanFile, *, diff: bool | None) -> int:
    """Report a plan that `plan --out` wrote to this path; the exit code."""
    rows = [
        (host.name, host.problem, host.disturbed, host.disturbs, ShownPlan(host, diff=diff))
        for host in plan.hosts
    ]
    reporter.rows("reviewed", REVIEWED, rows)
    if plan.context:
        reporter.cluster(plan.context, plan.cluster, diff=diff)
    if plan.costs:
        reporter.note(Headline(plan.costs))
    sums = f"{sum(bool(host.changes) for host in plan.hosts)} to change"
    bad = sum(bool(host.problem) for host in plan.hosts)
    sums += f", {bad} without a plan" if bad else ""
    sums += f"; {several(len(plan.cluster), 'change')} to make in the cluster" if plan.cluster else ""
    options = f" with {words}" if (words := write_options(plan.options)) else ""
    made = f"{plan.by} made this plan of {plan.inventory} at {plan.made}{options}."
    apply = f"`gpunode provision {shlex.quote(str(path))}` applies it."
    apply += "" if diff else " --diff shows all reasons and diffs."
    facts = {name: getattr(plan, name) for name in ("inventory", "sha256", "version", "made", "by")}
    reporter.total(
        f"{several(len(plan.hosts), 'host')}: {sums}. {made} {apply}", {"hosts": len(plan.hosts), **facts}
    )
    return 0


def _row(run: RecordedRun, *, whole: bool) -> tuple[object, ...]:
    """The cells of COLUMNS. `whole`: people see all of them, else those for which a narrow terminal has room."""
    text, number = (str, int) if whole else (ForPrograms, Silent)
    end = time.time() if history.is_running(run) else run.last
    known = run.options
    return (
        run.id,
        run.command,
        text(known.resumes or ""),
        text(known.undo or ""),
        (Moment if whole else Ago)(rfc3339(run.began)),
        Duration(round(max(0.0, end - run.began), 3)),
        text(run.by),
        run.inventory if whole else ShortPath(run.inventory),
        number(len(run.hosts)),
        _result(run),
        ForPrograms(rfc3339(run.last) if run.ended else ""),
        text(run.version),
        text(run.asked),
        text(run.answered),
    )


class Ago(Moment):
    """For people `2 h ago`, which takes less room."""

    __slots__ = ()

    def __str__(self) -> str:
        text = str.__str__(self)
        return text and describe_age(time.time() - datetime.fromisoformat(text).timestamp())


class ShortPath(str):
    """For people as seen from this folder, of a longer one the end."""

    __slots__ = ()

    def __str__(self) -> str:
        path = str.__str__(self).removeprefix(f"{Path.cwd()}/")
        return path if len(path) <= SHORT else f"…{path[1 - SHORT :]}"


class UnderWay(Counts):
    __slots__ = ()

    def __str__(self) -> str:
        return f"{Counts.__str__(self)}; under way"


class CutOff(Counts):
    __slots__ = ()

    def __str__(self) -> str:
        return f"{Counts.__str__(self)}; it was cut off"


def _result(run: RecordedRun) -> Counts:
    """State -> number of hosts."""
    kind = Counts if run.ended else UnderWay if history.is_running(run) else CutOff
    return kind(Counter[str](progress.state for progress in run.hosts.values()))


def rfc3339(seconds: float) -> str:
    """The time of a record, in UTC; empty where no clock can have it."""
    try:
        return datetime.fromtimestamp(seconds, timezone.utc).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):
        return ""


def _hosts(run: RecordedRun, *, diff: bool) -> Iterator[tuple[object, ...]]:
    """A row of RECORDED for the cluster, where something was to change there, and for each host."""
    if CLUSTER in run.planned:
        yield None, None, "", None, _changes(run, CLUSTER, diff=diff)
    for host, progress in run.hosts.items():
        seconds = round(sum(progress.spent.values()), 3) if progress.spent else None
        yield host, progress.state, progress.why, seconds, _changes(run, host, diff=diff)


def _changes(run: RecordedRun, host: str, *, diff: bool) -> list[dict[str, object]]:
    """The changes of a host, or of CLUSTER, in order. `made` None: it is not known."""
    progress = run.hosts.get(host)
    known = progress is not None and progress.state not in (*BEGUN, "unreachable")
    changes = []
    for number in run.planned.get(host, ()):
        change = asdict(run.changes[number])
        lines, of, _ = change.pop("diff"), change.pop("of"), change.pop("title")
        made = True if progress and number in progress.made else False if known else None
        owners = [run.hosts[of]] if of in run.hosts else run.hosts.values()
        if host == CLUSTER and not any(owner.started for owner in owners):
            made = False
        changes.append({**change, "made": made, **({"diff": lines} if diff else {})})
    return changes


def _phases(run: RecordedRun) -> Iterator[tuple[object, ...]]:
    """A row for each phase that took time: its seconds of all hosts, how many these are, and the one where it took longest."""
    for phase in PHASES:
        spent = {
            host: progress.spent[phase] for host, progress in run.hosts.items() if phase in progress.spent
        }
        if spent:
            slowest = max(spent, key=spent.__getitem__)
            most = Duration(round(spent[slowest], 3))
            yield phase, Duration(round(sum(spent.values()), 3)), len(spent), slowest, most
