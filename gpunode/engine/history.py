"""The records of earlier runs: reading and finding them, and what they tell a new run. The files and their lines are record's."""

import fcntl
import json
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, get_args

from gpunode.engine.record import (
    BAD,
    BEGUN,
    DONE,
    FINISHED,
    FORGOTTEN,
    FORMAT,
    LAST,
    RECENT,
    RIGHT,
    SIZE,
    Head,
    Progress,
    RecordedBatch,
    RecordedChange,
    RecordedMarks,
    RecordedObject,
    RecordedRun,
    State,
)
from gpunode.errors import GpunodeError, UnexpectedAnswer, UsageError
from gpunode.host import answers
from gpunode.local.files import runs_folder
from gpunode.model import Title
from gpunode.wording import Advice, Command, about, advise, few, moment, several


def is_running(run: RecordedRun) -> bool:
    """True if a process on this machine still works on the run: it holds a lock on the record."""
    path = run.folder / f"{run.id}.jsonl"
    if run.ended:
        return False
    with suppress(OSError), path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def read(path: Path) -> RecordedRun:
    """A record. A last line that was cut off does not count. Raises GpunodeError for a newer format, or no record."""
    try:
        return _parse(path, list(_lines(path)))
    except (UnexpectedAnswer, TypeError, ValueError, LookupError, AttributeError, OverflowError) as error:
        raise GpunodeError(
            f"{path}: not the record of a run ({error})",
            hint="Move the file away and begin a new run with `gpunode provision`.",
        ) from None


def _parse(path: Path, lines: Sequence[Mapping[str, Any]]) -> RecordedRun:
    head: Mapping[str, Any] = lines[0] if lines else {}
    written = head.get("format")
    if isinstance(written, int) and written > FORMAT:
        raise GpunodeError(
            f"{path}: a record of format {written}; this gpunode reads up to {FORMAT}",
            hint="Continue with the gpunode that started the run, or start a new run.",
        )
    if written is None or not isinstance(head.get("hosts"), list):
        raise GpunodeError(f"{path}: not the record of a run", hint="Begin a new run.")
    first: Head = answers.read(Head, head, "line 1")
    if first.options.batch and not SIZE.fullmatch(first.options.batch):
        raise ValueError(f"{first.options.batch!r:.60} is no size, in line 1.options.batch")
    began = _time(first.began)
    hosts = {name: Progress("waiting", began) for name in first.hosts}
    ended, last = False, began
    batch: RecordedBatch | None = None
    changes: dict[int, RecordedChange] = {}
    planned: dict[str, tuple[int, ...]] = {}
    marks: list[RecordedMarks] = []
    objects: list[RecordedObject] = []
    for place, line in enumerate(lines[1:], 2):
        if "change" in line:
            change: RecordedChange = answers.read(RecordedChange, line, f"line {place}")
            changes[int(line["change"])] = _titled(change)
        if "planned" in line:
            numbers = tuple(number for number in line["planned"] if number in changes)
            planned.update({str(host): planned.get(host, ()) + numbers for host in line["hosts"]})
        if "marks" in line:
            marks.append(answers.read(RecordedMarks, line["marks"], f"line {place}"))
        if "object" in line:
            objects.append(answers.read(RecordedObject, line["object"], f"line {place}"))
        if "batch" in line:
            batch = answers.read(RecordedBatch, line, f"line {place}")
        if line.get("state") in get_args(State) and line.get("host") in hosts:
            hosts[line["host"]] = Progress(
                line["state"],
                _time(line.get("time", 0)),
                str(line.get("why", "")),
                tuple(map(str, line.get("gpus", ()))),
                {str(phase): _time(seconds) for phase, seconds in line.get("spent", {}).items()},
                tuple(number for number in line.get("made", ()) if number in changes),
            )
        ended = ended or "ended" in line
        last = _time(line.get("ended", line.get("time", last)))
    return RecordedRun(
        path.stem,
        first.inventory,
        began,
        first.options,
        hosts,
        ended,
        last,
        first.by,
        first.version,
        first.asked,
        first.answered,
        changes,
        planned,
        tuple(line for line in lines if "gate" in line),
        batch,
        tuple(marks),
        tuple(objects),
        path.parent,
    )


def _titled(change: RecordedChange) -> RecordedChange:
    """The change with its title, which an older gpunode has written as text alone."""
    if change.step != "cluster" or change.title is not None:
        return change
    kind, place, *part = change.what.removeprefix(f"{change.kind} ").split(" ", 2)
    namespace, _, name = place.rpartition("/")
    return replace(change, title=Title(kind, name, namespace, " ".join(part)))


