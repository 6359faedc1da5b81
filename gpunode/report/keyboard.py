"""The terminal of `gpunode top`: whole screens out, keys in. However it ends, the terminal is as it was."""

from __future__ import annotations

import os
import re
import select
import shlex
import signal
import subprocess
import sys
import termios
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TypeAlias

from rich.console import Group
from rich.control import Control

from gpunode.engine.overview import Overview
from gpunode.report.terminal import screen
from gpunode.report.top import Page, View, draw, draw_page, press, scroll, selected

TICK = 0.25  # seconds until another size, or newer figures, are drawn
PATIENCE = 4  # the cluster is left alone for so many times as long as its answer took
ACTS = ("enter", "p", "l", "d", "b", " ")
CODES: Mapping[str, str] = {
    "\x1b[A": "up",
    "\x1b[B": "down",
    "\x1b[C": "right",
    "\x1b[D": "left",
    "\x1b[5~": "page up",
    "\x1b[6~": "page down",
    "\x1b[H": "home",
    "\x1b[F": "end",
    "\r": "enter",
    "\n": "enter",
    "\x1b": "escape",
    "\x7f": "backspace",
    "\b": "backspace",
    "\x03": "interrupt",
}
_CODE = re.compile(r"\x1b[\[O][0-9;]*[A-Za-z~]|.", re.DOTALL)

# One of ACTS on a host ("": there is none): the words of a gpunode command whose output is shown, or a sentence.
Act: TypeAlias = Callable[[str, str, Overview], "Sequence[str] | str"]


def run(look: Callable[[], Overview], act: Act, *, interval: float) -> None:
    """Show the fleet until q, Ctrl-C or a signal. `look` returns it as it is now; it is called in another thread, every `interval`
    seconds or, where that takes long, less often."""
    console, feed, view = screen(), _Feed(look, interval), View()
    output: _Output | None = None
    drawn: object = None
    with _unbuffered_keys() as keyboard, console.screen() as display, suppress(KeyboardInterrupt):
        feed.start()
        try:
            while feed.error is None:
                width, height = size = console.size
                shown = (size, view, output.page if output else feed.latest)
                if drawn != shown:
                    lines = draw_page(output.page, *size) if output else draw(feed.latest, view, *size)
                    with console:  # as one write
                        console.control(Control.home())
                        display.update(Group(*lines))
                    drawn = shown
                for key in _wait(keyboard, output):
                    if output:
                        if key in ("escape", "q", "enter", "interrupt"):
                            output.end()
                            output = None
                        else:
                            output.page = scroll(output.page, key, width, height)
                    elif key == "interrupt" or (key == "q" and not view.typing):
                        return
                    elif key in ACTS and not view.typing:
                        cell = selected(feed.latest, view)
                        done = act(key, cell.name if cell else "", feed.latest)
                        view = replace(view, note=done if isinstance(done, str) else "")
                        output = None if isinstance(done, str) else _Output(done)
                        feed.wake.set()
                    else:
                        view = press(view, key, feed.latest, width, height)
            raise feed.error
        finally:
            if output:
                output.end()


class _Feed(threading.Thread):
    """Keeps `latest` current. `wake` set: asks again at once. `error`: of a `look` that failed; then it ends."""

    def __init__(self, look: Callable[[], Overview], interval: float) -> None:
        super().__init__(daemon=True)
        self.latest = Overview()
        self.wake = threading.Event()
        self.error: BaseException | None = None
        self._look, self._interval = look, interval

    def run(self) -> None:
        try:
            while True:
                began = time.monotonic()
                self.latest = self._look()
                self.wake.wait(max(self._interval, PATIENCE * (time.monotonic() - began)))
                self.wake.clear()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self.error = error


class _Output:
    """A gpunode command, in a process without a terminal, and what it has printed so far."""

    def __init__(self, words: Sequence[str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpunode", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        self._pipe, self._read = self._process.stdout, b""
        self.page = Page(shlex.join(["gpunode", *words]))

    @property
    def pipes(self) -> list[int]:
        """The descriptor that has more, unless it was read to its end."""
        return [] if self.page.ended else [self._pipe.fileno()]

    def read(self) -> None:
        new = os.read(self._pipe.fileno(), 1 << 16)
        self._read += new
        self.page = replace(self.page, text=self._read.decode(errors="replace"), ended=not new)

    def end(self) -> None:
        self._signal(signal.SIGTERM)
        self._pipe.close()
        try:
            self._process.wait(timeout=1)  # it closes its connections
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)


def _wait(keyboard: int, output: _Output | None) -> list[str]:
    """The keys that were pressed within a TICK; less where there is output, which is read."""
    ready = select.select([keyboard, *(output.pipes if output else [])], [], [], TICK)[0]
    if output and output.pipes and output.pipes[0] in ready:
        output.read()
    return keys(os.read(keyboard, 1024)) if keyboard in ready else []


def keys(typed: bytes) -> list[str]:
    """The names of keys, or their characters. A terminal that is gone, which gives nothing, is as Ctrl-C."""
    codes = _CODE.findall(typed.decode(errors="ignore") or "\x03")
    return [CODES.get(code.replace("\x1bO", "\x1b["), code) for code in codes]


@contextmanager
def _unbuffered_keys() -> Iterator[int]:
    """The descriptor of a terminal that gives each key at once, shows none, and makes signals of none."""
    keyboard = sys.stdin.fileno()
    before, now = termios.tcgetattr(keyboard), termios.tcgetattr(keyboard)
    now[3] &= ~(termios.ICANON | termios.ECHO | termios.ISIG)
    termios.tcsetattr(keyboard, termios.TCSADRAIN, now)
    try:
        yield keyboard
    finally:
        termios.tcsetattr(keyboard, termios.TCSAFLUSH, before)
