"""Commands over an SSH connection."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

import paramiko

from gpunode.errors import Unreachable
from gpunode.local import streams
from gpunode.model import Host


class Remote:
    """A running command. Input is sent in a thread of its own, so that neither side waits for the other."""

    def __init__(
        self, channel: paramiko.Channel, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None
    ) -> None:
        self._channel = channel
        self._errors = streams.Errors()
        self._threads = [
            threading.Thread(target=self._feed, args=(stdin,), daemon=True),
            threading.Thread(target=self._drain, args=(heard,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _feed(self, stdin: Iterable[bytes]) -> None:
        # The command may end, or the connection break, before it read everything: end() reports that.
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            for chunk in stdin:
                # sendall copies the rest of bytes at every step, but not of a memoryview.
                self._channel.sendall(memoryview(chunk))  # type: ignore[arg-type]
            self._channel.shutdown_write()

    def _drain(self, heard: Callable[[bytes], None] | None) -> None:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while chunk := self._channel.recv_stderr(32768):
                if not self._errors.add(chunk):
                    self._channel.close()  # which ends the reading
                if heard is not None:
                    heard(chunk)

    def lines(self) -> Iterator[bytes]:
        """Lines of standard output; ends early, without an error, if the connection is lost. Raises Flood."""
        yield from streams.lines(self._chunks())
        self._errors.check()

    def _chunks(self) -> Iterator[bytes]:
        with contextlib.suppress(OSError, EOFError, paramiko.SSHException):
            while chunk := self._channel.recv(65536):
                yield chunk

    def end(self) -> tuple[int | None, str]:
        status = self._channel.recv_exit_status()  # -1: the connection broke first
        for thread in self._threads:
            thread.join(timeout=5)
        self._channel.close()
        return (None if status < 0 else status), self._errors.text()


class SshConnection:
    """An open connection to one host."""

    def __init__(self, host: Host, transport: paramiko.Transport) -> None:
        self._host = host
        self._transport = transport

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> Remote:
        try:
            channel = self._transport.open_session(timeout=self._host.ssh.timeout)
            channel.exec_command(command)  # returns when the host answers or the connection closes
        except (paramiko.SSHException, OSError, EOFError) as error:
            raise Unreachable(
                self._host.name, f"the connection broke: {error}", hint="Run it again."
            ) from error
        return Remote(channel, stdin, heard)

    def close(self) -> None:
        self._transport.close()
