"""Hosts: their plans and what these disturb, batches and failures, as lines of styled text for a terminal or a page. Pure."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import groupby
from typing import Any

from gpunode.engine.shown import ShownChange, ShownHost, status_of
from gpunode.inventory.starter import ranges
from gpunode.model import Disturbed, Outcome
from gpunode.report.plain import INDENT, Part, indent, line_style, lines
from gpunode.wording import common, few, lasting, several

WORDS = {
    "right": "up to date",
    "broken": "broken",
    "planned": "to change",
    "differs": "different",
    "changed": "changed",
    "failed": "failed",
    "refused": "refused",
    "unreachable": "unreachable",
    "declined": "declined",
}
NAMED, HOSTS, BATCHES = 5, 10, 5  # how many are shown: pods and processes of a host, hosts, batches
SIGNS = {"+": "green", "~": "yellow", "-": "red", "!": "magenta"}
# How a host without changes ends.
ENDS = {"": "up to date", "right": "nothing to take back", "kept": "cannot be undone"}
LONG = 100  # characters of a step in one line
LINES = 12  # of a host's plan; a longer one is shown by step


def sentence(disturbed: Disturbed) -> str:
    """`reboot, driver packages; no GPU pods or processes affected`; without names, so that equal plans read alike."""
    return f"{disturbed.describe()}; {_treatment(disturbed)}"


def interrupted_work(hosts: Sequence[ShownHost]) -> Iterator[str]:
    """A headline, and a line per host with interrupted work; nothing if there is none."""
    busy = [(host.name, host.disturbs) for host in hosts if host.disturbs and victims(host.disturbs)]
    if not busy:
        return
    gpus = [asks for _, disturbed in busy for asks in (disturbed.pods or {}).values() if asks]
    known = several(len(gpus), "GPU pod")
    if any(disturbed.pods is None for _, disturbed in busy):
        known = f"{known} at least" if gpus else "pods unknown"
    parts = [several(len(busy), "host"), known]
    others = sum(len(disturbed.pods or {}) for _, disturbed in busy) - len(gpus)
    processes = sum(len(disturbed.processes) for _, disturbed in busy)
    parts += [several(others, "other pod")] if others else []
    parts += [f"{processes} process{'' if processes == 1 else 'es'}"] if processes else []
    order = ", one host at a time per group unless --batch sets more" if len(busy) > 1 else ""
    yield f"{', '.join(parts)}{order}"
    for host, disturbed in busy[:HOSTS]:
        yield f"{host}: {few(victims(disturbed), NAMED)}"
    if len(busy) > HOSTS:
        yield f"and {len(busy) - HOSTS} more hosts"


def batches(rows: Sequence[Sequence[Any]]) -> Iterator[str]:
    """A line for each of the first batches with changes: its hosts, and what is interrupted there; one for all without changes."""
    busy = [(number, changes, causes) for number, _, changes, _, causes in rows if changes]
    for number, changes, causes in busy[:BATCHES]:
        yield f"{number}.  {few(changes, NAMED)}{': ' if causes else ''}{'; '.join(causes)}"
    if rest := [len(changes) for _, changes, _ in busy[BATCHES:]]:
        more = "1 more batch" if len(rest) == 1 else f"{len(rest)} more batches"
        yield f"and {more}, {several(max(rest), 'host')}{'' if len(rest) == 1 else ' each at most'}"
    if idle := [str(number) for number, _, changes, _, _ in rows if not changes]:
        yield f"without changes: {few(idle, NAMED)}"


def _treatment(disturbed: Disturbed) -> str:
    longest = f"{lasting(disturbed.timeout)} at most"
    if disturbed.pods is None:
        waits = disturbed.processes and disturbed.work in ("wait", "drain")
        first = f"processes outside Kubernetes waited for, {longest}; " if waits else ""
        return f"{first}running pods unknown"
    if not disturbed.anybody:
        return "no GPU pods or processes affected"
    return {
        "stays": "pods keep running",
        "wait": f"gpunode cordons the node and waits up to {lasting(disturbed.timeout)} for work on its GPUs",
        "drain": f"drained first, {longest}",
        "kill": "gpunode cordons the node first; work ends with it",
    }[disturbed.work]


def victims(disturbed: Disturbed) -> list[str]:
    if not disturbed.ends_work:
        return []
    pods = [_pod(name, asks, disturbed.standstill.get(name)) for name, asks in (disturbed.pods or {}).items()]
    return [*pods, *(str(process) for process in disturbed.processes)]


def _pod(name: str, asks: Mapping[str, int], standstill: str | None) -> str:
    more = [_amounts(asks)] if asks else []
    more += [f"does not run: {standstill}"] if standstill else []
    return f"{name} ({', '.join(more)})" if more else name


def _amounts(asks: Mapping[str, int]) -> str:
    """A unit of another resource is a share, some memory or a part of a GPU: it is named as the pod names it."""
    return ", ".join(
        several(amount, "GPU") if name == "nvidia.com/gpu" else f"{amount} of {name}"
        for name, amount in asks.items()
    )


def summary_text(
    outcomes: Sequence[Outcome], seconds: float, cluster: int | None, proofs: Mapping[str, int] | None = None
) -> str:
    """The last line: hosts by status, and what waits in the cluster (None: not checked). `proofs`: hosts by their end of a run."""
    counts = proofs or Counter(WORDS[status_of(outcome)] for outcome in outcomes)
    parts = ", ".join(f"{count} {word}" for word, count in counts.items())
    hosts = f"{len(outcomes)} host{'' if len(outcomes) == 1 else 's'}"
    rest = "; cluster not checked" if cluster is None else ""
    rest = f"; {several(cluster, 'change')} to make in the cluster" if cluster else rest
    return f"{hosts} in {seconds:.1f} s: {parts}{rest}"


def group_alike(hosts: Sequence[ShownHost], *, diff: bool) -> list[ShownHost]:
    """One plan for each distinct one, with the names of all its hosts."""
    groups: dict[tuple[Part, ...], list[ShownHost]] = {}
    for host in hosts:
        nameless = host if host.problem else without_processes(replace(host, name=""))
        groups.setdefault(tuple(plan_lines(nameless, 0, diff=diff)), []).append(host)
    return [
        same[0] if len(same) == 1 else replace(without_processes(same[0]), name=_names(same))
        for same in groups.values()
    ]


PROCESS = re.compile(r" \(pid \d+[^)]*\)")


def without_processes(host: ShownHost) -> ShownHost:
    """The plan with reasons that name the programs that use the GPUs, not their processes: these differ between equal hosts."""
    changes = (replace(change, why=PROCESS.sub("", change.why)) for change in host.changes)
    return replace(host, changes=tuple(changes))


def _names(several: Sequence[ShownHost]) -> str:
    """The hosts' names, with ranges."""
    return ", ".join(ranges([host.name for host in several]))


