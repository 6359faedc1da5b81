"""Processes that use the GPUs, in words."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.model import GpuUser
from gpunode.wording import few

SHOWN = 5


def names(users: Sequence[GpuUser]) -> str:
    """`python (pid 4242, pod ml/train), Xorg (pid 900) and 2 more`."""
    return few([str(user) for user in users], SHOWN)


def keys(users: Sequence[GpuUser]) -> tuple[str, ...]:
    """The pids of processes, and the UIDs of their pods: each once, in order."""
    return tuple(dict.fromkeys(user.pod or str(user.pid) for user in users))
