"""A run as one HTML file: what the terminal showed, by cause and by host, with its timeline."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpunode import __version__
from gpunode.errors import GpunodeError, UsageError
from gpunode.model import Event, Host, Outcome, Verdict
from gpunode.report.blocks import shown, summed
from gpunode.report.cards import Card, causes, styled
from gpunode.report.objects import planned
from gpunode.report.plain import Part, lines, plain

if TYPE_CHECKING:
    from gpunode.cluster.objects.difference import Difference
    from gpunode.engine.listener import Listener

BEGINS = b'<!doctype html><html lang="en">'  # every page, as page.html.j2 renders
TITLES = {"verified": "Proof", "vectoradd": "Vectors added on every GPU", "why": "Choices", "gate": "Gates"}


def opened(report: Listener, path: Path, title: str) -> Page:
    """The page to be written there. Raises UsageError where it cannot be, or would replace a file that is no page."""
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise UsageError(
            f"--html {path}: no file can be written there", hint="Name a file in a folder that is there."
        )
    try:
        free = _replaceable(path)
    except OSError as error:
        raise UsageError(
            f"--html {path}: cannot be read: {error.strerror}", hint="Name another file."
        ) from error
    if not free:
        raise UsageError(
            f"--html {path}: there is a file that gpunode did not write",
            hint="Name another file, or remove that one.",
        )
    return Page(report, path, title)


def _replaceable(path: Path) -> bool:
    """Whether nothing but an earlier page is lost when a page is written there. Raises OSError."""
    if not path.exists():
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(BEGINS)) == BEGINS


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("gpunode", "report"), autoescape=True, finalize=_safe)
    return environment.get_template("page.html.j2")


def _safe(value: object) -> object:
    """A value as the page shows it: text without secrets and control characters, but for the end of its line."""
    if not isinstance(value, str) or hasattr(value, "__html__"):  # markup of the template's own
        return value
    return plain(value.removesuffix("\n")) + value[len(value.removesuffix("\n")) :]


class Page:
    """A report that passes everything on to another one, and writes it to a file at the end."""

    def __init__(self, report: Listener, path: Path, title: str) -> None:
        self._report, self._path = report, path
        self._start = time.monotonic()
        self._cards: dict[str, Card] = {}
        self._view: dict[str, Any] = {
            "title": title,
            "version": __version__,
            "when": time.strftime("%Y-%m-%d %H:%M %Z"),
            "summary": [],
            "tables": [],
            "errors": [],
            "notes": [],
        }
        self._cluster: list[Part] = []
        self._changes = 0
        self.ask = report.ask

    @contextmanager
    def live(self, hosts: Sequence[Host]) -> Iterator[None]:
        for host in hosts:
            self._card(host.name)
        with self._report.live(hosts):
            yield

    def event(self, event: Event) -> None:
        self._report.event(event)
        if event.host and event.type != "progress":
            self._card(event.host).events.append((self._now(), event.message))

    def finished(self, outcome: Outcome) -> None:
        self._report.finished(outcome)
        self._keep([outcome])

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool = True) -> None:
        self._report.plans(outcomes, diff=diff)
        self._keep(outcomes)
        for outcome in outcomes:
            self._card(outcome.host).shown = outcome

    def cluster(self, context: str, differences: Sequence[Difference], *, diff: bool | None = None) -> None:
        self._report.cluster(context, differences, diff=diff)
        self._cluster += planned(context, differences, diff=True)
        self._changes += len(differences)

    def failures(self, outcomes: Sequence[Outcome]) -> None:
        self._report.failures(outcomes)
        self._keep(outcomes)

    def links(self, host: str, links: Sequence[Verdict]) -> None:
        self._report.links(host, links)
        self._card(host).links = tuple(links)

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self._report.rows(kind, columns, rows)
        if kind == "verified":
            for host, _, result, proof in rows:
                self._card(str(host)).result = (str(result), str(proof))
        if rows:
            cells = [[shown(one) for one in row] for row in rows]
            title = TITLES.get(kind, kind.capitalize())
            tables = self._view["tables"]
            same = next((one for one in tables if (one["title"], one["columns"]) == (title, columns)), None)
            if same is None:
                tables.append({"title": title, "columns": columns, "rows": cells})
            else:  # they come host by host
                same["rows"] += cells

    def problem(self, error: GpunodeError, host: str | None = None) -> None:
        self._report.problem(error, host)
        self.failed(error)

    def failed(self, error: GpunodeError) -> None:
        """An error that ends the command; the command line reports it."""
        self._view["errors"].append([line.strip() for line in lines(str(error))])

    def note(self, text: str) -> None:
        self._report.note(text)
        self._view["notes"].append(text)

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int | None = 0) -> None:
        self._report.summary(outcomes, cluster=cluster)
        self._keep(outcomes)
        self._view["summary"].append(summed(outcomes, self._now(), cluster))

    def total(self, text: str, numbers: Mapping[str, object]) -> None:
        self._report.total(text, numbers)
        self._view["summary"].append(text)

    def write(self) -> None:
        """Write the file, whole or not at all. Raises OSError."""
        draft = self._path.with_name(f".{self._path.name}.gpunode")
        draft.write_text(self.text(), encoding="utf-8")
        draft.replace(self._path)

    def text(self) -> str:
        """The file's text."""
        cards = list(self._cards.values())
        page = {
            **self._view,
            "causes": causes(cards),
            "cards": sorted(cards, key=lambda card: card.style != "red"),
            "statuses": list(dict.fromkeys(card.status for card in cards)),
            "cluster": styled(self._cluster),
            "changes": f"{self._changes} change{'s' if self._changes > 1 else ''}"
            if self._changes
            else "up to date",
        }
        return str(_template().render(page=page))

    def _card(self, name: str) -> Card:
        return self._cards.setdefault(name, Card(name))

    def _keep(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            card = self._card(outcome.host)
            card.outcome, card.ended = outcome, self._now()

    def _now(self) -> float:
        return round(time.monotonic() - self._start, 3)
