"""The annotation of a node in which the device plugin keeps its view, where no plugin keeps it any more.

A pod that was killed leaves it there; once the plugin has lost its right to nodes, no other can take it away.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.cluster import nodes
from gpunode.cluster.api import Api
from gpunode.cluster.nodes import GPU_LABEL, SAID


def left(api: Api) -> Mapping[str, str]:
    """The nodes of gpunode's plugin that have it, and what it says there."""
    return {node.name: node.said for node in nodes.every(api, labels=f"{GPU_LABEL}=true") if node.said}


def remove(api: Api) -> Mapping[str, str]:
    """Take it away; from which nodes, and what it said."""
    found = left(api)
    for name in found:
        api.merge("Node", name, {"metadata": {"annotations": {SAID: None}}})
    return found


def title(node: str) -> str:
    """How messages name it."""
    return f"Node {node} annotation {SAID}"
