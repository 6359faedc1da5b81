"""What a pod asks for that wants some of a GPU, whatever the nodes offer."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.cluster import pods
from gpunode.links.node import Node
from gpunode.links.plugin import expected
from gpunode.model import PluginConfig


def unit(nodes: Sequence[Node], config: PluginConfig | None) -> tuple[str, Sequence[Node]]:
    """The resource of which the pod asks for one, and the nodes that may have it: GPUs where a node offers some, or none
    offers anything; else memory, else shares or MIG devices. `config`: the plugin's, which may name the memory."""
    offers = {node.name: {*node.offers, *_named(node, config)} for node in nodes}
    found = set().union(*offers.values())
    if pods.GPU in found or not found:
        return pods.GPU, nodes
    memory = {pods.MEMORY, *(name for node in nodes for name in _named(node, config))}
    resource = min(found & memory or found)
    return resource, [node for node in nodes if resource in offers[node.name]]


def _named(node: Node, config: PluginConfig | None) -> set[str]:
    """Memory under a name of the user's, where the node offers some."""
    name = expected.memory(config, node.labels)
    return {name} if node.units.get(name) else set()
