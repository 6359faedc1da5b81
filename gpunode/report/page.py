"""A run as one file: what the terminal showed, by cause and by host, with its timeline. Here as HTML; `junit` has its links as XML."""

import getpass
import re
import socket
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from markupsafe import Markup, escape

from gpunode import __version__
from gpunode.cluster.objects.difference import Difference
from gpunode.engine.batch import NOT_BEGUN
from gpunode.engine.chain import find_manual_fix
from gpunode.engine.member import PAUSED
from gpunode.engine.reporter import Brief, Headline, Reporter
from gpunode.engine.shown import headline, show_host, status_of
from gpunode.errors import Problem
from gpunode.inventory.starter import ranges
from gpunode.local import files
from gpunode.model import Event, Gpu, Host, Outcome, Verdict
from gpunode.report.chains import UUID, chain
from gpunode.report.objects import cluster_lines
from gpunode.report.plain import Indent, Part, lines, one_line, plain
from gpunode.report.plans import (
    WORDS,
    failure,
    plan_lines,
    step_name,
    summary_text,
    without_processes,
)
from gpunode.report.runs import cell_text, without_same_node
from gpunode.wording import Command, brief, moment, several

BAD = ("failed", "refused", "unreachable", "broken", "not verified")
UNPROVEN = "not verified in this run"  # as its batch did not begin
STYLES = {
    "to change": "yellow",
    "changed": "green",
    "OK": "green",
    "up to date": "green",
    "verified": "green",
    "in use": "green",
}


@dataclass(frozen=True, slots=True)
class Styled:
    """Text with the name of its style; "": none."""

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """A line, and how many columns it is indented by."""

    indent: int
    parts: tuple[Styled, ...]


@dataclass(frozen=True, slots=True)
class Span:
    """A host's activity from `begin` on, in seconds since the run began; no text: nothing."""

    begin: float
    seconds: float
    text: str = ""


@dataclass
class Card:
    """Everything reported of one host."""

    name: str
    outcome: Outcome | None = None
    shown: Outcome | None = None  # with the plan that was shown
    links: Sequence[Verdict] = ()
    result: tuple[str, str] | None = None  # of provision: whether it is verified, and what shows it
    code: str = ""  # why it is not verified
    events: list[tuple[float, str]] = field(default_factory=list)  # seconds, message
    ended: float = 0.0

    @property
    def status(self) -> str:
        """In one word or two."""
        if self.links:
            if any(link.status == "broken" for link in self.links):
                return "broken"
            if any(link.lacks_right for link in self.links):
                return "partly checked" if any(link.status == "ok" for link in self.links) else "not checked"
            return WORDS["planned"] if any(link.is_pending for link in self.links) else "OK"
        if self.outcome is not None and (self.outcome.problem or self.result is None):
            return WORDS[status_of(self.outcome)]
        return self.result[0] if self.result else "not reached"

    @property
    def style(self) -> str:
        return "red" if self.status in BAD else STYLES.get(self.status, "dim")

    @property
    def cause(self) -> str:
        """Why it is so, without what differs from host to host."""
        if link := self._wrong:
            return f"{link.layer}: {first(link.cause or link.text)}"
        if self.outcome is not None and self.outcome.problem:
            return first(self.outcome.why)
        if self.result is not None:
            return "" if self.status == "verified" else first(self.result[1])
        steps = self.outcome.plan.steps if self.outcome and self.outcome.plan else ()
        reload = bool(self.outcome and self.outcome.disturbs and self.outcome.disturbs.reload)
        return ", ".join(step_name(step.step, reload=reload) for step in steps if step.changes)

    @property
    def fix(self) -> str:
        """What to do about it; "" where nothing is known."""
        seen = self._wrong or self.outcome
        return one_line(brief(seen.problem.fix)) if seen and seen.problem else ""

    @property
    def _wrong(self) -> Verdict | None:
        """The link that is broken, else one that could not be judged."""
        for link in sorted(self.links, key=lambda link: link.status != "broken"):
            if link.status == "broken" or link.lacks_right:
                return link
        return find_manual_fix(self.outcome) if self.outcome and self.status == "broken" else None

    @property
    def headline(self) -> str:
        seen = self.outcome or self.shown
        return headline(seen.facts, seen.desired) if seen and seen.facts else ""

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        return self.outcome.facts.gpus if self.outcome and self.outcome.facts else ()

    def lines(self, *, diff: bool | None = True) -> list[Line]:
        """Its chain, its plan, or why there is none, as the terminal shows them; without the line of its name. `diff`: as of `plan_lines`."""
        if self.links:
            return with_styles(drop_first_line(chain(self.name, self.links)))
        planned = self.shown or self.outcome
        if planned is None:
            return []
        parts = list(plan_lines(without_processes(show_host(planned)), 0, diff=diff))
        parts = drop_first_line(parts) if planned.plan or not planned.problem else parts
        if planned.plan and self.result is not None:
            parts = [(f"   {self._plan_end}\n", "bold"), *parts]
        if self.outcome and self.outcome.problem and self.outcome.problem != planned.problem:
            parts += failure(show_host(self.outcome), 0)
        return with_styles(parts)

    @property
    def _plan_end(self) -> str:
        """Of a run: whether the plan below was carried out."""
        if self.outcome is None or not self.outcome.applied:
            return "none of these changes was made"
        return f"{'' if self.outcome.status == 'changed' else 'some of '}these changes were made"

    @property
    def spans(self) -> list[Span]:
        """Its timeline: what it did until it did the next thing; none of a host that was only probed."""
        starts = [at for at, _ in self.events]
        if len(starts) < 2 or self.status in ("refused", "unreachable"):
            return []
        ends = [*starts[1:], max(self.ended, starts[-1])]
        did = [
            Span(at, round(end - at, 3), message)
            for (at, message), end in zip(self.events, ends, strict=True)
        ]
        return [Span(0.0, round(starts[0], 3)), *did]


