"""The report for users: plans as diffs with reasons, a live line per host, the chain link by link."""

import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, cast

from rich.console import Console
from rich.table import Table

from gpunode.cluster.objects.difference import Difference
from gpunode.engine.overview import RunLine
from gpunode.engine.reporter import Headline
from gpunode.engine.shown import ShownHost, ShownPlan, show_host
from gpunode.errors import Declined, Problem
from gpunode.model import Event, Host, Outcome, Verdict
from gpunode.report import chains, objects, plans, runs
from gpunode.report.chains import chain, whole_chain
from gpunode.report.objects import cluster_lines
from gpunode.report.plain import Part, indent, lines, one_line, plain
from gpunode.report.plans import failure, group_alike, group_failures, plan_lines, summary_text
from gpunode.report.runs import cell_text, group_rows
from gpunode.report.terminal import PROBE, Line, Live, screen, step_of, to_text, wrap
from gpunode.wording import lasting, several, without_name

MANY = 8  # rows; more are shown in less detail
CHAINS = 3  # hosts; of more, those whose chain holds have a line each
UNITS = {
    "acceptance": {"memory": "GB/s", "compute": "TFLOPS", "to_gpu": "GB/s", "from_gpu": "GB/s", "power": "W"}
}
LISTED = 3  # rows that are too wide for the terminal and have a line a cell
ASKED = ("batch", "gate")  # tables that belong to a plan
REPEATED = ("object", "vectoradd")  # of a run: objects as planned, GPUs whose proof follows
PROVEN = ("passed", "not covered")
WAIT, AGAIN = re.compile(r"^waiting for |\b\d+ of \d+ "), 60.0  # a wait's messages; seconds between two
CHANGES = "changes"  # of which a log has a line a minute, too
PIPED = 100  # assumed columns of a file or a pipe
WRITTEN = {
    "answer": chains.answer,
    "reason": chains.reasons,
    "recorded": runs.recorded,
    "deviation": runs.deviations,
    "why": runs.choices,
}  # as texts, no tables
# With many hosts there are more batches than a user reads before a question
HEADED: Mapping[str, tuple[str, Callable[[Sequence[Sequence[Any]]], Iterator[str]]]] = {
    "batch": ("batches", plans.batches),
    "left": ("stays", runs.left),
}
# Columns of JSON lines as people read them: of the second cause of an error.
CALLED = {"or if": "but if", "or fault": "then fault", "or next": "then"}


