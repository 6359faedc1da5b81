"""The record of a run on the operator's machine: the plan as it was shown and accepted, and how far each host has come.

A line of JSON per step, on the disk before the step is begun, so a run that is killed can be resumed. Records are below
$XDG_STATE_HOME/gpunode/runs (~/.local/state), one file a run, readable by their owner alone.
"""

from __future__ import annotations

import calendar
import fcntl
import getpass
import json
import math
import os
import re
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from gpunode import __version__
from gpunode.agent.redaction import redact, redact_values
from gpunode.errors import GpunodeError, UnexpectedAnswer, UsageError
from gpunode.host import answers, diff
from gpunode.model import Change, Plan
from gpunode.wording import Advice, Command, about, advise, few

if TYPE_CHECKING:
    from gpunode.cluster.objects.difference import Difference

FORMAT = 1
RECENT = 10  # runs
KEPT_RUNS, KEPT_DAYS = 200, 90  # see `_prune`
LAST = "last"  # names the newest run
CLUSTER = ""  # in the place of a host: changes there
STAMP = "%Y%m%dT%H%M%SZ"
SIZE = re.compile(r"[1-9]\d{0,5}%?")

State: TypeAlias = Literal[
    "waiting",  # its batch has not begun
    "cordoned",
    "drained",  # nothing that its changes interrupt runs there any more
    "changing",
    "changed",
    "proven",  # finished: pods proved its GPUs, its node takes pods again
    "finished",  # as proven, without a pod: by --no-run, or an inventory without a plugin
    "in use",  # finished: nothing was to change, and all its GPUs are in use: not proven now
    "undone",  # finished: the changes of another run are taken back
    "forgotten",  # finished: it is out of gpunode's hands
    "skipped",  # its work did not end in time, or the run stopped before it
    "refused",
    "unreachable",
    "failed",
]
DONE: tuple[State, ...] = ("proven", "finished")
FORGOTTEN: State = "forgotten"
RIGHT: tuple[State, ...] = (*DONE, "in use")
FINISHED: tuple[State, ...] = (*RIGHT, "undone", FORGOTTEN)
BEGUN: tuple[State, ...] = ("cordoned", "drained", "changing", "changed")  # and not ended
BAD: tuple[State, ...] = ("failed", "refused", "unreachable")


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a host has come, since when (seconds since the epoch), and why no further. `gpus`: PCI addresses of those that it had.
    `spent`: seconds by phase. `made`: numbers of the changes that were made, once its batch has ended."""

    state: State
    since: float
    why: str = ""
    gpus: tuple[str, ...] = ()
    spent: Mapping[str, float] = field(default_factory=dict)
    made: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change as it was shown, without secrets."""

    step: str
    kind: str
    what: str
    why: str = ""
    diff: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RecordedMarks:
    """What a writer of labels, or for TAINTS the inventory, had on a node before the run wrote there and after: names → values."""

    node: str
    writer: str
    before: Mapping[str, str]
    after: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RecordedObject:
    """An object that the run was to change, as of Difference."""

    what: str
    before: Mapping[str, Any] | None
    manifest: Mapping[str, Any] | None


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of a run that the next command acts on, as its record has them. `command`: None for `provision` and `resume`."""

    run: bool | None = None
    max_fail: int | None = None
    canary: int | None = None
    batch: str | None = None
    fingerprints: tuple[str, ...] | None = None
    taint: bool | None = None
    accept: str | None = None
    undo: str | None = None  # the run that this one undoes
    command: str | None = None


@dataclass(frozen=True, slots=True)
class RecordedBatch:
    """The batch that began last: its number, of how many; at `time` (since the epoch) the run was estimated to take `seconds` more."""

    batch: int
    of: int
    seconds: float
    time: float


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """A recorded run. `hosts` in their order; `options` of the command that began it, to go on as it began. `last`: when its last
    line was written. `by`, `version`, `asked` and `answered` as of `Head`. `planned`: host → numbers of its `changes`; `gates`: as they
    ended. Older records have less."""

    id: str
    inventory: str
    began: float
    options: RunOptions
    hosts: Mapping[str, Progress] = field(default_factory=dict)
    ended: bool = False
    last: float = 0.0
    by: str = ""
    version: str = ""
    asked: str = ""
    answered: str = ""
    changes: Mapping[int, RecordedChange] = field(default_factory=dict)
    planned: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    gates: tuple[Mapping[str, Any], ...] = ()
    batch: RecordedBatch | None = None
    marks: tuple[RecordedMarks, ...] = ()
    objects: tuple[RecordedObject, ...] = ()

    def in_state(self, *states: State) -> tuple[str, ...]:
        """The names of the hosts that are in one of these states."""
        return tuple(name for name, progress in self.hosts.items() if progress.state in states)

    @property
    def not_done(self) -> tuple[str, ...]:
        """The hosts to continue with. An undo changes the cluster's objects last: killed before its end it owes them, with all hosts."""
        left = tuple(name for name, progress in self.hosts.items() if progress.state not in FINISHED)
        return tuple(self.hosts) if self.options.undo and not (left or self.ended) else left