def group_failures(hosts: Sequence[ShownHost]) -> list[ShownHost]:
    """The hosts; one for all that failed for the same reason. Where many failed, that is without their names and addresses."""
    many = sum(bool(host.problem) for host in hosts) > HOSTS
    groups: dict[object, list[tuple[ShownHost, ShownHost]]] = {}
    for host in hosts:
        shared = host
        if many and host.problem:
            what, fix = (common(text, host.name) for text in (host.problem, host.fix))
            shared = replace(host, problem=what, fix=fix)
        key = (shared.status, shared.problem, shared.fix) if host.problem else host.name
        groups.setdefault(key, []).append((host, shared))
    return [
        replace(same[0][1], name=_names([host for host, _ in same])) if same[1:] else same[0][0]
        for same in groups.values()
    ]


def plan_lines(host: ShownHost, width: int, *, diff: bool | None) -> Iterator[Part]:
    """A host's plan or `up to date`, its notes, and its error. `diff` True: with every reason and diff; else in few lines, with
    those for which there is room (False: no diffs)."""
    if host.changes:
        yield from (" ", (f"{host.name:<{width}}", "bold"), f"  {host.facts}\n")
        yield from _plan(host, diff=diff)
        if host.disturbs and (host.disturbs.anybody or host.disturbs.what.devices):
            yield from ("   ", ("disturbs   ", "dim"), f"   {sentence(host.disturbs)}\n")
        yield from _notes(host, 0)
    elif not host.problem:
        broken = ("✗ broken; gpunode cannot repair this\n", "red")
        state = broken if host.status == "broken" else (f"= {ENDS[host.undo]}\n", "dim")
        yield from (f" {host.name:<{width}}  ", state)
        yield from _notes(host, width)
    yield from failure(host, width)


