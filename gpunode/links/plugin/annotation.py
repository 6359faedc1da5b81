"""Node annotations with the device plugin's status that no plugin updates any more.

A pod that is killed leaves its annotation. Once the plugin has no right to nodes, only gpunode can remove it.
"""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.cluster.api import Api
from gpunode.contract.status import ANNOTATION
from gpunode.links import node as nodes
from gpunode.links.node import GPU_LABEL


def left(api: Api) -> Mapping[str, str]:
    """Node -> the annotation's text, of the plugin's nodes that have one."""
    return {
        node.name: node.plugin_status
        for node in nodes.every(api, labels=f"{GPU_LABEL}=true")
        if node.plugin_status
    }


def remove(api: Api) -> Mapping[str, str]:
    """Remove the annotations. Returns node -> the text removed."""
    found = left(api)
    for name in found:
        api.merge("Node", name, {"metadata": {"annotations": {ANNOTATION: None}}})
    return found


def title(node: str) -> str:
    """How messages name a node's annotation."""
    return f"Node {node} annotation {ANNOTATION}"
