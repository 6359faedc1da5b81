"""The ids of units. An id is all that the kubelet keeps of an allocation, so each one encodes what it stands for: a
plugin that starts later, with another configuration, reads from the ids what is still in use. Pure.

A whole device has its UUID as id; a share has the UUID, two colons and a number, as in NVIDIA's plugin. So every id
begins with the UUID.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..settings.config import MemorySharing, Share

WHOLE, TIME_SLICING, MPS, MEMORY = "whole", "time-slicing", "mps", "memory"
GPUSHARE = "gpushare"  # memory of a GPU that gpushare's plugin chose, not of the one in the id


@dataclass(frozen=True, slots=True)
class Claim:
    """What an id stands for: a device's UUID, and the way it is shared."""

    device: str
    way: str
    mib: int = 0  # of its memory


def shares(device: str, share: Share) -> list[str]:
    """The ids of a device's shares."""
    return [one_share(device, share, number) for number in range(share.replicas)]


def one_share(device: str, share: Share, number: int) -> str:
    """The id of a device's share with this number."""
    return f"{device}::{'mps-' if share.mps else ''}{number}"


def pieces(device: str, sharing: MemorySharing, count: int) -> list[str]:
    """The ids of `count` pieces of a GPU's memory."""
    return [f"{device}:{sharing.chunk}:{number}" for number in range(count)]


def read(unit_id: str) -> Claim | None:
    """What an id stands for; None for an unknown format."""
    device, _, rest = unit_id.partition(":")
    if not rest:
        gpu, mark, number = unit_id.rpartition("-_-")
        return Claim(gpu, GPUSHARE) if mark and number.isdecimal() else Claim(unit_id, WHOLE)
    share = rest.removeprefix(":mps-")
    if share != rest:
        return Claim(device, MPS) if share.isdecimal() else None
    first, _, second = rest.partition(":")
    if not second.isdecimal():
        return None
    if not first:
        return Claim(device, TIME_SLICING)
    return Claim(device, MEMORY, int(first)) if first.isdecimal() else None
