"""Processes that use the GPUs, in words."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.model import GpuUser
from gpunode.wording import few

SHOWN = 5


def names(users: Sequence[GpuUser]) -> str:
    """`python (pid 4242, pod 1b2c…), Xorg (pid 900) and 2 more`."""
    return few([_name(user) for user in users], SHOWN)


def _name(user: GpuUser) -> str:
    where = ""
    if user.pod:
        where = f", pod {user.pod}"
    elif user.container:
        where = f", container {user.container[:12]}"
    return f"{user.command} (pid {user.pid}{where})"
