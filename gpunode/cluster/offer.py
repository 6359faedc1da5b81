"""What a node offers its pods: why it is not what its host has, and waiting until it is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeAlias

from gpunode.cluster import daemonset, mps, nodes, pods, said
from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object
from gpunode.cluster.nodes import GPU_LABEL, Node
from gpunode.cluster.watch import Patience, Tell, follow
from gpunode.errors import ClusterError

Expected: TypeAlias = int | Mapping[str, int] | str | None
"""What a node is to offer: so many GPUs, so many units of each resource, some of a resource, or anything at all (None)."""


def why_not(api: Api, node: Node, expected: int | None, namespace: str) -> str:
    """Why the node does not offer `expected` GPUs, in one line. Asks the API for pods, events and logs.

    None: why it does not offer the shares of GPUs that the plugin's configuration makes.
    """
    if not node.ready:
        return f"the node is not Ready: {node.why_not_ready}"
    if node.labels.get(GPU_LABEL) != "true":
        return f"the node has no label {GPU_LABEL}=true, so no plugin runs there"
    found = api.find("Pod", namespace, labels=daemonset.SELECTOR, fields=f"spec.nodeName={node.name}")[0]
    pod = daemonset.by_node(found).get(node.name)
    if pod is None or not pods.ready(pod):
        return daemonset.why(api, namespace, node, pod)
    words = said.last(api, node, pod)
    node = current(api, node, pod)
    if expected is None:
        return (
            mps.trouble(api, namespace, node)
            or words
            or "the plugin runs, but the kubelet counts none of them yet"
        )
    log = f"; {words}" if words else ""
    if node.capacity == 0:
        return f"the plugin runs, but the kubelet does not count its GPUs yet{log}"
    if node.shared and node.allocatable == node.capacity == expected:  # then memory is missing
        return words or "the plugin offers not all of their memory yet"
    lost = node.capacity - node.allocatable
    if lost > 0 and said.holders(words):
        return f"{lost} of {node.capacity} {_counted(node)} held back: {words}"
    if node.allocatable == 0:
        return f"the kubelet offers none of its {node.capacity} GPUs yet{log}"
    if node.allocatable < node.capacity:
        return f"{lost} of {node.capacity} {_counted(node)} are unhealthy{log}"
    return f"the kubelet counts {node.capacity} GPUs, the host has {expected}{log}"


def current(api: Api, node: Node, pod: Object | None) -> Node:
    """The node with the `capacity` that it has by the configuration in force, as far as its plugin tells; of an earlier one
    the kubelet counts what was offered for five minutes more."""
    if pod is None or len(node.counted) < 2:
        return node
    return node.counting(said.offers(api, node, pod) or node.counted)


def wait_allocatable(
    api: Api,
    name: str,
    expected: Expected,
    *,
    namespace: str,
    seconds: float,
    tell: Tell,
    waited: float = 0.0,
) -> Node:
    """Wait until the node offers exactly what is expected of it; a ClusterError with the reason when it does not in
    time, or what is missing waits for pods to end. `waited`: seconds that it had before, while others were waited for."""
    node: Node | None = None
    patience = Patience(tell)
    begun = time.monotonic()
    for found in follow(api, "Node", seconds=seconds, fields=f"metadata.name={name}", tell=tell):
        if name not in found:
            continue
        node = nodes.parse(found[name])
        if node.ready and _offers(node, expected):
            return node
        reason = patience.tell(
            f"{name} offers {_part(node, expected)}",
            lambda node=node: lacking(api, node, expected, namespace),  # type: ignore[misc]
        )
        if said.holders(reason):  # that may take days
            break
    seconds = min(seconds, time.monotonic() - begun)
    why = lacking(api, node, expected, namespace) if node else "there is no such node"
    holders = " and ".join(said.holders(why))
    raise ClusterError(
        f"{name} offers {_part(node, expected)} after {waited + seconds:.0f} s: {why}",
        hint=f"Nothing to mend; wait for the end of {holders}, or end what runs there."
        if holders
        else f"See `kubectl describe node {name}` and `kubectl -n {namespace} logs -l {daemonset.SELECTOR}`.",
    )


def _offers(node: Node, expected: Expected) -> bool:
    if isinstance(expected, Mapping):
        return all(node.units.get(resource, 0) == count for resource, count in expected.items())
    if isinstance(expected, str):
        return node.units.get(expected, 0) > 0
    return bool(node.offers) if expected is None else node.allocatable == expected


def _counted(node: Node) -> str:
    """What the node's capacity counts: of nvidia.com/gpu one may be a share."""
    return "GPUs" if node.shared else pods.GPU


def _part(node: Node | None, expected: Expected) -> str:
    if isinstance(expected, Mapping):
        have = node.units if node else {}
        return ", ".join(
            f"{have.get(resource, 0)} of {count} {resource}" for resource, count in expected.items()
        )
    if isinstance(expected, str):
        return f"{node.units.get(expected, 0) if node else 0} {expected}"
    return f"{node.allocatable if node else 0}{'' if expected is None else f' of {expected}'} GPUs"


def lacking(api: Api, node: Node, expected: Expected, namespace: str) -> str:
    """Why the node does not offer what is expected of it."""
    if isinstance(expected, (Mapping, str)):
        return why_not(api, node, None, namespace)
    return why_not(api, node, max(1, node.capacity) if expected is None else expected, namespace)
