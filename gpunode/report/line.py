"""One line of a terminal that shows what is waited for, and for how long."""

from __future__ import annotations

import threading
import time

from rich.cells import set_cell_size
from rich.console import Console

from gpunode.report.plain import plain

TICK = 1.0  # seconds


class Line:
    """The line, while there is something to show. The cursor is not hidden: a program that is ended leaves nothing behind."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._lock = threading.Lock()
        self._text = ""
        self._since = 0.0
        self._ticks: threading.Thread | None = None

    def show(self, text: str) -> None:
        """Show it in the place of what is shown, with the time since the line was last empty."""
        with self._lock:
            if not self._text:
                self._since = time.monotonic()
            self._text = plain(text)
            self._draw()
        if self._ticks is None:
            self._ticks = threading.Thread(target=self._tick, daemon=True)
            self._ticks.start()

    def clear(self) -> None:
        """Take it away, before anything else is printed."""
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
