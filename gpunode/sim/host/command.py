"""A command that came over an SSH channel, from its start to its exit status."""

from __future__ import annotations

import contextlib
import threading
from typing import IO, Protocol

import paramiko

CHUNK = 32768
PATIENCE = 5.0


class Process(Protocol):
    """The process of the command, e.g. a subprocess.Popen with three pipes."""

    @property
    def stdin(self) -> IO[bytes] | None: ...
    @property
    def stdout(self) -> IO[bytes] | None: ...
    @property
    def stderr(self) -> IO[bytes] | None: ...
    def wait(self) -> int: ...


def carry(channel: paramiko.Channel, process: Process) -> None:
    """Copy both output streams and the input of a process; returns when it has ended and its output is sent."""
    assert process.stdin
    assert process.stdout
    assert process.stderr
    stdin, stdout, stderr = process.stdin, process.stdout, process.stderr

    def feed() -> None:
        with contextlib.suppress(EOFError, paramiko.SSHException):
            while data := channel.recv(CHUNK):
                with contextlib.suppress(OSError):  # the command may have ended without reading all
                    stdin.write(data)
                    stdin.flush()
        with contextlib.suppress(OSError):
            stdin.close()

    def drain() -> None:
        with contextlib.suppress(OSError, EOFError):
            while data := stderr.read1(CHUNK):  # type: ignore[attr-defined]
                channel.sendall_stderr(data)

    threads = [threading.Thread(target=feed, daemon=True), threading.Thread(target=drain, daemon=True)]
    for thread in threads:
        thread.start()
    with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
        while data := stdout.read1(CHUNK):  # type: ignore[attr-defined]
            channel.sendall(data)
        threads[1].join()
        status = process.wait()
        if status >= 0:
            channel.send_exit_status(status)
        # The client ends its input after it has seen that the command began. If a quick command closed the
        # channel before that, it would look refused.
        threads[0].join(timeout=PATIENCE)
    with contextlib.suppress(OSError, EOFError):
        channel.close()
    stdout.close()
    process.wait()
    for thread in threads:
        thread.join(timeout=PATIENCE)
    stderr.close()
