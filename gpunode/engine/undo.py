"""The undo of a run on one host, planned from the host's journal and its facts: changes in reverse, and what has to stay.

`originals` is for others who need a host's state before gpunode.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

from gpunode.engine import chain
from gpunode.errors import Refused
from gpunode.model import (
    Change,
    Entry,
    Facts,
    Host,
    Left,
    Outcome,
    Plan,
    RemoveFile,
    Service,
    StepPlan,
    Watch,
    WriteFile,
)
from gpunode.planning import services

STEP = "undo"
SOMEBODY = "changed since the run"
RUNTIME = "nvidia"  # and nvidia-cdi, nvidia-legacy: gone with what names them
ENDS_WORK = "docker.service"  # its restart ends containers
Journal: TypeAlias = Sequence[Entry]


def originals(journal: Journal) -> dict[str, Entry]:
    """Path → the oldest entry of each file that gpunode has changed: its `was`, `content`, `link` are of before gpunode."""
    oldest: dict[str, Entry] = {}
    for entry in journal:
        if entry.path:
            oldest.setdefault(entry.path, entry)
    return oldest


def watch(known: Watch, journal: Journal, run: str) -> Watch:
    """The probe's watch, with what an undo of the run needs to know."""
    mine = [entry for entry in journal if entry.run == run]
    return replace(
        known,
        files=_unique((*known.files, *(entry.path for entry in mine))),
        units=_unique((*known.units, *(entry.unit for entry in mine))),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))


def plan_host(host: Host, journal: Journal, run: str, facts: Facts) -> Outcome:
    """The outcome of a host whose run is to be undone: planned, right (nothing is left to undo), or refused."""
    try:
        chain.check_readable(host, facts)
    except Refused as refused:
        return Outcome(host.name, "refused", facts, problem=refused.problem)
    changes, left = plan(journal, run, facts)
    steps = (StepPlan(STEP, changes),) if changes else ()
    return Outcome(
        host.name, "planned" if changes else "right", facts, plan=Plan(host.name, steps), left=left
    )


def plan(journal: Journal, run: str, facts: Facts) -> tuple[tuple[Change, ...], tuple[Left, ...]]:
    """The changes that take the run's back, in reverse order, and what is left as it is."""
    mine = [entry for entry in journal if entry.run == run]
    first = originals(mine)
    changes: list[Change] = []
    left: list[Left] = []
    due: dict[str, list[str]] = {}  # unit → files to restore that it reads
    for entry in reversed(mine):
        if entry.path in first:
            planned = _restore(journal, run, facts, first.pop(entry.path))
            if isinstance(planned, Left):
                left.append(planned)
            elif planned is not None:
                changes.append(planned)
                if entry.unit and services.is_active(facts, entry.unit):
                    due.setdefault(entry.unit, []).append(planned.path)
    return tuple(_with_restarts(changes, due, facts)), tuple(left)


def _restore(journal: Journal, run: str, facts: Facts, first: Entry) -> WriteFile | RemoveFile | Left | None:
    """The change that restores a file as it was before the run; None: it is so."""
    path, now = first.path, facts.files.get(first.path)
    state = now.sha256 if now and now.exists else None
    if state == first.was:
        return None
    wrote = [entry for entry in journal if entry.path == path and entry.wrote == state]
    if not any(entry.run == run for entry in wrote):
        later = next((entry.run for entry in reversed(wrote) if entry.run), "")
        return Left("kept", path, f"{SOMEBODY} by run {later}: undo that first" if later else SOMEBODY)
    text = now.content if now and now.exists else None
    if first.link is not None:
        return Left("irreversible", path, f"it was a link to {first.link}")
    if first.was is None and text is not None:
        return RemoveFile(path, text, f"run {run} made it", folder=first.new_folder)
    if first.content is None or (text is None and state is not None):
        return Left("irreversible", path, f"its original cannot be read: {first.error or 'it is gone'}")
    mode = 0o644 if first.mode is None else first.mode
    why = f"as before run {run}"
    return WriteFile(
        path, first.content, why, text, mode=mode, owner=(first.uid, first.gid), label=first.label
    )


def _with_restarts(
    changes: Sequence[Change], due: Mapping[str, Sequence[str]], facts: Facts
) -> Iterable[Change]:
    """The changes, with each unit restarted after the last of its files."""
    last = {paths[-1]: unit for unit, paths in due.items()}
    for change in changes:
        yield change
        if isinstance(change, (WriteFile, RemoveFile)) and change.path in last:
            unit = last[change.path]
            ends = services.user_keys(facts.gpu_users) if unit == ENDS_WORK else None
            yield Service(
                unit, services.AT_START, restart=True, guards=tuple(due[unit]), ends=ends, drops=RUNTIME
            )