@dataclass(frozen=True, slots=True)
class Head:
    """The first line of a record. `by`: user@machine; `version`: gpunode's; `asked`: the question before the first change, ""
    where nothing was to change; `answered`: how."""

    format: int
    hosts: tuple[str, ...]
    inventory: str = ""
    began: float = 0.0
    options: RunOptions = field(default_factory=RunOptions)
    by: str = ""
    version: str = ""
    asked: str = ""
    answered: str = ""


class Record:
    """The record of the run under way, for all of its threads. Each line is on the disk when the call returns. `lost`: why it cannot
    be written any more; nothing new may be begun then."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id = path.stem
        self.owner = f"run {self.id} of {getpass.getuser()}@{socket.gethostname()}"
        self.lost = ""
        self._states: dict[str, State] = {}
        self._lock = threading.RLock()
        self._numbers: dict[RecordedChange, int] = {}
        self._shown: dict[tuple[str, Change, bool], int] = {}  # the same, without the cost of a diff
        self._planned: dict[str, dict[Change, int]] = {}  # by host

    @classmethod
    def begin(
        cls,
        inventory: Path,
        hosts: Sequence[str],
        options: RunOptions,
        *,
        asked: str = "",
        answered: str = "",
        folder: Path | None = None,
    ) -> Record:
        """A new record; its name sorts after those that are there, though a clock be set back. Raises GpunodeError where
        it cannot be written."""
        folder = folder or default_folder()
        began = max(
            [int(time.time()), *(stamp + 1 for path in folder.glob("*.jsonl") if (stamp := _stamp(path)))]
        )
        name = f"{time.strftime(STAMP, time.gmtime(began))}-{secrets.token_hex(2)}"
        record = cls(folder / f"{name}.jsonl")
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(record.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
            weakref.finalize(record, os.close, descriptor)
            with suppress(OSError):  # not every file system has locks
                fcntl.flock(descriptor, fcntl.LOCK_EX)  # as long as this process lives: see `is_running`
            head = Head(
                FORMAT,
                tuple(hosts),
                str(inventory.resolve()),
                time.time(),
                options,
                f"{getpass.getuser()}@{socket.gethostname()}",
                __version__,
                asked,
                answered,
            )
            record._append([asdict(head)])
            with suppress(OSError):  # another run prunes them, too
                _prune(folder, time.time())
        except OSError as error:
            with suppress(OSError):
                record.path.unlink()
            raise GpunodeError(
                f"{folder}: the record of this run cannot be written: {error.strerror}",
                hint="Without it a run that is cut off could not be resumed. Free space, or set XDG_STATE_HOME to a folder of yours.",
            ) from error
        return record

    def host(
        self,
        name: str,
        state: State,
        why: str = "",
        gpus: Sequence[str] = (),
        spent: Mapping[str, float] | None = None,
        applied: Sequence[Change] = (),
    ) -> None:
        """Note that the host has reached this state, its GPUs' PCI addresses, where its time went (seconds by phase), and which
        changes of its plans were made."""
        self._states[name] = state
        known = self._planned.get(name, {})
        made = [known[change] for change in applied if change in known]
        more = {"why": redact(why), "gpus": gpus, "spent": spent, "made": made}
        more = {key: value for key, value in more.items() if value}
        self._write({"host": name, "state": state, "time": time.time(), **more})

    def plans(self, plans: Mapping[str, tuple[Plan, bool]]) -> None:
        """Note the plans of hosts, each with whether its reboot is a reload where that suffices. Each change is written once; what
        a host has noted already is left out, so a later round adds what is new in it."""
        with self._lock:
            lines: list[Mapping[str, Any]] = []
            alike: dict[tuple[int, ...], list[str]] = {}
            for host, (plan, reload) in plans.items():
                known, new = self._planned.setdefault(host, {}), list[int]()
                for name, change in ((step.step, change) for step in plan.steps for change in step.changes):
                    if change in known:
                        continue
                    key = (name, change, reload)
                    if key not in self._shown:
                        self._shown[key] = self._number(_describe(*key), lines)
                    known[change] = self._shown[key]
                    new.append(known[change])
                if new:
                    alike.setdefault(tuple(new), []).append(host)
            lines += [{"planned": numbers, "hosts": hosts} for numbers, hosts in alike.items()]
            self._write(*lines)  # within the lock: other threads name these numbers

    def cluster(self, differences: Sequence[Difference]) -> None:
        """Note what was shown to change in the cluster."""
        lines: list[Mapping[str, Any]] = []
        numbers = [
            self._number(
                RecordedChange(
                    "cluster",
                    difference.action,
                    redact(
                        f"{difference.action} {difference.what}{difference.node and f' on {difference.node}'}"
                    ),
                    diff=tuple(map(redact, difference.lines)),
                ),
                lines,
            )
            for difference in differences
        ]
        from gpunode.cluster.objects.difference import hide  # not at gpunode's start

        for each in differences:
            known = asdict(RecordedObject(each.what, each.before, each.manifest))
            if (each.before or each.manifest) and redact_values(hide(known)) == known:  # no secret in it
                lines.append({"object": known})
        if numbers:
            self._write(*lines, {"planned": numbers, "hosts": [CLUSTER]})

    def _number(self, change: RecordedChange, lines: list[Mapping[str, Any]]) -> int:
        """The number of a change; a new one is added to the lines."""
        if change not in self._numbers:
            self._numbers[change] = len(self._numbers)
            lines.append({"change": self._numbers[change], **asdict(change)})
        return self._numbers[change]

    def gate(self, seen: Mapping[str, Any]) -> None:
        """Note how a gate ended before a batch."""
        self._write({"time": time.time(), **seen})

    def marks(self, node: str, writer: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Note what is about to be written to a node, if anything: see RecordedMarks."""
        if before != after:
            self._write({"marks": asdict(RecordedMarks(node, writer, before, after))})

    def batch(self, number: int, of: int, seconds: float) -> None:
        """Note that a batch begins, and the estimated seconds to the end of the run."""
        self._write({"batch": number, "of": of, "seconds": round(seconds), "time": time.time()})

    def count(self, *states: State) -> int:
        """The number of hosts that are noted to be in one of these states."""
        return sum(state in states for state in self._states.values())

    @property
    def paused(self) -> bool:
        """True if no further batch should begin: see `pause`."""
        return pause_file(self.id, folder=self.path.parent).exists()

    @property
    def begun(self) -> tuple[str, ...]:
        """The hosts that were begun and have not ended."""
        return tuple(name for name, state in self._states.items() if state in BEGUN)

    def end(self) -> None:
        """Note that the run has ended: there is nothing to resume."""
        self._write({"ended": time.time()})
        with suppress(OSError):
            pause_file(self.id, folder=self.path.parent).unlink(missing_ok=True)

    def _write(self, *lines: Mapping[str, Any]) -> None:
        with self._lock:
            if self.lost or not lines:
                return  # after a line that may be cut off no other is read
            try:
                self._append(lines)
            except OSError as error:
                self.lost = f"its record {self.path} cannot be written: {error.strerror}"

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
            file.flush()
            os.fsync(file.fileno())