@dataclass(frozen=True, slots=True)
class Cause:
    """Hosts that ended alike for the same reason."""

    status: str
    style: str
    cause: str
    fix: str
    hosts: list[str]

    @property
    def names(self) -> list[str]:
        return ranges(self.hosts)


@dataclass(frozen=True, slots=True)
class Group:
    """Hosts of one machine's kind with the same plan and end; of chains each host is one of its own."""

    cards: list[Card]

    @property
    def name(self) -> str:
        return ", ".join(ranges([card.name for card in self.cards]))


def groups(cards: Iterable[Card]) -> list[Group]:
    """The cards of equal hosts together, what is bad first."""
    alike: dict[object, list[Card]] = {}
    for card in sorted(cards, key=lambda card: card.style != "red"):
        own = card.links or card.style == "red"
        key = card.name if own else (card.status, card.headline, tuple(card.lines()))
        alike.setdefault(key, []).append(card)
    return [Group(same) for same in alike.values()]


def causes(cards: Iterable[Card]) -> list[Cause]:
    """The fleet by cause: what is bad first, then by number of hosts."""
    alike: dict[tuple[str, ...], list[Card]] = {}
    for card in cards:
        cause, fix = (text.replace(card.name, "HOST") for text in (card.cause, card.fix))
        alike.setdefault((card.status, card.style, cause, fix), []).append(card)
    order = sorted(alike.values(), key=lambda same: (same[0].style != "red", -len(same)))
    return [_cause(same) for same in order]


def _cause(same: Sequence[Card]) -> Cause:
    """Of hosts that differ in their names alone, which are HOST then."""
    card, names = same[0], [card.name for card in same]
    texts = (card.cause, card.fix)
    cause, fix = texts if len(same) == 1 else (text.replace(card.name, "HOST") for text in texts)
    return Cause(card.status, card.style, cause, fix, names)


