"""A fleet at one moment: its GPUs, its hosts, those that need somebody first, and its last run. What `gpunode top` draws. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Literal, TypeAlias, get_args

from gpunode.contract.status import CORDONED
from gpunode.contract.usage import Gpu
from gpunode.engine.record import BAD, BEGUN, FINISHED, RIGHT, Progress, RecordedRun
from gpunode.links.plugin.usage import NodeUsage
from gpunode.wording import several

Rank: TypeAlias = Literal["bad", "unknown", "working", "waiting", "ok", "absent"]
RANKS: tuple[Rank, ...] = get_args(Rank)  # in the order that hosts are shown
NOT_DONE = ("waiting", "skipped")
NO_NODE = "no-node"
NOT_PROVISIONED = "not-provisioned"


@dataclass(frozen=True, slots=True)
class HostCell:
    """A host, or a GPU node that no host of the inventory is. `gpus`: None where they are not known; `used`: of them by pods; `load`:
    their mean utilisation in percent."""

    name: str
    rank: Rank
    state: str
    why: str = ""
    gpus: int | None = None
    used: int = 0
    load: int | None = None


@dataclass(frozen=True, slots=True)
class RunLine:
    """A run. `since`: when its batch began or, unless it is running, when its last line was written, in seconds since the epoch. `batch`
    of `batches`: 0 before the first; `ends`: hosts that ended badly, by state; `left`: seconds from there to its end by the estimate."""

    id: str
    state: Literal["running", "pausing", "ended", "cut off"]
    hosts: int
    finished: int
    ends: Mapping[str, int]
    since: float
    batch: int = 0
    batches: int = 0
    left: float | None = None

    @property
    def is_running(self) -> bool:
        return self.state in ("running", "pausing")

    def at(self, now: float) -> "RunLine":
        """The run at a later time."""
        return replace(self, since=now, left=None if self.left is None else self.left - (now - self.since))


@dataclass(frozen=True, slots=True)
class Overview:
    """`fleet`: its GPUs in a sentence; `cells`: those that are wrong first; `command`: of the run; `error`: why no newer figures came."""

    fleet: str = ""
    cells: tuple[HostCell, ...] = ()
    run: RunLine | None = None
    command: str = "run"
    error: str = ""


def sum_up_run(run: RecordedRun, *, running: bool, paused: bool, now: float) -> RunLine:
    """`paused`: it was asked to begin no further batch. `now`: seconds since the epoch."""
    state: Literal["running", "pausing", "ended", "cut off"] = "pausing" if paused else "running"
    if not running:
        state = "ended" if run.ended else "cut off"
    batch = run.batch
    line = RunLine(
        run.id,
        state,
        len(run.hosts),
        len(run.in_state(*FINISHED)),
        {state: len(run.in_state(state)) for state in BAD},
        (batch.time if batch else run.began) if running else run.last,
        batch.batch if batch else 0,
        batch.of if batch else 0,
        batch.seconds if batch and running else None,
    )
    return line.at(now) if running else line


def sort_cells(cells: Iterable[HostCell]) -> tuple[HostCell, ...]:
    """By rank; hosts of one rank keep their order."""
    return tuple(sorted(cells, key=lambda cell: RANKS.index(cell.rank)))


def make_cell(
    name: str, usage: NodeUsage, progress: Progress | None = None, *, running: bool = False
) -> HostCell:
    """A host's cell. `usage`: of its node; `progress`: in the last run, which is `running` or not."""
    gpus = usage.gpus
    loads = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    rank, state, why = _judge(usage, progress, running=running)
    return HostCell(
        name,
        rank,
        state,
        why,
        len(gpus) if usage.reason is None else None,
        sum(bool(gpu.users) for gpu in gpus),
        round(sum(loads) / len(loads)) if loads else None,
    )


def _judge(usage: NodeUsage, progress: Progress | None, *, running: bool) -> tuple[Rank, str, str]:
    """Rank, state and reason: what the run says of a host it has not finished, else what the device plugin says of its GPUs."""
    if progress and progress.state in BAD:
        return "bad", progress.state, progress.why
    if progress and progress.state in BEGUN:
        if running:
            return "working", progress.state, ""
        return "bad", "unfinished", f"the run was cut off while {progress.state}; `gpunode resume` continues"
    if progress and progress.state in NOT_DONE:
        return "waiting", progress.state, progress.why
    if usage.reason:
        bare = progress is not None and progress.state in RIGHT and not progress.gpus
        if usage.reason.code == NO_NODE:
            return ("absent", "no node", "") if bare else ("unknown", "not in the cluster yet", "")
        rank: Rank = "absent" if usage.reason.code == NOT_PROVISIONED else "unknown"
        return rank, usage.reason.code.replace("-", " "), usage.reason.what
    if unhealthy := [gpu for gpu in usage.gpus if gpu.unhealthy and gpu.unhealthy.code != CORDONED]:
        return "bad", f"{several(len(unhealthy), 'GPU')} unhealthy", _reasons(unhealthy)
    return "ok", "ok", _reasons(gpu for gpu in usage.gpus if gpu.unhealthy)


def _reasons(gpus: Iterable[Gpu]) -> str:
    return "; ".join(dict.fromkeys(gpu.unhealthy.words for gpu in gpus if gpu.unhealthy))
