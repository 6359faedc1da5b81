"""For a person: plans as diffs with reasons, a line per host while work goes on, the chain link by link."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from gpunode import diff as diffs
from gpunode.model import Event, Host, Link, Outcome, Packages, RemoveFile, StepPlan, WriteFile
from gpunode.report.about import about, notes
from gpunode.report.live import Live

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
            if outcome.plan:
                facts = about(outcome.facts, outcome.desired) if outcome.facts else ""
                self._out.print(f" [bold]{escape(outcome.host):<{width}}[/]  {escape(facts)}")
                for step in outcome.plan.steps:
                    self._step(step, diff=diff)
                self._notes(outcome, 0)
            elif outcome.error is None:
                self._out.print(f" {escape(outcome.host):<{width}}  [dim]= nothing to do[/]")
                self._notes(outcome, width)
            self.troubles([outcome], width)

    def _notes(self, outcome: Outcome, width: int) -> None:
        for note in notes(outcome):
            self._out.print(f"{' ' * (width + 3)}[yellow]{escape(note)}[/]")

    def troubles(self, outcomes: Sequence[Outcome], width: int = 0) -> None:
        for outcome in outcomes:
            if outcome.error is not None:
                self._trouble(outcome, width)

    def _trouble(self, outcome: Outcome, width: int) -> None:
        word = WORDS[outcome.status]
        first, *rest = (outcome.error or "").splitlines()
        indent = " " * (width + 3)
        self._out.print(f" {escape(outcome.host):<{width}}  [red]✗ {word}[/]  {escape(first)}")
        for line in [*rest, *outcome.hint.splitlines()]:
            self._out.print(f"{indent}  {escape(line)}")

    def _step(self, step: StepPlan, *, diff: bool) -> None:
        name = step.step
        for change in step.changes:
            sign, style = _sign(change)
            self._out.print(f"   [dim]{name:<11}[/] [{style}]{sign}[/] {escape(diffs.headline(change))}")
            name = ""
            if change.why:
                self._out.print(f"{' ' * 17}[dim]{escape(change.why)}[/]")
            note = getattr(change, "note", "")
            if note:
                self._out.print(f"{' ' * 17}[yellow]{escape(note)}[/]")
            if diff:
                for line in diffs.lines(change):
                    self._out.print(Text(" " * 17 + line, style=_diff_style(line)))

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
        cells = [["" if cell is None else str(cell) for cell in row] for row in rows]
        used = [place for place in range(len(columns)) if any(row[place] for row in cells)]
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place in used:
            table.add_column(columns[place].upper(), overflow="fold")
        for row in cells:
            table.add_row(*(escape(row[place]) for place in used))
        self._out.print(table)

    def note(self, text: str) -> None:
        self._err.print(f" {escape(text)}")

    def ask(self, question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        self._err.print(f"{escape(question)} [bold]\\[y]es / \\[n]o:[/] ", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    def summary(self, outcomes: Sequence[Outcome]) -> None:
        counts = Counter(WORDS[outcome.status] for outcome in outcomes)
        parts = ", ".join(f"{count} {word}" for word, count in counts.items())
        hosts = f"{len(outcomes)} host{'' if len(outcomes) == 1 else 's'}"
        self._err.print(f" {hosts} in {time.monotonic() - self._start:.1f} s: {parts}")


def _sign(change: object) -> tuple[str, str]:
    if isinstance(change, WriteFile):
        return ("~", "yellow") if change.before is not None else ("+", "green")
    if isinstance(change, RemoveFile) or (isinstance(change, Packages) and change.remove):
        return "-", "red"
    if isinstance(change, Packages) and change.install:
        return "+", "green"
    return "!", "magenta"


def _diff_style(line: str) -> str:
    return {"+": "green", "-": "red", "@": "cyan"}.get(line[:1], "dim")