def with_styles(parts: Iterable[Part]) -> list[Line]:
    """The parts by line, with the names of their styles. A change's lines are indented less than on a terminal: a phone has few columns."""
    whole, line = list[Line](), list[Styled]()
    for part in parts:
        line.append(
            Styled(NARROW if isinstance(part, Indent) else part) if isinstance(part, str) else Styled(*part)
        )
        if line[-1].text.endswith("\n"):
            text = "".join(each.text for each in line)
            whole.append(Line(head.end() if (head := HEAD.match(text)) else 0, tuple(line)))
            line = []
    return whole


def drop_first_line(parts: Iterable[Part]) -> list[Part]:
    rest = list(parts)
    ends = [at for at, part in enumerate(rest) if (part if isinstance(part, str) else part[0]).endswith("\n")]
    return rest[ends[0] + 1 :] if ends else []


def first(text: str) -> str:
    return plain(next(iter(text.splitlines()), ""))


NARROW = " " * 6
HEAD = re.compile(r" *(?:(?:cause|fix) +)?")  # before a line's text
ALONE = re.compile(r"^gpunode [a-z-]+(?: --?[\w-]+(?: [^\s#;`]+)?)*(?=\s+#|$)")  # a fix that is a command
SAME = ("changes", "disturbed")  # columns of batches, which often have the same hosts
LONG = 40  # rows of a table that is folded
SCREEN = 60  # lines of plans; of more, reasons and diffs are folded
TITLES = {
    "batch": "Batches",
    "object": "Made in the cluster",
    "verified": "Proof",
    "vectoradd": "GPUs that are not proven",
    "why": "Choices",
    "gate": "Gates",
    "time": "Time by phase",
}


def open_page(kind: "type[Page]", report: Reporter, path: Path, title: str) -> "Page":
    """The page to be written there. Raises UsageError where it cannot be, or would replace a file that is no page."""
    other = "there is a file that gpunode did not write"
    files.check_replaceable(kind.option, path, lambda begin: begin.startswith(kind.begins), other)
    return kind(report, path, title)


@cache
def _template() -> Any:
    from jinja2 import Environment, PackageLoader

    environment = Environment(loader=PackageLoader("gpunode", "report"), autoescape=True, finalize=_safe)
    environment.filters["code"] = _with_code
    environment.filters["uuids"] = _with_short_uuids
    return environment.get_template("page.html.j2")


def _safe(value: object) -> object:
    """A value as the page shows it: text without secrets and control characters, but for the end of its line."""
    if not isinstance(value, str) or hasattr(value, "__html__"):  # markup of the template's own
        return value
    return plain(value.removesuffix("\n")) + value[len(value.removesuffix("\n")) :]


def _cell(value: object) -> str:
    return ", ".join(ranges(value)) if isinstance(value, list) else cell_text(value)


def _without_empty(table: Mapping[str, Any]) -> dict[str, Any]:
    """The table without columns in which no row says anything, or in which a batch's hosts are named again."""
    columns, rows = table["columns"], table["rows"]
    used = [
        place
        for place, column in enumerate(columns)
        if any(row[place] for row in rows)
        and not (column in SAME and all(row[place] == row[1] for row in rows))
    ]
    return {
        "title": table["title"],
        "columns": ["effect" if columns[place] == "words" else columns[place] for place in used],
        "rows": [[row[place] for place in used] for row in rows],
        "folded": len(rows) > LONG,
    }


def _cause_column(cards: Iterable[Card]) -> str:
    """The name of the column of causes; "": no host has any."""
    if any(card.cause and (card.links or card.result or card.style == "red") for card in cards):
        return "cause"
    return "changes" if any(card.cause for card in cards) else ""


