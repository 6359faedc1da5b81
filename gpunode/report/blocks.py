"""A host's plan, its chain and its failure as lines of styled text, for a terminal or a page. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpunode.host import diff as diffs
from gpunode.model import Outcome, Packages, RemoveFile, StepPlan, Verdict, WriteFile
from gpunode.report import disturbs
from gpunode.report.headline import headline, notes, standing
from gpunode.report.objects import line_style
from gpunode.report.plain import Part, lines

SIGNS = {"ok": ("✓", "green"), "broken": ("✗", "red"), "unknown": ("·", "dim")}
WORDS = {
    "right": "right",
    "broken": "broken",
    "planned": "to change",
    "differs": "different",
    "changed": "changed",
    "failed": "failed",
    "refused": "refused",
    "unreachable": "unreachable",
    "declined": "declined",
}


def summed(outcomes: Sequence[Outcome], seconds: float, cluster: int | None) -> str:
    """The last line: hosts by status, and what waits in the cluster (None: not checked)."""
    counts = Counter(WORDS[standing(outcome)] for outcome in outcomes)
    parts = ", ".join(f"{count} {word}" for word, count in counts.items())
    hosts = f"{len(outcomes)} host{'' if len(outcomes) == 1 else 's'}"
    waits = f"{cluster} change{' waits' if cluster == 1 else 's wait'}"
    rest = "; cluster not checked" if cluster is None else f"; in the cluster {waits}" if cluster else ""
    return f"{hosts} in {seconds:.1f} s: {parts}{rest}"


def alike(outcomes: Sequence[Outcome], *, diff: bool) -> list[Outcome]:
    """One outcome for each distinct plan, with the names of all its hosts."""
    groups: dict[tuple[Part, ...], list[Outcome]] = {}
    for outcome in outcomes:
        nameless = outcome if outcome.error else replace(outcome, host="")
        groups.setdefault(tuple(plan_lines(nameless, 0, diff=diff)), []).append(outcome)
    return [replace(same[0], host=", ".join(one.host for one in same)) for same in groups.values()]


def plan_lines(outcome: Outcome, width: int, *, diff: bool) -> Iterator[Part]:
    """A host's plan or `up to date`, its notes, and its error."""
    if outcome.plan:
        facts = headline(outcome.facts, outcome.desired) if outcome.facts else ""
        yield from (" ", (f"{outcome.host:<{width}}", "bold"), f"  {facts}\n")
        reload = bool(outcome.disturbs and outcome.disturbs.reload)
        for step in outcome.plan.steps:
            yield from _step(step, diff=diff, reload=reload)
        if outcome.disturbs:
            yield from ("   ", ("disturbs   ", "dim"), f"   {disturbs.sentence(outcome.disturbs)}\n")
        yield from _notes(outcome, 0)
    elif outcome.error is None:
        broken = ("✗ broken, with nothing to change\n", "red")
        state = broken if standing(outcome) == "broken" else ("= up to date\n", "dim")
        yield from (f" {outcome.host:<{width}}  ", state)
        yield from _notes(outcome, width)
    yield from failure(outcome, width)


def chain(host: str, links: Sequence[Verdict]) -> Iterator[Part]:
    """The chain, link by link; links after a broken one by name only."""
    yield from (" ", (host, "bold"), "\n")
    for link in links:
        if link.status == "unknown" and not link.text:
            continue
        yield from ("   ", SIGNS[link.status], f" {link.layer:<9} {link.text}\n")
        for word, text in (("cause", link.cause), ("fix", link.fix)):
            for number, line in enumerate(lines(text)):
                yield from ("       ", (f"{word if number == 0 else '':<9}", "dim"), f" {line}\n")
    unknown = [link.layer for link in links if link.status == "unknown" and not link.text]
    if unknown:
        yield f"   · {', '.join(unknown)}: not checked, they follow from the above\n", "dim"


def chain_in_short(host: str, links: Sequence[Verdict]) -> Iterator[Part]:
    """A chain that holds, in one line."""
    kept = f" {len(links)} links hold, {links[0].layer} to {links[-1].layer}" if links else ""
    yield from (" ", (host, "bold"), "  ", SIGNS["ok"], f"{kept}\n")


def shown(value: object) -> str:
    """The text of a cell. Floats are seconds; below one they are <1, since the kubelet reports whole seconds."""
    if isinstance(value, float):
        return f"{value:g}" if value >= 1 else "<1"
    return "" if value is None else str(value)


def _notes(outcome: Outcome, width: int) -> Iterator[Part]:
    for note in notes(outcome):
        yield f"{' ' * (width + 3)}{note}\n", "yellow"


def failure(outcome: Outcome, width: int) -> Iterator[Part]:
    if outcome.error is None:
        return
    first, *rest = lines(outcome.error) or [""]
    yield from (f" {outcome.host:<{width}}  ", (f"✗ {WORDS[outcome.status]}", "red"), f"  {first}\n")
    for line in [*rest, *lines(outcome.hint)]:
        yield f"{' ' * (width + 5)}{line}\n"


def _step(step: StepPlan, *, diff: bool, reload: bool) -> Iterator[Part]:
    name = "modules" if reload and step.step == "reboot" else step.step
    for change in step.changes:
        words = diffs.headline(change, reload=reload)
        yield from ("   ", (f"{name:<11}", "dim"), " ", _sign(change), f" {words}\n")
        name = ""
        for text, style in ((change.why, "dim"), (getattr(change, "note", ""), "yellow")):
            if text:
                yield f"{' ' * 17}{text}\n", style
        for line in diffs.lines(change) if diff else ():
            yield f"{' ' * 17}{line}\n", line_style(line)


def _sign(change: object) -> tuple[str, str]:
    if isinstance(change, WriteFile):
        return ("~", "yellow") if change.before is not None else ("+", "green")
    if isinstance(change, RemoveFile) or (isinstance(change, Packages) and change.remove):
        return "-", "red"
    if isinstance(change, Packages) and change.install:
        return "+", "green"
    return "!", "magenta"
