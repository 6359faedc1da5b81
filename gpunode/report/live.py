"""The live view: a line per host with stage, action and elapsed time. Without a terminal, a line per event."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, Group
from rich.live import Live as RichLive
from rich.table import Table

from gpunode.model import Event, Outcome
from gpunode.report.screen import words

SHOWN = 20  # hosts shown at once; more would scroll


class Live:
    def __init__(self, console: Console, hosts: Sequence[str]) -> None:
        self._console = console
        self._width = max((len(host) for host in hosts), default=0)
        self._start = time.monotonic()
        self._total = len(hosts)
        self._ended = 0
        self._doing: dict[str, tuple[float, str]] = {}
        self._detail: dict[str, str] = {}
        self._view = RichLive(
            console=console, get_renderable=self._render, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Live:
        if self._console.is_terminal:
            self._view.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._console.is_terminal:
            self._view.stop()

    def event(self, event: Event) -> None:
        host = event.host or ""
        if event.type == "progress":
            self._detail[host] = event.message
            return
        step = f"{event.data['n'] + 1}/{event.data['of']} " if "of" in event.data else ""  # type: ignore[operator]
        self._doing[host] = (time.monotonic(), step + event.message)
        self._detail.pop(host, None)
        if not self._console.is_terminal:
            self._console.print(words(f" {host:<{self._width}}  {step}{event.message}"))

    def finished(self, outcome: Outcome) -> None:
        self._ended += 1
        self._doing.pop(outcome.host, None)
        self._detail.pop(outcome.host, None)

    def _render(self) -> Group:
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(no_wrap=True, width=self._width + 1)
        table.add_column(no_wrap=True, width=5)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=3)
        table.add_column(no_wrap=True, overflow="ellipsis", ratio=2)
        for host, (since, doing) in list(self._doing.items())[:SHOWN]:
            elapsed = int(time.monotonic() - since)
            detail = self._detail.get(host, "")
            table.add_row(
                words(f" {host}"),
                words((f"{elapsed // 60:02d}:{elapsed % 60:02d}", "dim")),
                words(doing),
                words((detail, "dim")),
            )
        hidden = len(self._doing) - SHOWN
        more = f", {hidden} more running" if hidden > 0 else ""
        done = f" {self._ended}/{self._total} done{more}, {time.monotonic() - self._start:.0f} s"
        return Group(table, words((done, "dim")))