class Human:
    def __init__(self, *, quiet: bool, accepted: bool = False) -> None:
        self._out = screen()
        if not self._out.is_terminal:
            self._out.width = 1000  # files and pipes have no width: cut nothing
        self._err = screen(stderr=True)
        self._quiet = quiet
        self._accepted = accepted
        self._brief = quiet and accepted  # no plan: the user is not asked about it
        self._cluster = False  # its plan was shown, which has the objects that are made then
        self._live: Live | None = None
        self._run: RunLine | None = None
        self._start = time.monotonic()
        self._visited = 0  # hosts
        self._known: dict[str, Outcome] = {}  # how each host stands
        self._waits: dict[str | None, dict[object, float]] = {}  # host -> when each was shown last, in a log
        self._causes: dict[tuple[str, str, str], str] = {}  # of a broken link -> the first host
        self._messages: dict[str | None, str] = {}  # host -> the last one
        self._problems = set[str]()  # their first lines
        self._failures = set[str]()  # of hosts, likewise
        self._line = Line(self._err)
        self._folded: list[Callable[[], None]] = []  # shows what was shown without diffs again, with them

    @contextmanager
    def live(self, hosts: Sequence[Host]) -> Iterator[None]:
        self._visited = max(self._visited, len(hosts))
        if self._quiet or not self._err.is_terminal:
            yield
            return
        self._line.clear()
        with Live(self._err, [host.name for host in hosts], self._known, self._run) as self._live:
            yield
        self._live = None

    def event(self, event: Event) -> None:
        if "batches" in event.data:
            known = {key: value for key, value in event.data.items() if key != "bad"}  # the sum of `ends`
            self._run = RunLine(**cast(dict[str, Any], known))
        if self._live is not None:
            self._live.event(event)
        elif self._err.is_terminal and not event.host and not self._quiet:
            self._line.show(event.message)
        elif not self._quiet and (text := self._piped(event)):
            where = f"{event.host}  " if event.host else ""
            self._err_print((f" {where}{text}\n", "dim"))

    def _piped(self, event: Event) -> str:
        """What a log gets of an event: stages, and of a wait or of a host's changes a line a minute; of changes no first one."""
        host, text, wait = event.host, event.message, event.data.get("wait")
        now, first = time.monotonic(), -AGAIN
        if event.type in ("change", "progress"):
            text = self._messages.get(host, "") if event.type == "progress" else f"{step_of(event)}{text}"
            wait, first = CHANGES, now
        same = self._messages.get(host) == text
        self._messages[host] = text
        waits = self._waits.setdefault(host, {})
        if wait != CHANGES and not WAIT.search(text):
            waits.clear()
            only = event.data.get("batches") == 1  # of which the question had all that it says
            return "" if same or only or text == PROBE else text
        shown = waits.get(wait, first)
        due = now - shown >= AGAIN
        waits[wait] = now if due else shown
        return text if due else ""

    def outcome(self, outcome: Outcome) -> None:
        if self._live is not None:
            self._live.outcome(outcome)
        elif outcome.status == "changed" and not self._quiet and not self._err.is_terminal:
            made = several(len(outcome.applied), "change")
            self._err_print(f" {outcome.host}  ", ("✓", "green"), f" {made} in {lasting(outcome.seconds)}\n")

    def plans(self, outcomes: Sequence[Outcome], *, diff: bool | None = None) -> None:
        if self._brief:
            self.failures(outcomes, max((len(outcome.host) for outcome in outcomes), default=0))
            return
        self._show_plans([*map(show_host, outcomes)], diff=diff)

    def _show_plans(self, hosts: Sequence[ShownHost], *, diff: bool | None) -> None:
        width = max((len(host.name) for host in hosts), default=0)
        groups = group_alike(group_failures(hosts), diff=diff is not False)
        self._print_plans(groups, width, diff=diff)
        folded = [group for group in groups if plans.is_shortened(group)] if diff is None else []
        if folded:
            self._folded.append(lambda: self._print_plans(folded, width, diff=True))
        self._print_headed("disturbs", plans.interrupted_work(hosts))

    def _print_plans(self, groups: Sequence[ShownHost], width: int, *, diff: bool | None) -> None:
        for group in groups:
            self._print(plan_lines(group, width, diff=diff))

    def _print_headed(self, head: str, text: Iterable[str]) -> None:
        for number, line in enumerate(text):
            self._print(((f" {head:<8}  ", "bold") if number == 0 else "           ", f"{line}\n"))

    def cluster(self, context: str, differences: Sequence[Difference], *, diff: bool | None = None) -> None:
        self._cluster = True
        if self._brief:
            return
        self._print(cluster_lines(context, differences, diff=diff))
        if diff is None and any(map(objects.is_folded, differences)):
            self._folded.append(lambda: self._print(cluster_lines(context, differences, diff=True)))

    def failures(self, outcomes: Sequence[Outcome], width: int = 0) -> None:
        for host in group_failures([*map(show_host, outcomes)]):
            self._print(failure(host, width))
        for each in outcomes:
            first, *_ = lines(each.why) or [""]
            self._failures.add(f"{each.host}: {each.status}: {first}")

    def _print(self, parts: Iterable[Part], to: Console | None = None) -> None:
        """One print for all: each print of rich costs more than a line."""
        self._line.clear()
        console = to or self._out
        text = to_text(*parts)
        console.print(wrap(text, console.width) if console.is_terminal else text, end="")

    def _err_print(self, *parts: Part) -> None:
        self._print(parts, self._err)

    def links(self, host: str, links: Sequence[Verdict]) -> None:
        whole = all(link.status == "ok" for link in links)
        short = whole and (self._quiet or self._visited > CHAINS)
        self._print(
            whole_chain(host, links) if short else chain(host, [self._once(host, link) for link in links])
        )

    def _once(self, host: str, link: Verdict) -> Verdict:
        """The link; one that is broken as that of an earlier host names this in place of cause and fix."""
        if link.status == "ok" or not link.problem or not link.fix:
            return link
        key = (link.layer, without_name(link.cause, host), without_name(link.fix, host))
        first = self._causes.setdefault(key, host)
        if first == host:
            return link
        return replace(link, problem=replace(link.problem, cause=f"as of {first}", fix=""))

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        if self._cluster and kind in REPEATED:  # a plan was shown, or a proof follows, which has the rest
            ends = columns.index("result") if "result" in columns else None
            rows = [row for row in rows if ends is not None and row[ends] not in PROVEN]
        if kind == "cause":  # the chains above have those of a host
            above = {fix for *_, fix in self._causes}
            rows = [["as above" if cell in above else cell for cell in row] for row in rows if row[2] != 1]
        if not rows or (self._brief and kind in ASKED):
            return
        if kind == "time":  # `show` has them by phase
            return
        if kind in HEADED:
            head, describe = HEADED[kind]
            self._print_headed(head, describe(rows))
            return
        if kind == "reviewed":
            each = [cell for row in rows for cell in row if isinstance(cell, ShownPlan)]
            self._show_plans([shown.host for shown in each], diff=each[0].diff)
            return
        if kind in WRITTEN:
            self._print(WRITTEN[kind](rows))
            return
        if kind == "verified":
            one_screen = self._out.is_terminal and self._err.is_terminal
            above = self._failures | (self._problems if one_screen else set())
            rows = [["see above" if f"{row[0]}: {cell}" in above else cell for cell in row] for row in rows]
        columns = [CALLED.get(column, column) for column in columns]
        text = plain if kind != "cause" else lambda cell: "\n".join(lines(cell))  # a fix has lines
        grouped = group_rows(kind, runs.name_absent(kind, rows))
        columns, grouped = runs.without_same_node(kind, columns, grouped)
        cells = [[text(cell_text(cell)) for cell in row] for row in grouped]
        used = [place for place in range(len(columns)) if any(row[place] for row in cells)]
        room = self._out.width if self._out.is_terminal else PIPED
        if self._out.is_terminal and _least(columns, cells, used) > room:  # eight digits tell GPUs apart
            short = [[chains.UUID.sub(r"\1…", cell) for cell in row] for row in cells]
            cells = short if _least(columns, short, used) <= room or len(cells) > MANY else cells
        width = sum(max(len(columns[at]), *(len(row[at]) for row in cells)) + 2 for at in used)
        if (
            kind == "cause"
            or width > 2 * room
            or (_least(columns, cells, used) > room and self._out.is_terminal)
        ):
            listed = (
                _run_in
                if len(cells) > (MANY if kind == "cause" else LISTED) and self._out.is_terminal
                else _list_rows
            )
            self._print(listed([columns[at] for at in used], [[row[at] for at in used] for row in cells]))
            return
        table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
        for place in used:
            word = all(" " not in row[place] for row in cells)
            unit = UNITS.get(kind, {}).get(columns[place], "")
            table.add_column(f"{columns[place].upper()}\n{unit}".rstrip(), overflow="fold", no_wrap=word)
        for row in cells:
            table.add_row(*(to_text(row[place]) for place in used))
        self._line.clear()
        self._out.print(table)

    def problem(self, problem: Problem, host: str | None = None) -> None:  # noqa: ARG002 - the message names it
        first, *rest = lines(str(problem)) or [""]
        self._problems.add(first)
        more = (*(f"   {line}" for line in rest), *indent(problem.fix, "   "))
        self._err_print(" ", ("✗", "red"), f" {first}\n", *(f"{line}\n" for line in more))

    def note(self, text: str) -> None:
        if isinstance(text, Headline):
            if not self._brief:
                self._print([f" {text}\n"])  # with its plan
            return
        self._err_print(f" {text}\n")

    def ask(self, question: str) -> bool:
        if not sys.stdin.isatty():
            self.note(f"{question} no, as there is no terminal to ask")
            return False
        try:
            answer = self._answer(question)
        except KeyboardInterrupt:
            self._err.print()
            error = Declined("interrupted; nothing changed")
            error.exit_code = 130  # as of every interrupt
            raise error from None
        self._folded.clear()
        return answer in ("y", "yes")

    def _answer(self, question: str) -> str:
        while (answer := self._read(question)) not in ("", "y", "yes", "n", "no"):
            if answer and "diffs".startswith(answer) and self._folded:
                for show in self._folded:
                    show()
            else:
                self.note(f"y applies it, {'d shows diffs, ' if self._folded else ''}n or Enter cancels.")
        return answer

    def _read(self, question: str) -> str:
        self._err_print(f"{question} ", ("[y/N/diffs]" if self._folded else "[y/N]", "bold"))
        self._err.print(" ", end="")  # which a wrapped line would lose
        answer = sys.stdin.readline()
        if not answer:  # Ctrl-D leaves the cursor behind the question
            self._err.print()
        return answer.strip().lower()

    def summary(self, outcomes: Sequence[Outcome], *, cluster: int | None = 0, after: str = "") -> None:
        seconds = time.monotonic() - self._start
        more = "; plan --diff shows all reasons and diffs" if self._folded and not self._accepted else ""
        self._err_print(f" {summary_text(outcomes, seconds, cluster)}{more}\n")
        if after:
            self.note(after)

    def total(self, text: str, numbers: Mapping[str, object]) -> None:  # noqa: ARG002 - the text has them
        if text:
            self.note(text)


