"""How the agent is reached: one small protocol, and what it says once it is there.

A Connection starts one command and gives its output; `ssh.py` makes them over SSH, `Local` on this machine.
"""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from gpunode import wire
from gpunode.errors import AgentFailed, ConnectionLost, Unreachable
from gpunode.model import Host

CHUNK = 256 * 1024


class Remote(Protocol):
    """One command that is running: its standard output line by line, then how it ended."""

    def lines(self) -> Iterator[bytes]: ...

    def end(self) -> tuple[int | None, str]:
        """Exit status (None when the connection was lost) and standard error."""
        ...


class Connection(Protocol):
    """A host that commands can be started on, one at a time."""

    def start(self, command: str, stdin: Iterable[bytes]) -> Remote: ...

    def close(self) -> None: ...


class LocalRemote:
    def __init__(self, process: subprocess.Popen[bytes], stdin: Iterable[bytes]) -> None:
        self._process = process
        self._errors: list[bytes] = []
        self._threads = [
            threading.Thread(target=self._feed, args=(stdin,), daemon=True),
            threading.Thread(target=self._drain, daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _feed(self, stdin: Iterable[bytes]) -> None:
        assert self._process.stdin is not None
        try:
            for chunk in stdin:
                self._process.stdin.write(chunk)
            self._process.stdin.close()
        except BrokenPipeError:
            pass  # the command ended early; its status says why

    def _drain(self) -> None:
        assert self._process.stderr is not None
        self._errors.append(self._process.stderr.read())

    def lines(self) -> Iterator[bytes]:
        assert self._process.stdout is not None
        yield from self._process.stdout

    def end(self) -> tuple[int | None, str]:
        status = self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()
        return status, b"".join(self._errors).decode(errors="replace")


class Local:
    """`connection: local`: this machine, for a node that runs gpunode on itself."""

    def start(self, command: str, stdin: Iterable[bytes]) -> Remote:
        process = subprocess.Popen(
            ["/bin/sh", "-c", command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        return LocalRemote(process, stdin)

    def close(self) -> None:
        pass


def talk(
    host: Host,
    connection: Connection,
    job: Mapping[str, Any],
    *,
    archives: Iterable[str] = (),
    password: str | None = None,
    within: float | None = None,
) -> Iterator[dict[str, Any]]:
    """Run one job with the agent on `host`; yields its messages as they come.

    Raises AgentUnusable, SudoRefused or AgentFailed when there is no complete answer, ConnectionLost when the
    connection went away before its end. An answer that is not there `within` so many seconds is given up, and the
    connection with it: Unreachable.
    """

    def stdin() -> Iterator[bytes]:
        yield wire.encode(job, password)
        for archive in archives:
            with Path(archive).open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk

    late = threading.Event()

    def give_up() -> None:
        late.set()
        connection.close()  # which ends the reading

    remote = connection.start(wire.command(host.sudo, password is not None), stdin())
    timer = threading.Timer(within, give_up) if within else None
    if timer:
        timer.daemon = True
        timer.start()
    noise: list[bytes] = []
    try:
        complete = yield from wire.decode(remote.lines(), job["nonce"], noise)
        status, stderr = remote.end()
    finally:
        if timer:
            timer.cancel()
    if late.is_set() and not complete:
        raise Unreachable(
            host.name,
            f"it took the connection and gave no answer within {within:.0f} seconds",
            hint="Look at its load, its disks and its network, then run again.",
        )
    if status is None:
        raise ConnectionLost(host.name, "the connection was lost", hint="Run it again.")
    if not complete:
        raise wire.explain(host.name, noise, stderr, status)
    if status:
        raise AgentFailed(host.name, f"the agent ended with exit status {status}: {stderr.strip()[-400:]}")
