"""Who uses the GPUs, in words."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.model import GpuUser

SHOWN = 5


def names(users: Sequence[GpuUser]) -> str:
    """`python (pid 4242, pod 1b2c…), Xorg (pid 900) and 2 more`."""
    said = [_name(user) for user in users[:SHOWN]]
    more = f" and {len(users) - SHOWN} more" if len(users) > SHOWN else ""
    return ", ".join(said) + more


def _name(user: GpuUser) -> str:
    where = ""
    if user.pod:
        where = f", pod {user.pod}"
    elif user.container:
        where = f", container {user.container[:12]}"
    return f"{user.command} (pid {user.pid}{where})"
