"""The terminal of `gpunode top`: whole screens out, keys in. However it ends, the terminal is as it was."""

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
from gpunode.report.top import View, draw, press, selected

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

# One of ACTS on a host ("": there is none): the words of a gpunode command to show, or a sentence.
Act: TypeAlias = Callable[[str, str, Overview], "Sequence[str] | str"]


def run(look: Callable[[], Overview], act: Act, *, interval: float) -> None:
    """Show the fleet until q, Ctrl-C or a signal. `look` returns it as it is now; it is called in another thread, every `interval`
    seconds or, where that takes long, less often."""
    feed, view = _Feed(look, interval), View()
    feed.start()
    with suppress(KeyboardInterrupt):
        while True:
            view, words = _choose(feed, view, act)
            if words is None:
                return
            _show(words)


def _choose(feed: "_Feed", view: View, act: Act) -> tuple[View, Sequence[str] | None]:
    """Show the fleet until a key leads elsewhere: the view then, and the command to show; None: to the end."""
    console, drawn, noted = screen(), None, _where(feed.latest)
    with _unbuffered_keys() as keyboard, console.screen() as display:
        while feed.error is None:
            if noted != _where(feed.latest):  # the note is about the run as it was before
                noted, view = _where(feed.latest), replace(view, note="")
            shown = (feed.latest, view, console.size)
            if drawn != shown:
                with console:  # as one write
                    console.control(Control.home())
                    display.update(Group(*draw(feed.latest, view, *console.size)))
                drawn = shown
            for key in _read_keys(keyboard):
                if key == "interrupt" or (key == "q" and not view.typing):
                    return view, None
                if key not in ACTS or view.typing:
                    view = press(view, key, feed.latest, *console.size)
                    continue
                cell = selected(feed.latest, view)
                answer = act(key, cell.name if cell else "", feed.latest)
                feed.wake.set()
                if not isinstance(answer, str):
                    return replace(view, note=""), answer
                view = replace(view, note=answer)
        raise feed.error


def _where(overview: Overview) -> tuple[str, int, bool] | None:
    """Where the run is."""
    run = overview.run
    return (run.id, run.batch, run.is_running) if run else None


def _show(words: Sequence[str]) -> None:
    """Run a gpunode command in the terminal, as a user does; Ctrl-C ends it alone. Then wait for a key."""
    out = screen()
    out.print(f"$ {shlex.join(['gpunode', *words])}")
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        subprocess.run([sys.executable, "-m", "gpunode", *words], check=False)
    finally:
        signal.signal(signal.SIGINT, before)
    with _unbuffered_keys() as keyboard:
        out.print("press a key to go back", style="dim", end="")
        while not _read_keys(keyboard):
            pass
    out.print()


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


def _read_keys(keyboard: int) -> list[str]:
    """The keys that were pressed, after a TICK at the latest."""
    ready = select.select([keyboard], [], [], TICK)[0]
    return keys(os.read(keyboard, 1024)) if ready else []


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