def _prune(folder: Path, now: float) -> None:
    """Remove records that are neither among the last KEPT_RUNS nor were written in the last KEPT_DAYS, nor are their inventory's last."""
    paths = sorted(folder.glob("*.jsonl"), reverse=True)
    old = [path for path in paths[KEPT_RUNS:] if path.stat().st_mtime < now - KEPT_DAYS * 86400]
    known = {_inventory_of(path) for path in paths if path not in old} if old else set[str | None]()
    for path in old:
        inventory = _inventory_of(path)
        if inventory is not None and inventory in known:
            path.unlink(missing_ok=True)
        known.add(inventory)


def _inventory_of(path: Path) -> str | None:
    """The inventory that a record names; None where it names none."""
    with suppress(OSError, ValueError, RecursionError, AttributeError), path.open(encoding="utf-8") as file:
        named: object = json.loads(file.readline()).get("inventory")
        return named if isinstance(named, str) else None
    return None


def _describe(step: str, change: Change, reload: bool) -> RecordedChange:
    what, kind = redact(diff.headline(change, reload=reload)), type(change).__name__
    return RecordedChange(step, kind, what, redact(change.why), tuple(diff.lines(change)))


def _stamp(path: Path) -> int:
    """When a record began by its name, in seconds since the epoch; 0 for another name."""
    try:
        return calendar.timegm(time.strptime(path.name[:16], STAMP))
    except ValueError:
        return 0


