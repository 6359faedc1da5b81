"""Commands over a master connection of ssh."""

from __future__ import annotations

import subprocess
import threading
from collections.abc import Callable, Iterable

from gpunode.errors import Unreachable
from gpunode.host.openssh.failures import no_session
from gpunode.host.openssh.master import Master
from gpunode.local.child import Child


class Remote(Child):
    """A command on the host."""

    host = ""
    master: Master | None = None

    def end(self) -> tuple[int | None, str]:
        """Exit status and standard error; None where the connection broke: ssh ends with 255 then, as the command may, too.

        Raises Unreachable if the host did not start the command.
        """
        status, printed = super().end()
        failure = no_session(printed) if status == 255 else None
        if failure is not None:
            raise Unreachable(self.host, failure.message, hint=failure.hint, code=failure.problem.code)
        lost = status == 255 and not (self.master and self.master.connected())
        return (None if lost else status), printed


class Connection:
    """A host with its master connection, which is opened again if it has ended between two commands."""

    def __init__(self, host: str, master: Master, again: Callable[[], Master]) -> None:
        self._host, self._master, self._again = host, master, again
        self._lock = threading.Lock()
        self._remote: Remote | None = None
        self._closed = False

    def start(
        self, command: str, stdin: Iterable[bytes], heard: Callable[[bytes], None] | None = None
    ) -> Remote:
        if not self._closed and not self._master.alive():
            self._master.close()
            self._master = self._again()
        pipe = subprocess.PIPE
        with self._lock:
            process = subprocess.Popen(
                [*self._master.words("-T"), command],
                stdin=pipe,
                stdout=pipe,
                stderr=pipe,
                start_new_session=True,
            )
            self._remote = Remote(process, stdin, heard)
            self._remote.host, self._remote.master = self._host, self._master
            if self._closed:  # while it was opened again
                self._end()
        return self._remote

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._end()

    def _end(self) -> None:
        if self._remote is not None:
            self._remote.give_up()
        self._master.close()  # which holds the command's pipes, too
        if self._remote is not None:
            self._remote.close()
