"""A master connection of ssh: one login, which every command to the host then shares."""

from __future__ import annotations

import contextlib
import os
import selectors
import shlex
import socket
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpunode.local import streams

LOGIN_SECONDS = 60.0  # beside the host's own timeout: keys may have to be touched
# A master that was not closed ends by itself, as where gpunode was killed; one that ended while gpunode waited for
# work or an answer is started again.
IDLE = "10m"
EXITS_SECONDS = 5.0
POLL_SECONDS = 0.5
NOBODY = "gpunode"  # ssh wants a host's name, which a client of a master does not use


@dataclass(frozen=True, slots=True)
class NotOpened:
    """What ssh printed where it could not connect. `late`: it did not end in time."""

    printed: str
    late: bool


@dataclass(frozen=True, slots=True)
class Master:
    """An open master connection."""

    program: str
    socket: Path

    @classmethod
    def open(
        cls, program: str, place: Path, options: Sequence[str], address: str, timeout: float
    ) -> Master | NotOpened:
        """Log in. The process goes on in the background, apart from the terminal and its Ctrl-C."""
        words = [
            program,
            "-M",
            "-N",
            "-f",
            "-T",
            "-S",
            _plain(place),
            "-o",
            f"ControlPersist={IDLE}",
            *options,
        ]
        process = subprocess.Popen(
            [*words, "--", address],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        with process:
            try:
                printed, late = _watched(process, timeout)
            finally:
                if process.poll() is None:
                    process.kill()
        if process.returncode:
            return NotOpened(printed, late)
        return cls(program, place)

    def alive(self) -> bool:
        """True while it accepts commands."""
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(self.socket))
            except OSError:
                return False
        return True

    def words(self, *options: str) -> list[str]:
        """The ssh command with these options through this master, never by a connection of its own."""
        client = [self.program, "-F", "none", "-S", _plain(self.socket), "-o", "ProxyCommand=false"]
        return [*client, "-o", "LogLevel=ERROR", *options, NOBODY]

    def proxy(self) -> str:
        """A ProxyCommand that reaches other hosts through this one."""
        return f"{shlex.join(self.words('-W')[:-1]).replace('%', '%%')} '[%h]:%p' {NOBODY}"

    def connected(self) -> bool:
        """True if it answers: one whose connection broke does not, though it may accept for a moment more."""
        return self._asked("check")

    def close(self) -> None:
        """End the connection and what runs on it."""
        if not self.socket.exists():
            return
        self._asked("exit")
        self.socket.unlink(missing_ok=True)  # of a master that was killed

    def _asked(self, what: str) -> bool:
        """Whether it did as ssh's control command asks."""
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            done = subprocess.run(
                self.words("-O", what),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=EXITS_SECONDS,
                check=False,
                start_new_session=True,
            )
            return done.returncode == 0
        return False


def _plain(path: Path) -> str:
    """A path as ssh's ControlPath, in which % begins a token."""
    return str(path).replace("%", "%%")


def _watched(process: subprocess.Popen[bytes], timeout: float) -> tuple[str, bool]:
    """What it prints until it goes to the background, ends or prints too much; True if it takes too long."""
    assert process.stderr is not None
    printed = streams.Errors()
    end = time.monotonic() + timeout
    with selectors.DefaultSelector() as ready:
        ready.register(process.stderr, selectors.EVENT_READ)
        while (left := end - time.monotonic()) > 0:
            if ready.select(min(left, POLL_SECONDS)):
                chunk = os.read(process.stderr.fileno(), 65536)
                if not chunk or not printed.add(chunk):
                    break
            # Masters before OpenSSH 8.5 keep it open.
            elif process.poll() is not None and not ready.select(0):
                break
    late = left <= 0
    if not late:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(EXITS_SECONDS)
    return printed.text(), late