def default_folder() -> Path:
    """The folder with the records of this user's runs."""
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local/state") / "gpunode/runs"


def pause_file(run: str, *, folder: Path | None = None) -> Path:
    """While this file exists, the run with this id begins no further batch."""
    return (folder or default_folder()) / f"{run}.pause"


def is_running(run: RecordedRun, *, folder: Path | None = None) -> bool:
    """True if a process on this machine still works on the run: it holds a lock on the record."""
    path = (folder or default_folder()) / f"{run.id}.jsonl"
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
            changes[int(line["change"])] = answers.read(RecordedChange, line, f"line {place}")
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
    )


def _time(value: Any) -> float:
    if not math.isfinite(value):
        raise ValueError(f"{value} is no time")
    return float(value)


def newest(count: int | None, *, folder: Path | None = None) -> Iterator[RecordedRun | GpunodeError]:
    """The newest runs (None: all) of all inventories, the newest first; of a record that cannot be read, why."""
    paths = sorted((folder or default_folder()).glob("*.jsonl"), reverse=True)
    for path in paths[:count]:
        try:
            yield read(path)
        except GpunodeError as error:
            yield error


def find(run: str, *, folder: Path | None = None) -> RecordedRun:
    """The run with this id, a beginning that only its id has, or LAST. Raises UsageError where none or several are meant, and
    GpunodeError where its record cannot be read."""
    folder = folder or default_folder()
    paths = sorted(folder.glob("*.jsonl"))
    named = paths[-1:] if run == LAST else [path for path in paths if run and path.stem.startswith(run)]
    named = [path for path in named if path.stem == run] or named
    if not named:
        what = "no run is recorded on this machine" if run == LAST else f"no recorded run is {run}"
        raise UsageError(what, hint=f"Records are in {folder}; `gpunode history` lists them.")
    if len(named) > 1:
        raise UsageError(
            f"{run} may be {few([path.stem for path in named], 3)}", hint="Write more of the id."
        )
    return read(named[0])


def last_run(inventory: Path, *, folder: Path | None = None) -> RecordedRun | None:
    """The newest run of this inventory; None if there is none. Raises GpunodeError where its record is damaged."""
    return next(_newest_first(inventory, folder, strict=True), None)


def find_last(inventory: Path, *, folder: Path | None = None, of: str = "") -> RecordedRun:
    """The newest run of this inventory. Raises UsageError about `of` where there is none, and GpunodeError as `last_run`."""
    if run := last_run(inventory, folder=folder):
        return run
    raise UsageError(
        about(of, f"no run of {inventory} is recorded on this machine"),
        hint=advise(
            f"Records are in {folder or default_folder()}. `gpunode history` lists the runs of all inventories, "
            "`gpunode provision` begins one."
        ),
    )


