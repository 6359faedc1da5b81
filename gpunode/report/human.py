"""For a person: plans as diffs with reasons, a line per host while work goes on, the chain link by link."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gpunode import diff as diffs
from gpunode.errors import GpunodeError
from gpunode.model import Event, Host, Link, Outcome, Packages, RemoveFile, StepPlan, WriteFile
from gpunode.report.about import about, notes
from gpunode.report.live import Live
from gpunode.report.objects import Part, line_style, planned

if TYPE_CHECKING:
    from gpunode.cluster.difference import Difference

SIGNS = {"ok": ("✓", "green"), "broken": ("✗", "red"), "unknown": ("·", "dim")}
WORDS = {
    "right": "right",
    "planned": "to change",
    "changed": "changed",
    "failed": "failed",
    "refused": "refused",
    "unreachable": "unreachable",
    "declined": "declined",
}

PIPED = 100  # the columns that who reads a file or a pipe is likely to have


class Human:
    def __init__(self, *, quiet: bool) -> None:
        self._out = Console(highlight=False, soft_wrap=True)
        if not self._out.is_terminal:
            self._out.width = 1000  # a file or a pipe has no width: nothing is cut
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._quiet = quiet
        self._live: Live | None = None
        self._start = time.monotonic()

    @contextmanager
    def live(self, hosts: Sequence[Host]) -> Iterator[None]:
        if self._quiet:
            yield
            return
        with Live(self._err, [host.name for host in hosts]) as self._live:
            yield
        self._live = None

    def event(self, event: Event) -> None:
        if self._live is not None:
            self._live.event(event)
        elif not self._quiet and event.type != "progress":
            where = f"{event.host}  " if event.host else ""
            self._err.print(f" [dim]{escape(where + event.message)}[/]")

    def finished(self, outcome: Outcome) -> None:
        if self._live is not None:
            self._live.finished(outcome)

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool = True) -> None:
        width = max((len(outcome.host) for outcome in outcomes), default=0)
        for outcome in outcomes:
            self._say(_planned(outcome, width, diff=diff))

    def cluster(self, context: str, differences: Sequence[Difference], *, diff: bool | None = None) -> None:
        self._say(planned(context, differences, diff=diff))

    def troubles(self, outcomes: Sequence[Outcome], width: int = 0) -> None:
        for outcome in outcomes:
            self._say(_trouble(outcome, width))

    def _say(self, parts: Iterable[Part]) -> None:
        """At once: to rich, a print costs more than a line."""
        self._out.print(Text.assemble(*parts), end="")

    def links(self, host: str, links: Sequence[Link]) -> None:
        self._out.print(f" [bold]{escape(host)}[/]")
        for link in links:
            if link.status == "unknown" and not link.text:
                continue
            sign, style = SIGNS[link.status]
            self._out.print(f"   [{style}]{sign}[/] {link.layer:<9} {escape(link.text)}")
            for word, text in (("cause", link.cause), ("fix", link.fix)):
                for number, line in enumerate(text.splitlines()):
                    label = word if number == 0 else ""
                    self._out.print(f"       [dim]{label:<9}[/] {escape(line)}")
        unknown = [link.layer for link in links if link.status == "unknown" and not link.text]
        if unknown:
            self._out.print(f"   [dim]· {', '.join(unknown)}: not judged, they follow from the above[/]")

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:  # noqa: ARG002
        if not rows:
            return
        cells = [[_cell(cell) for cell in row] for row in rows]
        used = [place for place in range(len(columns)) if any(row[place] for row in cells)]
        width = sum(max(len(columns[at]), *(len(row[at]) for row in cells)) + 2 for at in used)
        words = sum(max(_word(columns[at]), *(_word(row[at]) for row in cells)) + 2 for at in used)
        room = self._out.width if self._out.is_terminal else PIPED
        if width > 2 * room or (words - 2 > room and self._out.is_terminal):
            self._say(_listed([columns[at] for at in used], [[row[at] for at in used] for row in cells]))
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place in used:
            word = all(" " not in row[place] for row in cells)
            table.add_column(columns[place].upper(), overflow="fold", no_wrap=word)
        for row in cells:
            table.add_row(*(escape(row[place]) for place in used))
        self._out.print(table)

    def problem(self, error: GpunodeError, host: str | None = None) -> None:  # noqa: ARG002 - its words name it
        first, *rest = str(error).splitlines()
        self._err.print(f" [red]✗[/] {escape(first)}")
        for line in rest:
            self._err.print(f" {escape(line)}")

    def note(self, text: str) -> None:
        self._err.print(f" {escape(text)}")

    def ask(self, question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        self._err.print(f"{escape(question)} [bold]\\[y]es / \\[n]o:[/] ", end="")
        try:
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        except KeyboardInterrupt:  # as an answer it is a no: nothing is under way
            self._err.print()
            return False

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int = 0) -> None:
        counts = Counter(WORDS[outcome.status] for outcome in outcomes)
        parts = ", ".join(f"{count} {word}" for word, count in counts.items())
        hosts = f"{len(outcomes)} host{'' if len(outcomes) == 1 else 's'}"
        waits = f"{cluster} change{' waits' if cluster == 1 else 's wait'}"
        rest = f"; in the cluster {waits}" if cluster else ""
        self._err.print(f" {hosts} in {time.monotonic() - self._start:.1f} s: {parts}{rest}")


def _planned(outcome: Outcome, width: int, *, diff: bool) -> Iterator[Part]:
    """What is to change on a host, or that nothing is; then why not."""
    if outcome.plan:
        facts = about(outcome.facts, outcome.desired) if outcome.facts else ""
        yield from (" ", (f"{outcome.host:<{width}}", "bold"), f"  {facts}\n")
        for step in outcome.plan.steps:
            yield from _step(step, diff=diff)
        yield from _notes(outcome, 0)
    elif outcome.error is None:
        yield from (f" {outcome.host:<{width}}  ", ("= nothing to do\n", "dim"))
        yield from _notes(outcome, width)
    yield from _trouble(outcome, width)


def _cell(value: object) -> str:
    """A float is seconds, of which the kubelet tells only whole ones."""
    if isinstance(value, float):
        return f"{value:g}" if value >= 1 else "<1"
    return "" if value is None else str(value)


def _word(text: str) -> int:
    """How long the longest word is: with less room a table would cut it."""
    return max(map(len, text.split()), default=0)


def _listed(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Part]:
    """A table whose rows would take three lines of the terminal, or more, or cut words: a line for every cell."""
    _, *names = columns
    wide = max((len(name) for name in names), default=0)
    for first, *cells in rows:
        yield f" {first}\n", "bold"
        for name, cell in zip(names, cells, strict=True):
            if cell:
                yield from ((f"   {name:<{wide}}", "dim"), f"  {cell}\n")


def _notes(outcome: Outcome, width: int) -> Iterator[Part]:
    for note in notes(outcome):
        yield f"{' ' * (width + 3)}{note}\n", "yellow"


def _trouble(outcome: Outcome, width: int) -> Iterator[Part]:
    if outcome.error is None:
        return
    first, *rest = outcome.error.splitlines() or [""]
    yield from (f" {outcome.host:<{width}}  ", (f"✗ {WORDS[outcome.status]}", "red"), f"  {first}\n")
    for line in [*rest, *outcome.hint.splitlines()]:
        yield f"{' ' * (width + 5)}{line}\n"


def _step(step: StepPlan, *, diff: bool) -> Iterator[Part]:
    name = step.step
    for change in step.changes:
        yield from ("   ", (f"{name:<11}", "dim"), " ", _sign(change), f" {diffs.headline(change)}\n")
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
