"""Hosts: their plans and what these disturb, batches and failures, as lines of styled text for a terminal or a page. Pure."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from gpunode.engine.chain import find_manual_fix, unfixed_note
from gpunode.host import diff as diffs
from gpunode.inventory.starter import ranges
from gpunode.links.machine import pci
from gpunode.links.machine.pci import gpus
from gpunode.links.runtime import RUNTIMES, detect
from gpunode.model import (
    Change,
    Desired,
    Disturbed,
    Facts,
    Outcome,
    Packages,
    RemoveFile,
    Status,
    StepPlan,
    WriteFile,
)
from gpunode.planning import writers
from gpunode.report.plain import INDENT, Part, indent, line_style, lines
from gpunode.wording import common, few

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
LEGEND = "+ new  ~ changed  - removed  ! action: restart, load, refresh"
FEW = 3  # packages named in a brief line
LONG = 100  # characters of a step in one line
LINES = 12  # of a host's plan; a longer one is shown by step


def headline(facts: Facts, desired: Desired | None = None) -> str:
    """`2x Tesla P100-PCIE-16GB · Debian 12 · kernel 6.1.0 · docker 20.10.24 · kubelet 1.23.17`."""
    names = Counter(pci.gpu(device.device).name for device in gpus(facts.pci))
    cards = ", ".join(f"{count}x {name}" for name, count in names.items()) or "no NVIDIA GPU"
    parts = [cards, f"{facts.os.id.capitalize()} {facts.os.version}", f"kernel {facts.kernel}"]
    runtime = RUNTIMES[desired.runtime if desired else detect(facts)].headline(facts)
    parts += [runtime] if runtime else []
    if facts.kubelet is not None:
        parts.append(f"kubelet {facts.kubelet.version}")
    return " · ".join(parts)


def status_of(outcome: Outcome) -> Status:
    """Its status, but `broken` for a host that is right and still cannot work."""
    return "broken" if find_manual_fix(outcome) else outcome.status


def notes(outcome: Outcome) -> tuple[str, ...]:
    """Notes on a host beside its changes: the planner's, the broken link that they do not fix, unconfirmed restarts, and another
    running apply."""
    texts = outcome.desired.notes if outcome.desired else ()
    if outcome.facts is None:
        return texts
    if broken := unfixed_note(outcome):
        texts += (broken,)
    texts += tuple(map(str, outcome.facts.unconfirmed))
    run = outcome.facts.running
    if run is None:
        return texts
    since = time.strftime("%H:%M:%S", time.localtime(run.since))
    return (*texts, f"{run.by} is changing this host since {since}: this plan may be outdated soon")


def sentence(disturbed: Disturbed) -> str:
    """`reboot, driver packages; no GPU pods or processes affected`; without names, so that equal plans read alike."""
    if not disturbed.what:
        return "nobody"
    reboot = "reload of the modules or reboot" if disturbed.reload else "reboot"
    return f"{disturbed.what.describe(reboot)}; {_treatment(disturbed)}"


def interrupted_work(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """A headline, and a line per host with interrupted work; nothing if there is none."""
    busy = [
        (outcome.host, outcome.disturbs)
        for outcome in outcomes
        if outcome.disturbs and victims(outcome.disturbs)
    ]
    if not busy:
        return
    gpus = [asks for _, disturbed in busy for asks in (disturbed.pods or {}).values() if asks]
    parts = [_count(len(busy), "host"), _count(len(gpus), "GPU pod")]
    others = sum(len(disturbed.pods or {}) for _, disturbed in busy) - len(gpus)
    processes = sum(len(disturbed.processes) for _, disturbed in busy)
    parts += [_count(others, "other pod")] if others else []
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
        yield f"and {more}, {_count(max(rest), 'host')}{'' if len(rest) == 1 else ' each at most'}"
    if idle := [str(number) for number, _, changes, _, _ in rows if not changes]:
        yield f"without changes: {few(idle, NAMED)}"


def _treatment(disturbed: Disturbed) -> str:
    minutes = f"{disturbed.timeout / 60:g} min at most"
    if disturbed.pods is None:
        waits = disturbed.processes and disturbed.work in ("wait", "drain")
        first = f"processes outside Kubernetes waited for, {minutes}; " if waits else ""
        return f"{first}running pods unknown"
    if not disturbed.anybody:
        return "no GPU pods or processes affected"
    return {
        "stays": "pods keep running",
        "wait": f"gpunode cordons the node and waits up to {disturbed.timeout / 60:g} min for work on its GPUs",
        "drain": f"drained first, {minutes}",
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
        _count(amount, "GPU") if name == "nvidia.com/gpu" else f"{amount} of {name}"
        for name, amount in asks.items()
    )


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def summary_text(
    outcomes: Sequence[Outcome], seconds: float, cluster: int | None, proofs: Mapping[str, int] | None = None
) -> str:
    """The last line: hosts by status, and what waits in the cluster (None: not checked). `proofs`: hosts by their end of a run."""
    counts = proofs or Counter(WORDS[status_of(outcome)] for outcome in outcomes)
    parts = ", ".join(f"{count} {word}" for word, count in counts.items())
    hosts = f"{len(outcomes)} host{'' if len(outcomes) == 1 else 's'}"
    waits = f"{cluster} change{' waits' if cluster == 1 else 's wait'}"
    rest = "; cluster not checked" if cluster is None else f"; in the cluster {waits}" if cluster else ""
    return f"{hosts} in {seconds:.1f} s: {parts}{rest}"


def group_alike(outcomes: Sequence[Outcome], *, diff: bool) -> list[Outcome]:
    """One outcome for each distinct plan, with the names of all its hosts."""
    groups: dict[tuple[Part, ...], list[Outcome]] = {}
    for outcome in outcomes:
        nameless = outcome if outcome.problem else _without_processes(replace(outcome, host=""))
        groups.setdefault(tuple(plan_lines(nameless, 0, diff=diff)), []).append(outcome)
    return [
        same[0] if len(same) == 1 else replace(_without_processes(same[0]), host=_names(same))
        for same in groups.values()
    ]


PROCESS = re.compile(r" \(pid \d+[^)]*\)")


def _without_processes(outcome: Outcome) -> Outcome:
    """The outcome with reasons that name the programs that use the GPUs, not their processes: these differ between equal hosts."""
    if outcome.plan is None or not any(PROCESS.search(change.why) for change in outcome.plan.changes):
        return outcome
    steps = (
        replace(
            step,
            changes=tuple(replace(change, why=PROCESS.sub("", change.why)) for change in step.changes),
        )
        for step in outcome.plan.steps
    )
    return replace(outcome, plan=replace(outcome.plan, steps=tuple(steps)))


def _names(several: Sequence[Outcome]) -> str:
    """The hosts' names, with ranges."""
    return ", ".join(ranges([outcome.host for outcome in several]))


