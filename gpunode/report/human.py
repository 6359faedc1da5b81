"""The report for users: plans as diffs with reasons, a live line per host, the chain link by link."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from gpunode import diff as diffs
from gpunode.errors import GpunodeError
from gpunode.model import Event, Host, Link, Outcome, Packages, RemoveFile, StepPlan, WriteFile
from gpunode.report import disturbs
from gpunode.report.headline import headline, notes
from gpunode.report.live import Live
from gpunode.report.objects import line_style, planned
from gpunode.report.plain import Part, lines, plain
from gpunode.report.screen import screen, words, wrapped

if TYPE_CHECKING:
    from gpunode.cluster.objects.difference import Difference

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

PIPED = 100  # assumed columns of a file or a pipe


class Human:
    def __init__(self, *, quiet: bool) -> None:
        self._out = screen()
        if not self._out.is_terminal:
            self._out.width = 1000  # files and pipes have no width: cut nothing
        self._err = screen(stderr=True)
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
            self._err_print((f" {where}{event.message}\n", "dim"))

    def finished(self, outcome: Outcome) -> None:
        if self._live is not None:
            self._live.finished(outcome)

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool = True) -> None:
        width = max((len(outcome.host) for outcome in outcomes), default=0)
        for outcome in _alike(outcomes, diff=diff):
            self._print(_planned(outcome, width, diff=diff))
        for number, line in enumerate(disturbs.whose(outcomes)):
            self._print(((" disturbs  ", "bold") if number == 0 else "           ", f"{line}\n"))

    def cluster(self, context: str, differences: Sequence[Difference], *, diff: bool | None = None) -> None:
        self._print(planned(context, differences, diff=diff))

    def failures(self, outcomes: Sequence[Outcome], width: int = 0) -> None:
        for outcome in outcomes:
            self._print(_failure(outcome, width))

    def _print(self, parts: Iterable[Part], to: Console | None = None) -> None:
        """One print for all: each print of rich costs more than a line."""
        console = to or self._out
        text = words(*parts)
        console.print(wrapped(text, console.width) if console.is_terminal else text, end="")

    def _err_print(self, *parts: Part) -> None:
        self._print(parts, self._err)

    def links(self, host: str, links: Sequence[Link]) -> None:
        self._print(_links(host, links))

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:  # noqa: ARG002
        if not rows:
            return
        cells = [[plain(_cell(cell)) for cell in row] for row in rows]
        used = [place for place in range(len(columns)) if any(row[place] for row in cells)]
        width = sum(max(len(columns[at]), *(len(row[at]) for row in cells)) + 2 for at in used)
        longest = sum(max(_word(columns[at]), *(_word(row[at]) for row in cells)) + 2 for at in used)
        room = self._out.width if self._out.is_terminal else PIPED
        if width > 2 * room or (longest - 2 > room and self._out.is_terminal):
            self._print(_listed([columns[at] for at in used], [[row[at] for at in used] for row in cells]))
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place in used:
            word = all(" " not in row[place] for row in cells)
            table.add_column(columns[place].upper(), overflow="fold", no_wrap=word)
        for row in cells:
            table.add_row(*(words(row[place]) for place in used))
        self._out.print(table)

    def problem(self, error: GpunodeError, host: str | None = None) -> None:  # noqa: ARG002 - the message names it
        first, *rest = lines(str(error))
        self._err_print(
            " ", ("✗", "red"), f" {first}\n", *(f"   {line.removeprefix('  ')}\n" for line in rest)
        )

    def note(self, text: str) -> None:
        self._err_print(f" {text}\n")

    def ask(self, question: str) -> bool:
        if not sys.stdin.isatty():
            return False
        self._err_print(f"{question} ", ("[y]es / [n]o:", "bold"), " ")
        try:
            return sys.stdin.readline().strip().lower() in ("y", "yes")
        except KeyboardInterrupt:
            self._err.print()
            raise

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int | None = 0) -> None:
        counts = Counter(WORDS[outcome.status] for outcome in outcomes)
        parts = ", ".join(f"{count} {word}" for word, count in counts.items())
        hosts = f"{len(outcomes)} host{'' if len(outcomes) == 1 else 's'}"
        waits = f"{cluster} change{' waits' if cluster == 1 else 's wait'}"
        rest = "; cluster not checked" if cluster is None else f"; in the cluster {waits}" if cluster else ""
        self._err_print(f" {hosts} in {time.monotonic() - self._start:.1f} s: {parts}{rest}\n")

    def total(self, text: str, numbers: Mapping[str, object]) -> None:  # noqa: ARG002 - the text has them
        self.note(text)


def _alike(outcomes: Sequence[Outcome], *, diff: bool) -> list[Outcome]:
    """One outcome for each distinct plan, with the names of all its hosts."""
    groups: dict[tuple[Part, ...], list[Outcome]] = {}
    for outcome in outcomes:
        nameless = outcome if outcome.error else replace(outcome, host="")
        groups.setdefault(tuple(_planned(nameless, 0, diff=diff)), []).append(outcome)
    return [replace(same[0], host=", ".join(one.host for one in same)) for same in groups.values()]


def _planned(outcome: Outcome, width: int, *, diff: bool) -> Iterator[Part]:
    """A host's plan or `nothing to do`, its notes, and its error."""
    if outcome.plan:
        facts = headline(outcome.facts, outcome.desired) if outcome.facts else ""
        yield from (" ", (f"{outcome.host:<{width}}", "bold"), f"  {facts}\n")
        for step in outcome.plan.steps:
            yield from _step(step, diff=diff)
        if outcome.disturbs:
            yield from ("   ", ("disturbs   ", "dim"), f"   {disturbs.sentence(outcome.disturbs)}\n")
        yield from _notes(outcome, 0)
    elif outcome.error is None:
        yield from (f" {outcome.host:<{width}}  ", ("= nothing to do\n", "dim"))
        yield from _notes(outcome, width)
    yield from _failure(outcome, width)


def _links(host: str, links: Sequence[Link]) -> Iterator[Part]:
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


def _cell(value: object) -> str:
    """The text of a cell. Floats are seconds; below one they are <1, since the kubelet reports whole seconds."""
    if isinstance(value, float):
        return f"{value:g}" if value >= 1 else "<1"
    return "" if value is None else str(value)


def _word(text: str) -> int:
    """Length of the longest word, which is the narrowest that a column can be."""
    return max(map(len, text.split()), default=0)


def _listed(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Part]:
    """A table that is too wide for the terminal, as a record of lines per row."""
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


def _failure(outcome: Outcome, width: int) -> Iterator[Part]:
    if outcome.error is None:
        return
    first, *rest = lines(outcome.error) or [""]
    yield from (f" {outcome.host:<{width}}  ", (f"✗ {WORDS[outcome.status]}", "red"), f"  {first}\n")
    for line in [*rest, *lines(outcome.hint)]:
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
