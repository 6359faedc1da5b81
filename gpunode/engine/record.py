"""The record of a run on the operator's machine: the plan as it was shown and accepted, and how far each host has come.

A line of JSON per step, on the disk before the step is begun, so a run that is killed can be resumed. Records are below
$XDG_STATE_HOME/gpunode/runs (~/.local/state), one file a run, readable by their owner alone.
"""

import calendar
import fcntl
import getpass
import json
import os
import re
import secrets
import socket
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

from gpunode import __version__
from gpunode.agent.redaction import redact, redact_values
from gpunode.errors import GpunodeError
from gpunode.host import diff
from gpunode.local.files import runs_folder
from gpunode.model import Change, Plan, Title

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
    "in use",  # finished: its changes, if any, disturbed no work, and that has all its GPUs: not proven now
    "undone",  # finished: the changes of another run are taken back
    "kept",  # finished: an undo can put nothing back
    "forgotten",  # finished: it is out of gpunode's hands
    "skipped",  # its work did not end in time, or the run stopped before it
    "refused",
    "unreachable",
    "failed",
]
DONE: tuple[State, ...] = ("proven", "finished")
FORGOTTEN: State = "forgotten"
RIGHT: tuple[State, ...] = (*DONE, "in use")
FINISHED: tuple[State, ...] = (*RIGHT, "undone", "kept", FORGOTTEN)
BEGUN: tuple[State, ...] = ("cordoned", "drained", "changing", "changed")  # and not ended
BAD: tuple[State, ...] = ("failed", "refused", "unreachable")
NOT_STARTED: tuple[State, ...] = ("waiting", "skipped", "refused", "unreachable")


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

    @property
    def started(self) -> bool:
        """False if no change was made, of the host or of its node."""
        return bool(self.made) or self.state not in NOT_STARTED


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """A change as it was shown, without secrets. Of a change of the cluster, `of` is the host whose batch makes it ("": of none), and
    `title` its object."""

    step: str
    kind: str
    what: str
    why: str = ""
    diff: tuple[str, ...] = ()
    of: str = ""
    title: Title | None = None


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

    before: Mapping[str, Any] | None
    manifest: Mapping[str, Any] | None

    @property
    def title(self) -> Title:
        return Title.of(self.manifest or self.before or {})


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
    resumes: str | None = None  # the run whose unfinished hosts this one continues with


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
    ended; `folder`: of its record. Older records have less."""

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
    folder: Path = Path()

    @property
    def command(self) -> str:
        """`provision`, `resume`, `undo` or `forget`."""
        known = self.options
        return known.command or ("resume" if known.resumes else "undo" if known.undo else "provision")

    def in_state(self, *states: State) -> tuple[str, ...]:
        return tuple(name for name, progress in self.hosts.items() if progress.state in states)

    @property
    def changed(self) -> bool:
        """False if it had nothing to change, or ended before the first change. An older gpunode did not record what it had."""
        # The changes of a host that was lost may go on there.
        begun = [name for name, host in self.hosts.items() if host.started or host.state == "unreachable"]
        planned = begun and any(self.planned.get(name) for name in (*begun, CLUSTER))
        return not self.version or bool(planned or self.marks or self.in_state(*BEGUN))

    def has_changed(self, host: str) -> bool:
        """Whether it made changes on the host, or may have: it was cut off before it had noted which."""
        progress = self.hosts.get(host)
        planned = self.planned.get(host) or not self.version
        return progress is not None and bool(progress.made or (progress.state in BEGUN and planned))

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
    ) -> "Record":
        """A new record; its name sorts after those that are there, though a clock be set back. Raises GpunodeError where
        it cannot be written."""
        folder = runs_folder(inventory)
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

    def discard(self) -> None:
        """Remove the record of a run that ended before it could begin."""
        with suppress(OSError):
            self.path.unlink()

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

    def cluster(self, differences: "Sequence[Difference]", hosts: Mapping[str, str]) -> None:
        """Note what was shown to change in the cluster. `hosts`: node → host."""
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
                    of=hosts.get(_node_of(difference), ""),
                    title=difference.title,
                ),
                lines,
            )
            for difference in differences
        ]
        from gpunode.cluster.objects.difference import hide  # not at gpunode's start

        for each in differences:
            known = asdict(RecordedObject(each.before, each.manifest))
            if (each.before or each.manifest) and redact_values(hide(known)) == known:  # no secret in it
                lines.append({"object": {"what": each.what, **known}})  # older gpunodes need `what`
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
        return pause_file(self.path.parent, self.id).exists()

    @property
    def begun(self) -> tuple[str, ...]:
        """The hosts that were begun and have not ended."""
        return tuple(name for name, state in self._states.items() if state in BEGUN)

    def end(self) -> None:
        """Note that the run has ended: there is nothing to resume."""
        self._write({"ended": time.time()})
        with suppress(OSError):
            pause_file(self.path.parent, self.id).unlink(missing_ok=True)

    def _write(self, *lines: Mapping[str, Any]) -> None:
        with self._lock:
            if self.lost or not lines:
                return  # after a line that may be cut off no other is read
            try:
                self._append(lines)
            except OSError as error:
                self.lost = f"its record {self.path} cannot be written: {error.strerror}"

    def _append(self, lines: Sequence[Mapping[str, Any]]) -> None:
        # A record that was removed is lost: another without its head would not be found.
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        with os.fdopen(descriptor, "a", encoding="utf-8") as file:
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


def _node_of(difference: "Difference") -> str:
    """The node in whose batch this is changed; "" for what the deployment itself changes, such as a node's annotation."""
    title = difference.title
    return difference.node or (title.name if title.kind == "Node" and not title.part else "")


def pause_file(folder: Path, run: str) -> Path:
    """While this file exists, the run with this id begins no further batch. `folder`: of its record."""
    return folder / f"{run}.pause"
