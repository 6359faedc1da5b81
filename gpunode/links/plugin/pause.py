"""The plugin away from one node for a while: it uses the GPUs itself, so no driver is unloaded under it."""

from __future__ import annotations

import time
from collections.abc import Mapping

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import OnProgress
from gpunode.links.node import GPU_LABEL, Node, labels
from gpunode.links.plugin import daemonset

PAUSED = "paused"  # of GPU_LABEL: the DaemonSets' affinity wants "true"
OWNER = "gpunode.dev/plugin-paused-by"
SECONDS = 60.0  # for the pods to end
LOOK = 0.5


def on(api: Api, namespace: str, node: str) -> frozenset[str]:
    """UIDs of the plugin's pods on the node, those of MPS control daemons among them."""
    return frozenset(
        pod["metadata"]["uid"] for pod in daemonset.every_pod(api, namespace) if daemonset.place(pod) == node
    )


def everywhere(api: Api, namespace: str) -> dict[str, set[str]]:
    """The same of every node, by its name."""
    found: dict[str, set[str]] = {}
    for pod in daemonset.every_pod(api, namespace):
        found.setdefault(daemonset.place(pod), set()).add(pod["metadata"]["uid"])
    return found


def pause(
    api: Api, namespace: str, node: Node, wish: Mapping[str, str], owner: str, tell: OnProgress
) -> bool:
    """Take the plugin off the node, and wait until its pods are gone; False if they are not in time.

    `wish`: the labels that gpunode has on the node. To write them again brings the plugin back. Raises ClusterError where
    the label is another's.
    """
    labels.write(api, node, {**wish, GPU_LABEL: PAUSED}, annotations={OWNER: owner})
    tell("waiting for the device plugin to leave the node")
    end = time.monotonic() + SECONDS
    while on(api, namespace, node.name):
        if time.monotonic() >= end:
            return False
        time.sleep(LOOK)
    return True


def left(api: Api) -> dict[str, str]:
    """Nodes from which the plugin is away → by which owner: those of runs that died are among them."""
    nodes, _ = api.find("Node", labels=f"{GPU_LABEL}={PAUSED}")
    return {
        node["metadata"]["name"]: str((node["metadata"].get("annotations") or {}).get(OWNER, ""))
        for node in nodes
    }
