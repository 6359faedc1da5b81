"""The terminal: text without markup and control characters, a line for the current wait, and a live view of hosts at work."""

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from types import TracebackType

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.table import Table
from rich.text import Text

from gpunode.engine.overview import RunLine
from gpunode.engine.phases import WAITS, WORK
from gpunode.model import Event, Outcome
from gpunode.report.plain import Part, end_quietly, lines, plain
from gpunode.report.plans import WORDS
from gpunode.report.runs import BAR, ROOMY, run_line

# Where a line's text begins, after its indentation, name, sign and second name.
_HEAD = re.compile(r" *(?:[^ ]{1,20} {2,})?(?:[-+~!=✓✗·] +)?(?:[^ ]{1,12} {2,})?")
_WORD = re.compile(r" *(?:`[^`]*`[^ ]*|[^ ]+)")


class _Console(Console):
    def on_broken_pipe(self) -> None:
        end_quietly(self.file)


def screen(*, stderr: bool = False) -> Console:
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False, soft_wrap=True)


def to_text(*parts: Part) -> Text:
    """The parts as one text. A newline at the end of a part ends the line, any other is shown escaped."""
    line = Text()
    for part in parts:
        text, style = (part, "") if isinstance(part, str) else part
        end = "\n" if text.endswith("\n") else ""
        line.append(plain(text.removesuffix("\n")) + end, style)
    return line


def wrap(text: Text, width: int) -> Text:
    """The text with lines of at most `width` cells, broken between words and indented to where their text begins.

    A command in backquotes stays on one line if it fits; a longer word is left to the terminal.
    """
    if cell_len(max(text.plain.split("\n"), key=cell_len)) <= width:
        return text
    return Text("\n").join(
        part for line in text.split("\n", allow_blank=True) for part in _parts(line, width)
    )


def _parts(line: Text, width: int) -> Iterator[Text]:
    head = _HEAD.match(line.plain)
    indent = head.end() if head and head.end() <= width // 2 else 2
    column, breaks = indent, []
    for word in _pieces(line.plain, indent, width - indent):
        if column + cell_len(word[0]) > width and column > indent:
            breaks.append(word.end() - len(word[0].lstrip()))
            column = indent + cell_len(word[0].lstrip())
        else:
            column += cell_len(word[0])
    first, *rest = line.divide(breaks)
    for part in (first, *(Text(" " * indent).append_text(part) for part in rest)):
        part.rstrip()
        yield part


def _pieces(line: str, start: int, room: int) -> Iterator[re.Match[str]]:
    """The words of a line with the spaces before them; commands in backquotes are one word if there is room for them."""
    for match in _WORD.finditer(line, start):
        if cell_len(match[0].strip()) <= room:
            yield match
        else:
            yield from re.compile(r" *[^ ]+").finditer(line, match.start(), match.end())


TICK = 1.0  # seconds


