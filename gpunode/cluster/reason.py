"""Expected problems above the kubelet as values: made where they are known, shown to people, never parsed."""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.deviceplugin.status import Pod
from gpunode.errors import ClusterError
from gpunode.wording import about


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is not in its desired state. Programs read `code`; `words` are for people and may change.

    `subject`: the host or node that it is about; it comes before `words` where a row does not name it.
    `holders`: pods whose end fixes it. `fix`: what to do, "" where `words` say it.
    """

    code: str
    words: str
    holders: tuple[Pod, ...] = ()
    fix: str = ""
    subject: str = ""

    def __str__(self) -> str:
        return about(self.subject, self.words)


def of(code: str, error: ClusterError) -> Reason:
    """The reason for an error that concerns one host only."""
    return Reason(code, error.words, fix=error.hint, subject=error.subject)
