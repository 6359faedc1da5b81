"""The errors of gpunode, as one tree. Every error says what failed, where, and what to do next.

* GpunodeError                 exit code
  + UsageError                 2    options contradict each other, or name what cannot be used
  + InventoryError             2    mistakes in the inventory, all of them at once
  + TemplateError              2    a template is missing or does not render
  + CannotPlan                 4    no correct state exists for this host (planning; becomes a refused outcome)
  + HostError                  1    one host failed
    - Unreachable              3    no connection: network, host key, authentication, jump host
      - ConnectionLost         3    the connection broke during the work
    - SudoRefused              1    connected, but not allowed to become root
      - PasswordRefused        1    sudo did not accept the password; it is tried on no other host
    - AgentUnusable            1    the host cannot run the agent (no python3, no json module)
    - AgentFailed              1    the agent ran and reported an error
    - Refused                  4    gpunode does not change this host as it is
  + NoConnection               1    an SSH client's failure, which does not name the host (becomes Unreachable)
  + UnexpectedAnswer           1    a value of another type than the agent sends (becomes AgentFailed)
  + Flood                      1    more output than any host needs (becomes Unreachable or AgentFailed)
  + ClusterError               1    the Kubernetes API could not do what was asked
    - AnotherRun               4    another operator's run holds the cluster's Lease
    - HttpError                1    it answered with an HTTP error
    - ApiConnectionLost        1    it cannot be reached, or the connection broke
    - KubeconfigUnusable       2    the kubeconfig has no such context, or is none
  + WrongKey                   4    a key is not the one of the tables
  + Declined                   4    the user answered no
  + StalePlan                  4    what was reviewed is not what would be done now

The command line catches GpunodeError; `fleet` catches HostError and makes it the host's outcome. Anything else is a bug and
keeps its traceback.
"""

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from gpunode.wording import about, brief, lines

LONGEST, WORD = 2000, 300  # characters of a line of a message, and of a word in it
NO_RIGHTS = "no-rights"  # code of what a user may not do, in the cluster or on a host


Layer: TypeAlias = Literal[
    "ssh",  # only where the host's answer is missing or incomplete
    "container",  # only where no pod can run: of the host itself, after the runtime
    "work",  # only where containers have GPUs, or the kubelet refused pods: after the pod
    "PCI",
    "module",
    "library",
    "NVML",
    "toolkit",
    "runtime",
    "kubelet",
    "node",
    "plugin",
    "capacity",
    "pod",
]


@dataclass(frozen=True, slots=True)
class Problem:
    """What is wrong, as a value: made where it is known, shown to people, never parsed. Programs read `code`.

    `layer`: the link of verify's chain that it belongs to. `subject`: the host, node or GPUs that it is about. `fix`: the next
    thing to do, in the imperative. `holders`: pods whose end fixes it, as namespace/name, or a UID where that is all that is known.
    `writers`: codes of who wrote the files that are wrong, as planning/writers has them. `hosts`: several that have it alike.
    """

    code: str
    what: str
    layer: Layer | None = None
    subject: str = ""
    cause: str = ""
    fix: str = ""
    holders: tuple[str, ...] = ()
    writers: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()

    def __str__(self) -> str:
        return about(self.subject, lines((self.what, self.cause)))


class GpunodeError(Exception):
    """An expected failure. `problem` is why; its fix is the `hint`."""

    exit_code = 1

    def __init__(
        self, what: str, *, hint: str = "", code: str = "", subject: str = "", layer: Layer | None = None
    ) -> None:
        self.problem = Problem(code, clipped(what), layer, subject, fix=clipped(hint))
        super().__init__(self.message)

    @property
    def message(self) -> str:
        """What is wrong, with its subject."""
        return str(self.problem)

    @property
    def hint(self) -> str:
        """What to do next; "" where the message says it."""
        return self.problem.fix

    def __str__(self) -> str:
        hint = brief(self.hint)
        hint = hint if hint is self.hint else hint.replace("\n", "\n  ")  # else a here-document, to paste
        return f"{self.message}\n  {hint}" if hint else self.message


class UsageError(GpunodeError):
    """The options of a command contradict each other, or name what cannot be used."""

    exit_code = 2


class InventoryError(GpunodeError):
    """The inventory cannot be used. `problems` has one line per mistake; no host was contacted."""

    exit_code = 2

    def __init__(self, problems: list[str]) -> None:
        count = len(problems)
        super().__init__(
            "\n".join([*problems, f"{count} mistake{'s' if count > 1 else ''}, nothing was contacted."])
        )
        self.problems = [clipped(problem) for problem in problems]


def clipped(text: str) -> str:
    """Lines that a person can read: a value of thousands of characters is cut in its middle."""
    for most, long in ((WORD, r"(?<!\S)\S{%d,}"), (LONGEST, r"[^\n]{%d,}")):
        for piece in re.findall(long % (most + 1), text):
            text = text.replace(piece, f"{piece[: most // 2 - 2]} … {piece[2 - most // 2 :]}")
    return text