def what_happened(cards: Iterable[Card], batch: tuple[int, int], *, ended: bool, left: bool) -> str:
    """The first line of a run that did not finish: `Paused after batch 1 of 5: 1 host verified, 7 not begun.`; "" for any other. No
    batch failed where all that is wrong was refused before them.
    `batch`: the last that began, and of how many; `ended`: the run reported its end; `left`: it reported unfinished hosts."""
    cards = list(cards)
    codes = {card.code for card in cards}
    failed = any(card.style == "red" for card in cards)
    if not (left or (batch[1] and not ended)):
        return ""
    word = "Aborted" if not ended else "Paused" if PAUSED in codes else "Failed" if failed else "Stopped"
    refused = failed and all(card.status == "refused" for card in cards if card.style == "red")
    where = f" {'in' if word in ('Aborted', 'Failed') else 'after'} batch {batch[0]} of {batch[1]}"
    counts = Counter("not begun" if card.status == UNPROVEN else card.status for card in cards)
    (state, number), *rest = counts.most_common() if "verified" not in counts else _first(counts, "verified")
    hosts = ", ".join([f"{several(number, 'host')} {state}", *(f"{count} {name}" for name, count in rest)])
    if word == "Failed" and refused and "not begun" not in counts:
        return f"{hosts}."
    return f"{word}{where if batch[1] else ''}: {hosts}."


def _first(counts: Counter[str], name: str) -> list[tuple[str, int]]:
    """The counts, this one first."""
    return sorted(counts.items(), key=lambda item: item[0] != name)


def _with_code(text: str) -> Markup:
    """A sentence with its commands, which stand in backquotes or are all of a fix, as code."""
    pieces = re.split(r"`([^`]+)`", ALONE.sub(r"`\g<0>`", plain(text)))
    return Markup("").join(
        Markup("<code>{}</code>").format(piece) if number % 2 else escape(piece)
        for number, piece in enumerate(pieces)
    )


def _with_short_uuids(text: str) -> Markup:
    """The text with UUIDs of GPUs whose end a narrow screen leaves out: eight digits tell them apart."""
    begin = 0
    shown = Markup("")
    text = plain(text)
    for match in UUID.finditer(text):
        whole = Markup('<span class="uuid">{}<span>{}</span></span>')
        shown += escape(text[begin : match.start()]) + whole.format(match[1], match[0].removeprefix(match[1]))
        begin = match.end()
    return shown + escape(text[begin:])