class Line:
    """The line of the current wait. The cursor is not hidden, so a killed program leaves nothing behind."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._text = ""
        self._since = 0.0
        self._ticks: threading.Thread | None = None

    def show(self, text: str) -> None:
        """Show the text in place of the last one, with the time since the line was last empty."""
        with self._lock:
            if not self._text:
                self._since = time.monotonic()
            self._text = plain(text)
            self._draw()
        if self._ticks is None:
            self._ticks = threading.Thread(target=self._tick, daemon=True)
            self._ticks.start()

    def clear(self) -> None:
        """Remove the line, before anything else is printed."""
        with self._lock:
            if self._text:
                self._text = ""
                self._write("")

    def _tick(self) -> None:
        while True:
            time.sleep(TICK)
            with self._lock:
                if self._text:
                    self._draw()

    def _draw(self) -> None:
        seconds = int(time.monotonic() - self._since)
        clock = f" {seconds // 60:02d}:{seconds % 60:02d}  "
        room = max(self._console.width - len(clock) - 1, 10)
        fits = self._text if len(self._text) <= room else f"{set_cell_size(self._text, room - 1)}…"
        self._write(f"{clock}{fits}")

    def _write(self, text: str) -> None:
        self._console.file.write(f"\r\x1b[2K{text}")
        self._console.file.flush()


Work = tuple[str, tuple[float, str]]  # a host, since when, and at what
BAD = ("failed", "refused", "unreachable")
PROBE = "probe"  # a stage of every host
STAGES = {PROBE: "probes", "reboot": "reboots"}  # any other sentence is a wait


def short_names(hosts: Sequence[str], most: int) -> dict[str, str]:
    """Host → its name in at most `most` characters: without the domain where that tells all apart, then its end."""
    names = {host: host for host in hosts}
    if max(map(len, hosts), default=0) > most:
        short = {host: host.partition(".")[0] for host in hosts}
        names = short if len(set(short.values())) == len(short) else names
    return {host: name if len(name) <= most else f"…{name[1 - most :]}" for host, name in names.items()}


def step_of(event: Event) -> str:
    """`3/16 ` of a change's event; "" of another's."""
    return f"{int(str(event.data['n'])) + 1}/{event.data['of']} " if "of" in event.data else ""


class Live:
    """`known`: the last outcome of every host of the run; what finishes here is added. `run`: as of the start of this batch."""

    def __init__(
        self,
        console: Console,
        hosts: Sequence[str],
        known: dict[str, Outcome] | None = None,
        run: RunLine | None = None,
    ) -> None:
        self._console = console
        self._run = run
        self._names = short_names([*hosts, *(known or ())], console.width * 2 // 5)
        self._width = max(map(len, self._names.values()), default=0)
        self._start = time.monotonic()
        self._left = dict.fromkeys(hosts)  # that are not done
        self._known = {} if known is None else known
        self._doing: dict[str, tuple[float, str]] = {}
        self._stage: dict[str, str] = {}
        self._wait: dict[str, object] = {}  # what it waits for, where there is news of it
        self._detail: dict[str, str] = {}
        self._bars: dict[str, str] = {}  # of the changes that are made
        self._view = RichLive(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> "Live":
        self._view.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._view.stop()

    def event(self, event: Event) -> None:
        host = event.host or ""
        if event.type == "progress":
            self._detail[host] = event.message
            return
        self._detail.pop(host, None)  # first: a drawing in between shows no detail of another step
        self._bars.pop(host, None)
        if "of" in event.data:
            filled = BAR * int(str(event.data["n"])) // int(str(event.data["of"]))
            self._bars[host] = "█" * filled + "░" * (BAR - filled)
        kind = str(event.data.get("kind", ""))
        stage = WORK.get(kind, "") or STAGES.get(event.message, WAITS)
        before, wait = self._wait.pop(host, None), event.data.get("wait")
        since = self._doing[host][0] if wait and wait == before else time.monotonic()
        if wait:
            self._wait[host] = wait
        self._doing[host], self._stage[host] = (since, step_of(event) + event.message), stage

    def outcome(self, outcome: Outcome) -> None:
        self._known[outcome.host] = outcome
        self._left.pop(outcome.host, None)
        for known in (self._doing, self._stage, self._wait, self._detail, self._bars):
            known.pop(outcome.host, None)

    def _render(self) -> Group:
        """Never higher than the terminal: of failed hosts and of those at work as many as there is room for."""
        width, height = self._console.size
        # Hosts finish in other threads while this one draws: a drawing is of a copy.
        known, left, doing = list(self._known.values()), list(self._left), list(self._doing.items())
        end = wrap(to_text((f" {self._sum(known, left, doing)}", "dim")), width)
        head = [to_text(*run_line(self._run.at(time.time()), width))] if self._run else []
        for line in head:
            line.truncate(width, overflow="ellipsis")
        room = max(height - 2 - len(head) - end.plain.count("\n"), 1)
        bad = [outcome for outcome in known if outcome.status in BAD]
        shown = bad[: max(room - len(doing), room // 2)]
        return Group(
            *head,
            *(self._failed_line(outcome, width) for outcome in shown),
            self._table(doing, room - len(shown)),
            end,
        )

    def _failed_line(self, outcome: Outcome, width: int) -> Text:
        why = " ".join(lines(outcome.why)[:1])
        name = self._names.get(outcome.host, outcome.host)
        line = to_text(f" {name:<{self._width}}  ", (f"✗ {WORDS[outcome.status]}", "red"), f"  {why}")
        line.truncate(width, overflow="ellipsis")
        return line

    def _table(self, doing: list[Work], room: int) -> Table:
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(no_wrap=True, width=self._width + 1)
        table.add_column(no_wrap=True, width=5)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=3)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=2)
        if roomy := self._console.width >= ROOMY:
            table.add_column(no_wrap=True, width=BAR)
        if len(doing) > room:  # those that take longest are what is waited for
            doing = sorted(doing, key=lambda work: work[1][0])[:room]
        for host, (since, text) in doing:
            table.add_row(
                to_text(f" {self._names.get(host, host)}"),
                to_text((_clock(since), "dim")),
                to_text(text),
                to_text((self._detail.get(host, ""), "dim")),
                *([to_text((self._bars.get(host, ""), "dim"))] if roomy else []),
            )
        return table

    def _sum(self, known: list[Outcome], left: list[str], doing: list[Work]) -> str:
        """`01:23 · 64 at work (packages 40, reboots 24) · 12 to come · 200 hosts: 4 changed, 2 failed`."""
        parts = [_clock(self._start)]
        if doing:
            stages = Counter(list(self._stage.values())).most_common()
            parts.append(f"{len(doing)} at work ({', '.join(f'{name} {count}' for name, count in stages)})")
        if waiting := len(set(left) - dict(doing).keys()):
            parts.append(f"{waiting} to come")
        count = len({outcome.host for outcome in known}.union(left))
        hosts = f"{count} host{'' if count == 1 else 's'}"
        ends = Counter(WORDS[outcome.status] for outcome in known)
        done = ", ".join(f"{number} {word}" for word, number in ends.items())
        return " · ".join([*parts, f"{hosts}: {done}" if done else hosts])


def _clock(since: float) -> str:
    seconds = int(time.monotonic() - since)
    return f"{seconds // 60:02d}:{seconds % 60:02d}"
