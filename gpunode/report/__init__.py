"""What commands print, for users or as JSON lines. The only room that imports rich.

Results go to stdout, progress and questions to stderr. With `json`, stdout has the same events and outcomes as JSON lines,
and there are no questions.
"""

import os
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

from gpunode.engine.reporter import Reporter
from gpunode.errors import Problem
from gpunode.model import Event, Outcome, Verdict
from gpunode.wording import Advice, name_pages

WIDEST = 100  # columns of prose: longer lines are hard to read


def make(*, json: bool, quiet: bool, accepted: bool = False) -> Reporter:
    """A report for users, or one of JSON lines. `accepted`: its questions are answered beforehand."""
    if json:
        from gpunode.report.lines import Lines

        return Lines(quiet=quiet)
    from gpunode.report.human import Human

    return Human(quiet=quiet, accepted=accepted)


def expand(text: str, inventory: Path) -> str:
    """`text` with the inventory in its commands."""
    return text.on(shlex.quote(str(inventory))) if isinstance(text, Advice) else text


def with_inventory(problem: Problem, inventory: Path) -> Problem:
    """The problem with the inventory in its commands."""
    what, cause, fix = (expand(text, inventory) for text in (problem.what, problem.cause, problem.fix))
    return replace(problem, what=what, cause=cause, fix=fix)


def document(text: str) -> None:
    """Print Markdown: laid out, and in a pager, where stdout is a terminal. A link to a page becomes the command that shows it."""
    text = name_pages(text)
    if not sys.stdout.isatty():
        print(text, end="")
        return
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.markdown import Markdown, TableElement
    from rich.theme import Theme

    class Whole(TableElement):
        """A table whose long words go on in the next line: one that ends with `…` could not be typed."""

        def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
            for table in super().__rich_console__(console, options):
                for column in getattr(table, "columns", ()):
                    column.overflow = "fold"
                yield table

    class Page(Markdown):
        elements: ClassVar = {**Markdown.elements, "table_open": Whole}

    os.environ.setdefault("LESS", "-FRX")  # less shows colours, and ends at once where one screen is enough
    console = Console(
        theme=Theme({"markdown.code": "cyan"})
    )  # rich's own is on black, also in a light terminal
    console.width = min(console.width, WIDEST)
    with console.pager(styles=True, links=False):
        console.print(Page(text, code_theme="ansi_dark", hyperlinks=False))


class Named:
    """A report whose causes, fixes, hints and notes have the inventory in their commands."""

    def __init__(self, report: Reporter, inventory: Path) -> None:
        self._report = report
        self._inventory = inventory
        self.live = report.live
        self.ask = report.ask
        self.cluster = report.cluster
        self.total = report.total

    def event(self, event: Event) -> None:
        self._report.event(replace(event, message=self._put(event.message)))

    def outcome(self, outcome: Outcome) -> None:
        self._report.outcome(self._outcome(outcome))

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool | None = None) -> None:
        self._report.plans([self._outcome(outcome) for outcome in outcomes], diff=diff)

    def failures(self, outcomes: Sequence[Outcome]) -> None:
        self._report.failures([self._outcome(outcome) for outcome in outcomes])

    def links(self, host: str, links: Sequence[Verdict]) -> None:
        self._report.links(host, [replace(link, problem=self._problem(link.problem)) for link in links])

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        cells = [[self._put(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        self._report.rows(kind, columns, cells)

    def problem(self, problem: Problem, host: str | None = None) -> None:
        self._report.problem(with_inventory(problem, self._inventory), host)

    def note(self, text: str) -> None:
        self._report.note(self._put(text))

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int | None = 0, after: str = "") -> None:
        self._report.summary(outcomes, cluster=cluster, after=self._put(after))

    def _outcome(self, outcome: Outcome) -> Outcome:
        return replace(outcome, problem=self._problem(outcome.problem))

    def _problem(self, problem: Problem | None) -> Problem | None:
        return problem and with_inventory(problem, self._inventory)

    def _put(self, text: str) -> str:
        return expand(text, self._inventory)