def _notes(host: ShownHost, width: int) -> Iterator[Part]:
    for note in host.notes:
        yield f"{' ' * (width + 3)}{note}\n", "yellow"


def failure(host: ShownHost, width: int) -> Iterator[Part]:
    if not host.problem:
        return
    first, *rest = lines(host.problem)
    yield from (f" {host.name:<{width}}  ", (f"✗ {WORDS[host.status]}", "red"), f"  {first}\n")
    margin = " " * (width + 5)
    yield from (f"{margin}{line}\n" for line in rest)
    yield from (f"{line}\n" for line in indent(host.fix, margin))


def is_shortened(host: ShownHost) -> bool:
    """True if its plan has reasons and diffs for which there is no room."""
    return _plan(host, diff=None) != _plan(host, diff=True)


def _plan(host: ShownHost, *, diff: bool | None) -> list[Part]:
    """The lines of its steps: of the ways to show them the first that is short enough."""
    steps = [(step, list(changes)) for step, changes in groupby(host.changes, lambda change: change.step)]
    reload = bool(host.disturbs and host.disturbs.reload)
    parts: list[Part] = []
    for show in (
        *([partial(_step, diff=True)] if diff is not False else []),
        partial(_step, diff=False),
        partial(_brief_step, why=True),
        partial(_brief_step),
    ):
        parts = [part for step, changes in steps for part in show(step_name(step, reload=reload), changes)]
        if diff or _height(parts) <= LINES - 2:  # its name, and what it disturbs
            break
    return parts


def step_name(step: str, *, reload: bool = False) -> str:
    """For people; `before` puts back what was there before gpunode."""
    return "modules" if reload and step == "reboot" else "restore" if step == "before" else step


def _step(name: str, changes: Sequence[ShownChange], *, diff: bool) -> Iterator[Part]:
    for change in changes:
        yield from (
            "   ",
            (f"{name:<11}", "dim"),
            " ",
            (change.sign, SIGNS[change.sign]),
            f" {change.what}\n",
        )
        name = ""
        for text, style in ((change.why, "dim"), (change.note, "yellow"), (change.writer, "yellow")):
            if text:
                yield from (INDENT, (f"{text}\n", style))
        for line in change.diff if diff else ():
            yield from (INDENT, (f"{line}\n", line_style(line)))


def _brief_step(name: str, changes: Sequence[ShownChange], *, why: bool = False) -> Iterator[Part]:
    """What a step does, in one line, or in several where it is long. With `why`, the first reason below."""
    titles = list(dict.fromkeys(_brief_titles(changes)))
    whole = "; ".join(titles)
    first, *more = titles if len(whole) > LONG else [whole]
    sign = changes[-1].sign
    yield from ("   ", (f"{name:<11}", "dim"), " ", (sign, SIGNS[sign]), f" {first}\n")
    for title in more:
        yield from (INDENT, f"{title}\n")
    if why and changes[0].why:
        yield from (INDENT, (f"{changes[0].why}\n", "dim"))
    for text in dict.fromkeys(change.writer for change in changes):
        if text:
            yield from (INDENT, (f"{text}\n", "yellow"))


def _brief_titles(changes: Sequence[ShownChange]) -> Iterator[str]:
    """The headlines of changes; several files are counted."""
    for verb, signs in (("write", "+~"), ("remove", "-")):
        files = [change for change in changes if change.path and change.sign in signs]
        if len(files) > 1:
            yield f"{verb} {few([file.path for file in files], 1)}"
            changes = [change for change in changes if change not in files]
    yield from (change.brief for change in changes)


def _height(parts: Sequence[Part]) -> int:
    return sum((part if isinstance(part, str) else part[0]).endswith("\n") for part in parts)