def group_failures(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """The outcomes; one for all that failed for the same reason. Where many failed, that is without their names and addresses."""
    many = sum(outcome.problem is not None for outcome in outcomes) > HOSTS
    groups: dict[object, list[tuple[Outcome, Outcome]]] = {}
    for outcome in outcomes:
        shared, problem = outcome, outcome.problem
        if many and problem:
            what, fix = (common(text, outcome.host) for text in (problem.what, problem.fix))
            shared = replace(outcome, problem=replace(problem, what=what, fix=fix))
        key = (shared.status, shared.why, shared.problem and shared.problem.fix) if problem else outcome.host
        groups.setdefault(key, []).append((outcome, shared))
    return [
        replace(same[0][1], host=_names([outcome for outcome, _ in same])) if same[1:] else same[0][0]
        for same in groups.values()
    ]


def plan_lines(outcome: Outcome, width: int, *, diff: bool | None) -> Iterator[Part]:
    """A host's plan or `up to date`, its notes, and its error. `diff` True: with every reason and diff; else in few lines, with
    those for which there is room (False: no diffs)."""
    if outcome.plan:
        facts = headline(outcome.facts, outcome.desired) if outcome.facts else ""
        yield from (" ", (f"{outcome.host:<{width}}", "bold"), f"  {facts}\n")
        yield from _plan(outcome, diff=diff)
        if outcome.disturbs:
            yield from ("   ", ("disturbs   ", "dim"), f"   {sentence(outcome.disturbs)}\n")
        yield from _notes(outcome, 0)
    elif outcome.problem is None:
        broken = ("✗ broken, with nothing to change\n", "red")
        right = "up to date" if outcome.left is None else "nothing to take back"
        state = broken if status_of(outcome) == "broken" else (f"= {right}\n", "dim")
        yield from (f" {outcome.host:<{width}}  ", state)
        yield from _notes(outcome, width)
    yield from failure(outcome, width)


def _notes(outcome: Outcome, width: int) -> Iterator[Part]:
    for note in notes(outcome):
        yield f"{' ' * (width + 3)}{note}\n", "yellow"


def failure(outcome: Outcome, width: int) -> Iterator[Part]:
    if outcome.problem is None:
        return
    first, *rest = lines(outcome.why) or [""]
    yield from (f" {outcome.host:<{width}}  ", (f"✗ {WORDS[outcome.status]}", "red"), f"  {first}\n")
    margin = " " * (width + 5)
    yield from (f"{margin}{line}\n" for line in rest)
    yield from (f"{line}\n" for line in indent(outcome.problem.fix, margin))


def is_shortened(outcome: Outcome) -> bool:
    """True if its plan has reasons and diffs for which there is no room."""
    return outcome.plan is not None and _plan(outcome, diff=None) != _plan(outcome, diff=True)


def _plan(outcome: Outcome, *, diff: bool | None) -> list[Part]:
    """The lines of its steps: of the ways to show them the first that is short enough."""
    steps = outcome.plan.steps if outcome.plan else ()
    reload = bool(outcome.disturbs and outcome.disturbs.reload)
    parts: list[Part] = []
    for show in (
        *([partial(_step, outcome.facts, diff=True)] if diff is not False else []),
        partial(_step, outcome.facts, diff=False),
        partial(_brief_step, outcome.facts, listed=True, why=True),
        partial(_brief_step, outcome.facts, listed=True),
        partial(_brief_step, outcome.facts),
    ):
        parts = [part for step in steps for part in show(step, reload=reload)]
        if diff or _height(parts) <= LINES - 2:  # its name, and what it disturbs
            break
    return parts


def step_name(step: str, *, reload: bool = False) -> str:
    """For people; `before` puts back what was there before gpunode."""
    return "modules" if reload and step == "reboot" else "restore" if step == "before" else step


def _step(facts: Facts | None, step: StepPlan, *, diff: bool, reload: bool) -> Iterator[Part]:
    name = step_name(step.step, reload=reload)
    for change in step.changes:
        title = diffs.headline(change, reload=reload)
        yield from ("   ", (f"{name:<11}", "dim"), " ", _sign(change), f" {title}\n")
        name = ""
        notes = getattr(change, "note", ""), writers.sentence(facts, change)
        for text, style in ((change.why, "dim"), *((note, "yellow") for note in notes)):
            if text:
                yield from (INDENT, (f"{text}\n", style))
        for line in diffs.lines(change) if diff else ():
            yield from (INDENT, (f"{line}\n", line_style(line)))


def _brief_step(
    facts: Facts | None, step: StepPlan, *, reload: bool, why: bool = False, listed: bool = False
) -> Iterator[Part]:
    """What a step does, in one line; `listed`: in several where it is long. With `why`, the first reason below."""
    titles = list(dict.fromkeys(_brief_titles(step.changes, reload=reload)))
    if titles:
        name = step_name(step.step, reload=reload)
        whole = "; ".join(titles)
        first, *more = titles if listed and len(whole) > LONG else [whole]
        yield from ("   ", (f"{name:<11}", "dim"), " ", _sign(step.changes[-1]), f" {first}\n")
        for title in more:
            yield from (INDENT, f"{title}\n")
        if why and step.changes[0].why:
            yield from (INDENT, (f"{step.changes[0].why}\n", "dim"))
        for text in dict.fromkeys(writers.sentence(facts, change) for change in step.changes):
            if text:
                yield from (INDENT, (f"{text}\n", "yellow"))


def _brief_titles(changes: Sequence[Change], *, reload: bool) -> Iterator[str]:
    """The headlines of changes; several files are counted."""
    for kind, verb in ((WriteFile, "write"), (RemoveFile, "remove")):
        files = [change for change in changes if isinstance(change, kind)]
        if len(files) > 1:
            yield f"{verb} {few([file.path for file in files], 1)}"
            changes = [change for change in changes if change not in files]
    for change in changes:
        note = getattr(change, "note", "")
        yield diffs.headline(change, reload=reload, names=FEW) + (f" ({note})" if note else "")


def _height(parts: Sequence[Part]) -> int:
    """The number of lines."""
    return sum((part if isinstance(part, str) else part[0]).endswith("\n") for part in parts)


def _sign(change: object) -> tuple[str, str]:
    if isinstance(change, WriteFile):
        return ("~", "yellow") if change.before is not None else ("+", "green")
    if isinstance(change, RemoveFile) or (isinstance(change, Packages) and change.remove):
        return "-", "red"
    if isinstance(change, Packages) and change.install:
        return "+", "green"
    return "!", "magenta"
