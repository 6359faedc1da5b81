"""Runs the agent on a host: the Connection protocol, and `talk`, which sends one job and yields its messages.

A Connection starts one command and returns its output: `ssh.SshConnection` and `openssh.Connection` over SSH, `Local` on
this machine.
"""

import contextlib
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from gpunode.errors import AgentFailed, ConnectionLost, Flood, Unreachable
from gpunode.host import bootstrap, wire
from gpunode.local.child import Child
from gpunode.local.password import Password, Question
from gpunode.model import Host

CHUNK = 256 * 1024
# The agent limits its own commands to half of that, and reports every ten seconds that an apply continues.
SILENT_SECONDS = 120.0


class Remote(Protocol):
    """A running command: its standard output line by line, then its exit status."""

    def lines(self) -> Iterator[bytes]: ...

    def end(self) -> tuple[int | None, str]:
        """Exit status (None if the connection was lost) and the end of standard error."""


class Connection(Protocol):
    """A host that runs commands, one at a time. Each that is dialled has a login of its own: a restart on the host is
    confirmed by the next one."""

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> Remote:
        """Start a command. `heard` is called with chunks of standard error, in another thread."""

    def close(self) -> None:
        """Close it, with the connection that it is multiplexed over, so that the next one logs in again."""


class Local:
    """`connection: local`: this machine, for a node that runs gpunode on itself."""

    def __init__(self) -> None:
        self._remote: Child | None = None

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> Remote:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._remote = Child(process, stdin, heard)
        return self._remote

    def close(self) -> None:
        if self._remote is not None:
            self._remote.close()


def talk(
    host: Host,
    connection: Connection,
    job: Mapping[str, Any],
    *,
    archives: Iterable[str] = (),
    password: Password | None = None,
    install: str = "",
    silence: float = SILENT_SECONDS,
) -> Iterator[dict[str, Any]]:
    """Run one job with the agent on `host`; yields its messages as they arrive. `install`: how a host without Python gets
    one first, a command of its shell.

    Raises AgentUnusable, SudoRefused or AgentFailed without a complete answer, and ConnectionLost if the connection broke
    before its end. Raises Unreachable and closes the connection after `silence` seconds without input or output.
    """
    watchdog = Watchdog(silence, connection.close)  # which ends the reading
    question = Question(password, host.name) if password is not None and host.sudo else None

    def stdin() -> Iterator[bytes]:
        if question is not None:
            yield from question.answer()
            if not question.passed:
                return
        yield wire.encode(job)
        for archive in archives:
            with Path(archive).open("rb") as file:
                while chunk := file.read(CHUNK):
                    watchdog.heard()  # it has read what was sent before
                    yield chunk

    noise: list[bytes] = []
    with question or contextlib.nullcontext(), watchdog:
        try:
            command = bootstrap.command(host.sudo, question is not None, host.python, install)
            if question is None:
                remote = connection.start(command, stdin())
                complete = yield from wire.decode(remote.lines(), job["nonce"], noise, watchdog.heard)
            else:
                remote = connection.start(command, stdin(), question.hear)
                lines = wire.decode(remote.lines(), job["nonce"], noise, watchdog.heard, question.ready)
                complete = yield from lines
                question.end()
            status, stderr = remote.end()
        except Flood as flood:
            connection.close()
            remote.end()
            raise AgentFailed(
                host.name,
                f"the host sent {flood} instead of an answer",
                hint="Check that its login shell prints nothing, and that python3 on it is Python.",
            ) from flood
        except Unreachable:
            if not watchdog.bit:
                raise
            complete, status, stderr = False, None, ""
    if watchdog.bit and not complete:
        raise Unreachable(
            host.name,
            f"the host accepted the connection, then gave no answer for {silence:.0f} seconds",
            hint="Check its load, disks and network, then run again.",
        )
    if question is not None and question.refused:
        raise question.refusal()
    if status is None:
        raise ConnectionLost(host.name, "the connection was lost", hint="Run it again.")
    if not complete:
        raise bootstrap.explain(host.name, noise, stderr, status, host.python_build)
    if status:
        raise AgentFailed(host.name, f"the agent ended with exit status {status}: {stderr.strip()[-400:]}")


class Watchdog:
    """Calls `bite` once if `heard` is not called for `seconds`; `bit` is True afterwards."""

    def __init__(self, seconds: float, bite: Callable[[], None]) -> None:
        self.bit = False
        self._seconds, self._bite = seconds, bite
        self._last = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def heard(self) -> None:
        self._last = time.monotonic()

    def __enter__(self) -> None:
        self.heard()
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._over.set()

    def _watch(self) -> None:
        while (left := self._last + self._seconds - time.monotonic()) > 0:
            if self._over.wait(left):
                return
        self.bit = True
        self._bite()
