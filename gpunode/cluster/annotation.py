"""A node's annotation with the device plugin's status, where no plugin keeps it up to date any more.

A pod that was killed leaves it there; once the plugin has lost its right to nodes, no other can take it away.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.cluster import nodes
from gpunode.cluster.api import Api
from gpunode.cluster.nodes import GPU_LABEL
from gpunode.deviceplugin.status import ANNOTATION


def left(api: Api) -> Mapping[str, str]:
    """The nodes of gpunode's plugin that have it, and its text."""
    return {
        node.name: node.plugin_status
        for node in nodes.every(api, labels=f"{GPU_LABEL}=true")
        if node.plugin_status
    }


def remove(api: Api) -> Mapping[str, str]:
    """Take it away; from which nodes, and its text."""
    found = left(api)
    for name in found:
        api.merge("Node", name, {"metadata": {"annotations": {ANNOTATION: None}}})
    return found


def title(node: str) -> str:
    """How messages name it."""
    return f"Node {node} annotation {ANNOTATION}"