def _time(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no time")
    return float(value)


def newest(count: int | None, folder: Path) -> Iterator[RecordedRun | GpunodeError]:
    """The newest runs (None: all) with a record in the folder, the newest first; of a record that cannot be read, why."""
    paths = sorted(folder.glob("*.jsonl"), reverse=True)
    for path in paths[:count]:
        try:
            yield read(path)
        except GpunodeError as error:
            yield error


def find(run: str, folder: Path) -> RecordedRun:
    """The run with this id, a beginning that only its id has, or LAST. Raises UsageError where none or several are meant, and
    GpunodeError where its record cannot be read."""
    paths = sorted(folder.glob("*.jsonl"))
    named = (
        paths[-1:] if run.lower() == LAST else [path for path in paths if run and path.stem.startswith(run)]
    )
    named = [path for path in named if path.stem == run] or named
    if not named:
        what = "no run is recorded on this machine" if run.lower() == LAST else f"no recorded run is {run}"
        raise UsageError(what, hint=f"Records are in {folder}; `gpunode history` lists them.")
    if len(named) > 1:
        raise UsageError(
            f"{run} may be {few([path.stem for path in named], 3)}", hint="Write more of the id."
        )
    return read(named[0])


def last_run(inventory: Path, *, every: bool = False) -> RecordedRun | None:
    """The newest run of this inventory, with `every` of any command; None if there is none. Raises GpunodeError where its record is damaged."""
    return next(_newest_first(inventory, strict=True, every=every), None)


def find_undoable(inventory: Path) -> tuple[RecordedRun, dict[str, str]]:
    """The newest run of this inventory that changed something, and why each later run is passed over: a `forget`, a run that changed
    nothing, or one of which such an undo had all hosts (only then it has the cluster's objects, too). If there is no such run, the
    newest. Raises as `find_last`, and UsageError for an undo that no later one finished."""
    passed: list[RecordedRun] = []
    undone = set[tuple[str, str]]()  # runs and hosts whose undo a later one finished
    why: dict[str, str] = {}
    for run in _newest_first(inventory, strict=True, every=True):
        if run.options.command:
            why[run.id] = "a `forget`"
        elif (of := run.options.undo) and {(of, host) for host in run.not_done} - undone:
            raise UsageError(
                f"run {run.id} is an undo that has not finished",
                hint=advise(f"`gpunode undo {of}` continues it; `gpunode undo {run.id}` takes it back."),
            )
        elif not run.changed:
            why[run.id] = "changed nothing"
        elif any(undo.options.undo == run.id and undo.hosts.keys() >= run.hosts.keys() for undo in passed):
            why[run.id] = "nothing of it can be undone"
        else:
            return run, why
        passed.append(run)
        if of := run.options.undo:
            undone |= {(of, host) for host in run.hosts.keys() - {*run.not_done}}
    return find_last(inventory), {}


def find_last(inventory: Path, *, of: str = "", every: bool = False) -> RecordedRun:
    """The newest run of this inventory, as of `last_run`. Raises UsageError about `of` where there is none, and GpunodeError as `last_run`."""
    if run := last_run(inventory, every=every):
        return run
    raise UsageError(
        about(of, f"no run of {inventory} is recorded on this machine"),
        hint=advise(
            f"Records are in {runs_folder(inventory)}. `gpunode history` lists the runs of all inventories, "
            "`gpunode provision` begins one."
        ),
    )


def known_gpus(inventory: Path, hosts: Collection[str]) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The last run that proved each host, and the PCI addresses of the GPUs that it had; hosts without such a run are left out."""
    known: dict[str, tuple[str, tuple[str, ...]]] = {}
    for run in _newest_first(inventory, every=True):
        if known.keys() >= set(hosts):
            break
        for name in hosts:
            if name in run.hosts and (run.hosts[name].gpus or run.hosts[name].state == FORGOTTEN):
                known.setdefault(name, (run.id, run.hosts[name].gpus))
    return {name: entry for name, entry in known.items() if entry[1]}


def find_taken_back(inventory: Path, hosts: Collection[str], changed: Collection[str] = ()) -> dict[str, str]:
    """Host → when it was forgotten, or when its runs were undone: `undone 2026-11-27 14:03 CET`. Hosts on which a run's changes are left are not in it.
    `changed`: those whose journal has entries, so that a run of another inventory came after each `forget`."""
    back: dict[str, str] = {}
    reverted, settled = set[tuple[str, str]](), set[str]()
    for run in _newest_first(inventory, every=True):
        for name in run.hosts.keys() & {*hosts} - settled:
            progress = run.hosts[name]
            if (name, run.id) in reverted:
                continue
            if progress.state == FORGOTTEN and name in changed:
                settled.add(name)
                continue
            if progress.state in ("undone", FORGOTTEN):
                back.setdefault(name, f"{progress.state} {moment(progress.since)}")
                reverted.add((name, run.options.undo or ""))
            elif progress.made or progress.state in {*BEGUN, *RIGHT}:
                back.pop(name, None)
                settled.add(name)
            if progress.state == FORGOTTEN:
                settled.add(name)
        if settled >= {*hosts}:
            break
    return {name: back[name] for name in hosts if name in back}


def note_taken_back(host: str, when: str) -> str:
    """The sentence for a host that `find_taken_back` has."""
    return advise(f"{host}: not provisioned ({when}). `gpunode provision --limit {host}` sets it up.")


def recent(inventory: Path, count: int, *, hosts: Collection[str] | None = None) -> list[Path]:
    """The files of the last runs of this inventory that had one of these hosts (None: of all), the newest first."""
    runs = (
        run for run in _newest_first(inventory, every=True) if hosts is None or run.hosts.keys() & {*hosts}
    )
    return [runs_folder(inventory) / f"{run.id}.jsonl" for run in islice(runs, count)]


def find_change(inventory: Path, hosts: Collection[str]) -> str | None:
    """The id of the newest run of this inventory that changed one of these hosts, and is no `forget` or undo itself."""
    return next(
        (
            run.id
            for run in _newest_first(inventory)
            if not run.options.undo and any(run.hosts[name].made for name in run.hosts.keys() & {*hosts})
        ),
        None,
    )


def mean_seconds(inventory: Path) -> dict[str, float]:
    """Mean seconds of a host by phase, over the last runs of this inventory; without phases that none of their hosts had."""
    spent = [
        progress.spent
        for run in islice(_newest_first(inventory), RECENT)
        for progress in run.hosts.values()
        if progress.state in DONE
    ]
    seconds: dict[str, list[float]] = {}
    for host in spent:
        for phase, value in host.items():
            seconds.setdefault(phase, []).append(value)
    return {phase: sum(values) / len(values) for phase, values in seconds.items()}


def find_current(inventory: Path) -> RecordedRun | None:
    """The newest run of this inventory, if it is under way or was cut off while it changed a host; not a `forget` that was cut off."""
    run = next(_newest_first(inventory, every=True), None)
    if run and (is_running(run) or (run.in_state(*BEGUN) and not run.options.command)):
        return run
    return None


def note_current(run: RecordedRun) -> str:
    """How far `find_current` is."""
    batch = f"batch {run.batch.batch} of {run.batch.of}, " if run.batch else ""
    done = f"{batch}{len(run.in_state(*FINISHED))} of {several(len(run.hosts), 'host')} done."
    if is_running(run):
        return f"Run {run.id} is under way: {done}"
    return advise(f"Run {run.id} was cut off: {done} `gpunode resume` continues it.")


def find_unfinished(inventory: Path) -> tuple[str, ...]:
    """Hosts that a run before the last one did not finish and no later run includes or forgot; not those of an undo, which `provision`
    would set up again."""
    left, later, before = list[str](), set[str](), False
    for run in _newest_first(inventory, every=True):
        if run.options.command:
            later.update(run.in_state(FORGOTTEN))
            continue
        if before and not run.options.undo:
            left += [host for host in run.not_done if host not in later]
        later.update(run.hosts)
        before = True
    return tuple(left)


def note_unfinished(inventory: Path) -> Advice | str:
    """Advice on the hosts that runs before the last one left; "" if there are none."""
    left = find_unfinished(inventory)
    if not left:
        return ""
    limit = f"--limit {','.join(left)}"
    return Advice(
        f"Earlier runs left {few(left, 3)} unfinished: `",
        Command("provision", limit),
        f"` continues with {'it' if len(left) == 1 else 'them'}.",
    )


def _newest_first(inventory: Path, *, strict: bool = False, every: bool = False) -> Iterator[RecordedRun]:
    """`strict`: raises GpunodeError for an unreadable record of this inventory; else it is skipped. `every`: runs of other commands
    than `provision`, too."""
    for path in sorted(runs_folder(inventory).glob("*.jsonl"), reverse=True):
        try:
            run = read(path)
        except GpunodeError:
            if strict and _is_of(path, inventory):
                raise
            continue
        if run.inventory == str(inventory.resolve()) and (every or run.options.command is None):
            yield run


def _is_of(path: Path, inventory: Path) -> bool:
    """True if an unreadable record names this inventory."""
    try:
        return next(_lines(path), {}).get("inventory") == str(inventory.resolve())
    except GpunodeError:
        return False


def expand_limit(limit: Sequence[str], inventory: Path, known: Collection[str]) -> list[str]:
    """`limit` with the hosts of the inventory's last run in the place of `@failed` and `@not-done`, as far as they are `known` still.

    Raises UsageError where no run is recorded, the word is another, or the run has no such host.
    """
    selected: list[str] = []
    for part in (part for entry in limit for part in entry.split(",")):
        if not part.startswith("@"):
            selected.append(part)
            continue
        if (choice := part.lower()) not in ("@failed", "@not-done"):
            raise UsageError(
                f"--limit {part}: no such choice", hint="Write `--limit @failed` or `--limit @not-done`."
            )
        run = find_last(inventory, of=f"--limit {part}")
        named = run.in_state(*BAD) if choice == "@failed" else run.not_done
        hosts = [name for name in named if name in known]
        if not hosts:
            raise UsageError(
                f"--limit {part}: run {run.id}, the last one, has no such host",
                hint=note_unfinished(inventory) or "No host is left to continue with.",
            )
        selected += hosts
    return selected


def _lines(path: Path) -> Iterator[dict[str, Any]]:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise GpunodeError(f"{path}: {error.strerror}", hint="Name an existing run.") from error
    for line in text.splitlines():
        try:
            entry = json.loads(line)
        except (ValueError, RecursionError):
            return  # cut off by what ended the run
        if not isinstance(entry, dict):
            return
        yield entry