def known_gpus(
    inventory: Path, hosts: Collection[str], *, folder: Path | None = None
) -> dict[str, tuple[str, tuple[str, ...]]]:
    """The last run that proved each host, and the PCI addresses of the GPUs that it had; hosts without such a run are left out."""
    known: dict[str, tuple[str, tuple[str, ...]]] = {}
    for run in _newest_first(inventory, folder, every=True):
        if known.keys() >= set(hosts):
            break
        for name in hosts:
            if name in run.hosts and (run.hosts[name].gpus or run.hosts[name].state == FORGOTTEN):
                known.setdefault(name, (run.id, run.hosts[name].gpus))
    return {name: entry for name, entry in known.items() if entry[1]}


def recent(inventory: Path, count: int, *, folder: Path | None = None) -> list[Path]:
    """The files of the last runs of this inventory, the newest first."""
    runs = islice(_newest_first(inventory, folder), count)
    return [(folder or default_folder()) / f"{run.id}.jsonl" for run in runs]


def mean_seconds(inventory: Path, *, folder: Path | None = None) -> dict[str, float]:
    """Mean seconds of a host by phase, over the last runs of this inventory; without phases that none of their hosts had."""
    spent = [
        progress.spent
        for run in islice(_newest_first(inventory, folder), RECENT)
        for progress in run.hosts.values()
        if progress.state in DONE
    ]
    seconds: dict[str, list[float]] = {}
    for host in spent:
        for phase, value in host.items():
            seconds.setdefault(phase, []).append(value)
    return {phase: sum(values) / len(values) for phase, values in seconds.items()}


def find_unfinished(inventory: Path, *, folder: Path | None = None) -> tuple[str, ...]:
    """Hosts that a run before the last one did not finish and no later run includes; not those of an undo, which `provision` would set
    up again."""
    left, later = list[str](), set[str]()
    for number, run in enumerate(_newest_first(inventory, folder)):
        if number and not run.options.undo:
            left += [host for host in run.not_done if host not in later]
        later |= run.hosts.keys()
    return tuple(left)


def note_unfinished(inventory: Path, *, folder: Path | None = None) -> Advice | str:
    """Advice on the hosts that runs before the last one left; "" if there are none."""
    left = find_unfinished(inventory, folder=folder)
    if not left:
        return ""
    limit = f"--limit {','.join(left)}"
    return Advice(f"Runs before it left {few(left, 3)}: `", Command("provision", limit), "` continues there.")


def _newest_first(
    inventory: Path, folder: Path | None, *, strict: bool = False, every: bool = False
) -> Iterator[RecordedRun]:
    """`strict`: raises GpunodeError for an unreadable record of this inventory; else it is skipped. `every`: runs of other commands
    than `provision`, too."""
    for path in sorted((folder or default_folder()).glob("*.jsonl"), reverse=True):
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


def expand_limit(limit: Sequence[str], inventory: Path, *, folder: Path | None = None) -> list[str]:
    """`limit` with the hosts of the inventory's last run in the place of `@failed` and `@not-done`.

    Raises UsageError where no run is recorded, the word is another, or the run has no such host.
    """
    selected: list[str] = []
    for part in (part for entry in limit for part in entry.split(",")):
        if not part.startswith("@"):
            selected.append(part)
            continue
        if part not in ("@failed", "@not-done"):
            raise UsageError(
                f"--limit {part}: no such choice", hint="Write `--limit @failed` or `--limit @not-done`."
            )
        run = find_last(inventory, folder=folder, of=f"--limit {part}")
        hosts = run.in_state(*BAD) if part == "@failed" else run.not_done
        if not hosts:
            raise UsageError(
                f"--limit {part}: run {run.id}, the last one, has no such host",
                hint=note_unfinished(inventory, folder=folder) or "No host is left to continue with.",
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
