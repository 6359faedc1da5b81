"""What can go wrong, as one tree. Every error says what failed, where, and what to do next.

* GpunodeError                 exit code
  + UsageError                 2    the options of a command do not fit together
  + InventoryError             2    mistakes in the inventory, all of them at once
  + TemplateError              2    a template does not render
  + HostError                  1    something about one host
    - Unreachable              3    no connection: network, host key, authentication, jump host
      - ConnectionLost         3    the connection went away in the middle
    - SudoRefused              1    connected, but not allowed to become root
      - PasswordRefused        1    sudo did not accept the password: it is not tried again
    - AgentUnusable            1    the host cannot run the agent (no python3, no json module)
    - AgentFailed              1    the agent ran and reported an error
    - Refused                  4    no right state exists for this host, or reaching it would break it
  + ClusterError               1    the Kubernetes API: unreachable, forbidden, never became ready
  + Declined                   4    the person said no

Only the command line catches GpunodeError, and `fleet` those of a host; anything else is a bug and keeps its
traceback, in a host's story as that host's failure.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class GpunodeError(Exception):
    """An expected failure. `hint` is the next thing to do, in one sentence."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  {self.hint}" if self.hint else self.message


class UsageError(GpunodeError):
    """The command line asks for nothing that can be done."""

    exit_code = 2


class InventoryError(GpunodeError):
    """The inventory cannot be used; `problems` holds one line per mistake, nothing was contacted."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        count = len(problems)
        super().__init__(
            "\n".join([*problems, f"{count} mistake{'s' if count > 1 else ''}, nothing was contacted."])
        )
        self.problems = problems


class TemplateError(GpunodeError):
    """A template is missing or does not render."""

    exit_code = 2


class HostError(GpunodeError):
    """Something about one host failed; `host` is its name as the user wrote it."""

    def __init__(self, host: str, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.host = host


class Unreachable(HostError):
    """No usable connection."""

    exit_code = 3


class ConnectionLost(Unreachable):
    """The connection went away in the middle; what was begun on the host goes on there."""


class SudoRefused(HostError):
    """Connected, but sudo does not let this user become root."""


class PasswordRefused(SudoRefused):
    """Sudo did not accept the password, here or on the host that tried it first."""


class AgentUnusable(HostError):
    """The host's python cannot run the agent."""


class AgentFailed(HostError):
    """The agent reported an error, or ended without an answer."""


class Refused(HostError):
    """gpunode will not touch this host as it stands; the message says why, the hint the way out.

    `layer` is the link of verify's chain that it is about.
    """

    exit_code = 4

    def __init__(self, host: str, message: str, *, hint: str = "", layer: str = "") -> None:
        super().__init__(host, message, hint=hint)
        self.layer = layer


@contextmanager
def about(layer: str) -> Iterator[None]:
    """A refusal in here that names no link of its own is about this one."""
    try:
        yield
    except Refused as refused:
        refused.layer = refused.layer or layer
        raise


class ClusterError(GpunodeError):
    """The Kubernetes API could not do what was asked."""


class Declined(GpunodeError):
    """The person who was asked said no."""

    exit_code = 4