def _least(columns: Sequence[str], cells: Sequence[Sequence[str]], used: Sequence[int]) -> int:
    """The width of a table whose columns are as narrow as their longest word."""
    return sum(max(_word(columns[at]), *(_word(row[at]) for row in cells)) + 2 for at in used) - 2


def _word(text: str) -> int:
    """Length of the longest word, which is the narrowest that a column can be."""
    return max(map(len, text.split()), default=0)


def _run_in(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Part]:
    """The record of many rows: a row takes a line or two, each cell after its column's name."""
    for first, *cells in rows:
        yield f" {first}  ", "bold"
        named = [f"{name} {one_line(cell)}" for name, cell in zip(columns[1:], cells, strict=True) if cell]
        yield f"{' · '.join(named)}\n"


def _list_rows(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[Part]:
    """A table that is too wide for the terminal, as a record of lines per row."""
    _, *names = columns
    wide = max((len(name) for name in names), default=0)
    for first, *cells in rows:
        yield f" {first}\n", "bold"
        for name, cell in zip(names, cells, strict=True):
            margin = " " * (wide + 5)
            text, *more = [*indent(cell, margin)] or [margin]
            if cell:
                yield from ((f"   {name:<{wide}}", "dim"), f"  {text.removeprefix(margin)}\n")
            yield from (f"{line}\n" for line in more)