class TemplateError(GpunodeError):
    """A template is missing or does not render."""

    exit_code = 2


class CannotPlan(GpunodeError):
    """A host's state that no plan can be based on: of a planner, which does not know the host's name. `repository`: as Refused has it."""

    exit_code = 4

    def __init__(
        self,
        what: str,
        *,
        hint: str = "",
        layer: Layer | None = None,
        repository: Literal["driver", "toolkit", ""] = "",
    ) -> None:
        super().__init__(what, hint=hint, layer=layer)
        self.repository = repository

    def refusal(self, host: str, layer: Layer) -> "Refused":
        """The host's refusal, of this layer where the error names none."""
        layer = self.problem.layer or layer
        return Refused(host, self.message, hint=self.hint, layer=layer, repository=self.repository)


class HostError(GpunodeError):
    """One host failed; `host` is its name in the inventory, which the message leaves out."""

    def __init__(
        self, host: str, what: str, *, hint: str = "", code: str = "", layer: Layer | None = None
    ) -> None:
        super().__init__(what, hint=hint, code=code, subject=host, layer=layer)

    @property
    def host(self) -> str:
        return self.problem.subject

    @property
    def message(self) -> str:
        return self.problem.what


class Unreachable(HostError):
    """No usable connection. Its code is the cause, where a login failed: docs/failures.md lists them."""

    exit_code = 3


class ConnectionLost(Unreachable):
    """The connection broke during the work. Work already started on the host continues."""


class SudoRefused(HostError):
    """Connected, but sudo does not let this user become root."""

    def __init__(self, host: str, what: str, *, hint: str = "") -> None:
        super().__init__(host, what, hint=hint, code=NO_RIGHTS)


class PasswordRefused(SudoRefused):
    """Sudo did not accept the password, on this host or on one that tried it before."""


class AgentUnusable(HostError):
    """The host's python3 cannot run the agent. `install`: the command that installs one, where there is any."""

    def __init__(self, host: str, message: str, *, hint: str = "", install: str = "") -> None:
        super().__init__(host, message, hint=hint)
        self.install = install


class AgentFailed(HostError):
    """The agent reported an error, whose code is one of agent/failures', or ended without an answer."""


class Refused(HostError):
    """gpunode does not change this host as it is. `repository`: the one that is missing, where that is the reason."""

    exit_code = 4

    def __init__(
        self,
        host: str,
        what: str,
        *,
        hint: str = "",
        code: str = "",
        layer: Layer | None = None,
        repository: Literal["driver", "toolkit", ""] = "",
    ) -> None:
        super().__init__(host, what, hint=hint, code=code, layer=layer)
        self.repository = repository


class NoConnection(GpunodeError):
    """Connecting failed, would be unsafe, or ssh's configuration cannot be used. The dialer makes it Unreachable.
    `passes`: it may succeed when it is tried again soon."""

    def __init__(self, what: str, *, hint: str, code: str = "configuration", passes: bool = False) -> None:
        super().__init__(what, hint=hint, code=code)
        self.passes = passes


class UnexpectedAnswer(GpunodeError):
    """A value of another type. Its text is a clause: `a list where text is expected, in facts.kernel`."""


class Flood(GpunodeError):
    """More output than any answer needs; the text says how much."""


class ClusterError(GpunodeError):
    """The Kubernetes API could not do what was asked; the subject is the host or node that it is about."""


class AnotherRun(ClusterError):
    """Another operator's run holds the cluster's Lease."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Claim:
    """A field of an object, in the API server's words, and the field manager that set it last; "" where it does not
    know that one."""

    field: str
    manager: str


class HttpError(ClusterError):
    """The API server refused a request. `status` is HTTP's, `reason` that of Kubernetes: NotFound, Conflict, Expired.

    `claims` are the fields that a server-side apply would have to take from others. `untried`: why the dry run was
    refused, where the change itself may not be. `detail`: the API server's own sentence.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        status: int,
        reason: str,
        claims: tuple[Claim, ...] = (),
        untried: str = "",
        detail: str = "",
    ) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.reason = reason
        self.claims = claims
        self.untried = untried
        self.detail = detail


class ApiConnectionLost(ClusterError):
    """The API server cannot be reached, or the connection broke."""


class KubeconfigUnusable(ClusterError):
    """The kubeconfig cannot be used: found before any request, so nothing was contacted."""

    exit_code = 2


class Declined(GpunodeError):
    """The user answered no."""

    exit_code = 4


class StalePlan(GpunodeError):
    """What was reviewed is not what would be done now."""

    exit_code = 4


class WrongKey(GpunodeError):
    """What was found is not the key of the tables; nothing was written. `text`, `fingerprint`: of a key that may be NVIDIA's, as its
    fingerprint has the end that is known, and the user has not given the whole one; "" else."""

    exit_code = 4

    def __init__(self, what: str, *, hint: str, text: str = "", fingerprint: str = "") -> None:
        super().__init__(what, hint=hint)
        self.text, self.fingerprint = text, fingerprint
