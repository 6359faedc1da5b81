"""A host during a run: its one connection, over which the agent is asked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from gpunode.engine import chain
from gpunode.errors import AgentFailed, UnexpectedAnswer, Unreachable
from gpunode.host import reach, wire
from gpunode.local.password import Password
from gpunode.model import Host, PluginImage
from gpunode.packages import hint_of

INSTALL_SECONDS = 900.0  # for a package manager that installs Python

Dial = Callable[[Host], reach.Connection]


class Visit:
    """A host during a run, with its one connection: opened by the first job, kept until closed."""

    def __init__(
        self, host: Host, dial: Dial, image: PluginImage | None, password: Password | None = None
    ) -> None:
        self.host = host
        self.image = image
        self.install = ""  # the command by which the host gets a Python first, where it has none
        self.watch = chain.watch(image)
        self._dial = dial
        self._password = password
        self._connection: reach.Connection | None = None

    def ask(
        self, job: Mapping[str, Any], archives: Sequence[str] = ()
    ) -> Generator[dict[str, Any], None, None]:
        """Run one job with the agent; yields its messages, read. Raises AgentFailed when the agent refuses the job, or for a message
        that no agent sends."""
        if self._connection is None:
            self._connection = self._dial(self.host)
        try:
            for message in reach.talk(
                self.host,
                self._connection,
                job,
                archives=archives,
                password=self._password,
                install=self.install,
                silence=INSTALL_SECONDS if self.install else reach.SILENT_SECONDS,
            ):
                try:
                    known = wire.read(message)
                except UnexpectedAnswer as error:
                    raise unexpected(self.host, error) from error
                if known["type"] == "failed" and known["n"] is None:
                    code = known["code"]
                    raise AgentFailed(self.host.name, known["error"], hint=hint_of(code), code=code)
                yield known
        except Unreachable:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next `ask` opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def unexpected(host: Host, error: UnexpectedAnswer) -> AgentFailed:
    """The failure of a host that may answer anything."""
    return AgentFailed(
        host.name,
        f"the host answered {error}",
        hint="gpunode's agent does not: check that python3 on the host is Python, and what its login shell prints.",
    )
