"""Expected trouble above the kubelet, as a value: made where it is known, shown to people, never parsed."""

from __future__ import annotations

from dataclasses import dataclass

from gpunode.deviceplugin.status import Pod
from gpunode.errors import ClusterError


@dataclass(frozen=True, slots=True)
class Reason:
    """Why something is not as it should be. Programs read `code`; `words` are for people and may change.

    `holders`: pods whose end is all that has to be waited for. `fix`: what to do, "" where `words` say it.
    """

    code: str
    words: str
    holders: tuple[Pod, ...] = ()
    fix: str = ""

    def __str__(self) -> str:
        return self.words


def of(code: str, error: ClusterError) -> Reason:
    """An error that ends only one host's part."""
    return Reason(code, error.message, fix=error.hint)