class Page:
    """A report that passes everything on to another one, and writes it to a file at the end. `option`: of the command line;
    `begins`: what every such file begins with."""

    option, begins = "--html", b'<!doctype html><html lang="en">'  # as page.html.j2 renders

    def __init__(self, report: Reporter, path: Path, title: str) -> None:
        self._report, self.path = report, path
        self._start = time.monotonic()
        self._cards: dict[str, Card] = {}
        self._view: dict[str, Any] = {
            "title": title,
            "version": __version__,
            "when": moment(time.time()),
            "by": f"{getpass.getuser()}@{socket.gethostname()}",
            "context": "",
            "summary": [],
            "tables": [],
            "errors": [],
            "notes": [],
        }
        self.resume = str(Command("resume"))  # with the inventory, where that is not the usual one
        self._batch = (0, 0)  # the last that began, and of how many
        self._ended = self._left = False  # see `what_happened`
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
        if "batches" in event.data:
            self._batch = int(str(event.data["batch"])), int(str(event.data["batches"]))
        if event.host and event.type != "progress":
            self._card(event.host).events.append((self._now(), event.message))

    def outcome(self, outcome: Outcome) -> None:
        self._report.outcome(outcome)
        self._keep([outcome])
        self._card(outcome.host).ended = self._now()

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool | None = None) -> None:
        self._report.plans(outcomes, diff=diff)
        self._keep(outcomes)
        for outcome in outcomes:
            self._card(outcome.host).shown = outcome

    def cluster(self, context: str, differences: Sequence[Difference], *, diff: bool | None = None) -> None:
        self._report.cluster(context, differences, diff=diff)
        self._view["context"] = context
        self._cluster += cluster_lines(context, differences, diff=True)
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
            rows = [self._keep_proof(columns, row) for row in rows]
        if kind == "object" and self._cluster:  # its plan has them
            return
        columns, rows = without_same_node(kind, columns, rows)
        if kind == "vectoradd":  # the proof has those that passed
            rows = [row for row in rows if row[columns.index("result")] != "passed"]
        if rows and kind != "cause":  # the page groups its hosts itself
            cells = [[_cell(cell) for cell in row] for row in rows]
            title = TITLES.get(kind, kind.capitalize())
            tables = self._view["tables"]
            same = next(
                (table for table in tables if (table["title"], table["columns"]) == (title, columns)), None
            )
            if same is None:
                tables.append({"title": title, "columns": columns, "rows": cells})
            else:  # they come host by host
                same["rows"] += cells

    def _keep_proof(self, columns: Sequence[str], row: Sequence[object]) -> Sequence[object]:
        """Keep how a run ended on a host. The row, as the page has it: what was not begun is not bad."""
        cells: dict[str, Any] = dict(zip(columns, row, strict=True))
        card, code = self._card(str(cells["host"])), str.__str__(cells.get("code", ""))
        result = UNPROVEN if code in NOT_BEGUN else str(cells["result"])
        card.result, card.code = (result, str(cells["proof"])), code
        return list({**cells, "result": result}.values())

    def problem(self, problem: Problem, host: str | None = None) -> None:
        self._report.problem(problem, host)
        self.add_failure(problem)

    def add_failure(self, problem: Problem) -> None:
        """A problem that ends the command; the command line reports it."""
        self._view["errors"].append(
            [line.strip() for line in [*lines(str(problem)), *lines(brief(problem.fix))]]
        )

    def note(self, text: str) -> None:
        self._report.note(text)
        if isinstance(text, Headline):
            self._view["summary"].append(f"Planned: {text}")
        elif not isinstance(text, Brief):
            self._view["notes"].append(text)

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int | None = 0, after: str = "") -> None:
        self._report.summary(outcomes, cluster=cluster, after=after)
        self._keep(outcomes)
        self._ended, self._left = True, bool(after)
        proofs = Counter(card.status for card in self._cards.values() if card.result)
        self._view["summary"].insert(0, summary_text(outcomes, self._now(), cluster, proofs))
        if after and any(card.style == "red" for card in self._cards.values()):  # else the first line has it
            self._view["notes"].append(after)

    def total(self, text: str, numbers: Mapping[str, object]) -> None:
        self._report.total(text, numbers)
        self._view["summary"].append(text)

    def write(self) -> None:
        """Write the file, whole or not at all. Raises OSError."""
        files.replace(self.path, self.text())

    def text(self) -> str:
        cards = list(self._cards.values())
        together = groups(cards)
        waits = [group.name for group in together if group.cards[0].status == WORDS["planned"]]
        happened = what_happened(cards, self._batch, ended=self._ended, left=self._left)
        fix = "Fix the cause, then" if any(card.style == "red" for card in cards) else ""
        page = {
            **self._view,
            "tables": [_without_empty(table) for table in self._view["tables"]],
            "causes": causes(cards),
            "cause": _cause_column(cards),
            "fix": any(card.fix for card in cards),
            "happened": " ".join(filter(None, (happened, fix, f"`{self.resume}` continues.")))
            if happened
            else "",
            "waits": waits,
            "open": {*waits, *(group.name for group in together if group.cards[0].style == "red")},
            "groups": together,
            "count": len(cards),
            "brief": sum(len(group.cards[0].lines()) for group in together if group.name in waits) > SCREEN,
            "statuses": list(dict.fromkeys(card.status for card in cards)),
            "cluster": with_styles(self._cluster),
            "changes": f"{self._changes} change{'s' if self._changes > 1 else ''}"
            if self._changes
            else "up to date",
        }
        return str(_template().render(page=page))

    def _card(self, name: str) -> Card:
        return self._cards.setdefault(name, Card(name))

    def _keep(self, outcomes: Iterable[Outcome]) -> None:
        for outcome in outcomes:
            self._card(outcome.host).outcome = outcome

    def _now(self) -> float:
        return round(time.monotonic() - self._start, 3)
