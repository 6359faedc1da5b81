"""The GPUs that pods of a node should see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpunode.links.plugin import expected
from gpunode.model import Gpu, PluginConfig


@dataclass(frozen=True, slots=True)
class Target:
    """A node and the UUIDs that its pods should see; () where unknown.

    `pieces`: units of memory of each GPU that is shared by memory; () where unknown.
    """

    node: str
    uuids: tuple[str, ...] = ()
    pieces: tuple[int, ...] = ()


def target(config: PluginConfig | None, node: str, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> Target:
    """The target of a node with these labels, whose host has these GPUs."""
    return Target(node, expected.uuids(config, gpus, labels), expected.pieces(config, gpus, labels))
