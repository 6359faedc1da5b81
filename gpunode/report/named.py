"""The inventory that a person named, put into the commands that are printed: what is shown can be run as it is."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpunode.errors import GpunodeError
from gpunode.model import Event, Link, Outcome

if TYPE_CHECKING:
    from gpunode.report import Report

COMMAND = re.compile(
    r"\bgpunode (?:plan|provision|verify|label|run vectoradd|plugin (?:deploy|status|remove))\b"
)


def named(text: str, inventory: Path) -> str:
    """`text` with the inventory in each command of gpunode's in it."""
    return COMMAND.sub(lambda found: f"{found[0]} {shlex.quote(str(inventory))}", text)


class Named:
    """A report whose causes, fixes, hints and notes have the inventory in their commands."""

    def __init__(self, report: Report, inventory: Path) -> None:
        self._report = report
        self._inventory = inventory
        self.live = report.live
        self.ask = report.ask
        self.cluster = report.cluster
        self.summary = report.summary
        self.total = report.total

    def event(self, event: Event) -> None:
        self._report.event(replace(event, message=self._put(event.message)))

    def finished(self, outcome: Outcome) -> None:
        self._report.finished(self._outcome(outcome))

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool = True) -> None:
        self._report.plans([self._outcome(outcome) for outcome in outcomes], diff=diff)

    def troubles(self, outcomes: Sequence[Outcome]) -> None:
        self._report.troubles([self._outcome(outcome) for outcome in outcomes])

    def links(self, host: str, links: Sequence[Link]) -> None:
        told = [replace(link, cause=self._put(link.cause), fix=self._put(link.fix)) for link in links]
        self._report.links(host, told)

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        told = [[self._put(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        self._report.rows(kind, columns, rows if kind == "log" else told)  # a log is as its program wrote it

    def problem(self, error: GpunodeError, host: str | None = None) -> None:
        self._report.problem(GpunodeError(self._put(error.message), hint=self._put(error.hint)), host)

    def note(self, text: str) -> None:
        self._report.note(self._put(text))

    def _outcome(self, outcome: Outcome) -> Outcome:
        error = outcome.error and self._put(outcome.error)
        return replace(outcome, error=error, hint=self._put(outcome.hint))

    def _put(self, text: str) -> str:
        return named(text, self._inventory)
