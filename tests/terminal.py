"""A program in a real pseudoterminal: its screen as text, keys into it."""

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TypeAlias

Started: TypeAlias = AbstractContextManager["Terminal"]
SECONDS = 120  # for a busy machine
ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
HOME = "\x1b[H"
OTHER, BACK = "\x1b[?1049h", "\x1b[?1049l"  # to the other screen, and from it
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"  # the cursor


def frame(lines: int, end: str) -> str:
    """The pattern of a whole screen of so many lines whose last one has this end."""
    return rf"\A(?:[^\n]*\n){{{lines - 1}}}[^\n]*{end} *\Z"


class Terminal:
    """One program in it. `text`: all that it has written."""

    process: subprocess.Popen[bytes]

    def __init__(self, end: int, tty: int) -> None:
        self.text = ""
        self._end, self._tty = end, tty
        self.before = termios.tcgetattr(tty)

    @property
    def screen(self) -> str:
        """What was drawn last on the other screen, or written since that was left; without colours."""
        return ESCAPE.sub("", self.text[max(self.text.rfind(HOME), self.text.rfind(BACK), 0) :])

    @property
    def raw(self) -> bool:
        """Whether its settings are others than before."""
        return termios.tcgetattr(self._tty) != self.before

    @property
    def restored(self) -> bool:
        """Whether settings, screen and cursor are as before."""
        screens, cursor = (
            (self.text.rfind(OTHER), self.text.rfind(BACK)),
            (self.text.rfind(HIDE), self.text.rfind(SHOW)),
        )
        return (
            termios.tcgetattr(self._tty) == self.before and screens[0] < screens[1] and cursor[0] < cursor[1]
        )

    def press(self, keys: str) -> None:
        os.write(self._end, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._tty, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def wait_for(self, pattern: str) -> str:
        """The screen, once the pattern is found in it."""
        end = time.monotonic() + SECONDS
        while not re.search(pattern, self.screen):
            assert time.monotonic() < end, f"no {pattern!r} in {self.screen}"
            assert self._read() or self.process.poll() is None, f"it ended without {pattern!r}: {self.text}"
        return self.screen

    def wait(self) -> int:
        """The exit code; the whole text is read."""
        end = time.monotonic() + SECONDS
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it goes on: {self.screen}"
            self._read()
        while self._read():
            pass
        return self.process.returncode

    def _read(self) -> bool:
        if not select.select([self._end], [], [], 0.05)[0]:
            return False
        self.text += os.read(self._end, 1 << 16).decode(errors="replace")
        return True


@contextmanager
def started(
    command: Sequence[str],
    *,
    size: tuple[int, int] = (80, 24),
    cwd: Path | None = None,
    environment: Mapping[str, str] = {},
    popen: Callable[..., subprocess.Popen[bytes]] = subprocess.Popen,
) -> Iterator[Terminal]:
    """The command in a terminal of `size` columns and lines; it ends with the block. `popen`: what starts it."""
    end, tty = pty.openpty()
    unset = {
        key: value
        for key, value in os.environ.items()
        if key not in ("COLUMNS", "LINES", "FORCE_COLOR", "NO_COLOR")
    }
    terminal = Terminal(end, tty)  # as it is before the program, which may be quick to change it
    terminal.resize(*size)
    terminal.process = popen(
        command,
        stdin=tty,
        stdout=tty,
        stderr=tty,
        cwd=cwd,
        env={**unset, "TERM": "xterm-256color", **environment},
        start_new_session=True,
    )
    try:
        yield terminal
    finally:
        terminal.process.kill()
        terminal.process.wait()
        os.close(end)
        os.close(tty)
