"""A node's allocatable GPUs: a wait for the expected count, and the reason where it is not reached."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TypeAlias

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress, Patience, follow
from gpunode.contract.status import Status
from gpunode.errors import ClusterError, Problem
from gpunode.links import node as nodes
from gpunode.links.node import GPU_LABEL, Node
from gpunode.links.plugin import daemonset, published
from gpunode.wording import Advice, Command

NOT_READY = "node-not-ready"  # code

Expected: TypeAlias = int | Mapping[str, int] | str | None
"""What a node should offer: a count of GPUs, units by resource, a resource (any units of it), or None (any GPU)."""


def why_not(api: Api, node: Node, expected: int | None, namespace: str) -> Problem:
    """Why the node does not offer `expected` GPUs, from pods, events and logs.

    None: why it does not offer the shared units that the plugin's configuration makes.
    """
    if not node.ready:
        return Problem(NOT_READY, f"the node is not Ready: {node.why_not_ready}")
    if node.labels.get(GPU_LABEL) == daemonset.PAUSED:
        fix = Advice("`", Command("provision"), "` brings it back.")
        return Problem(
            "paused", f"a run took the plugin off {node.name} for another driver, and did not end", fix=fix
        )
    if node.labels.get(GPU_LABEL) != "true":
        return Problem("no-label", f"the node has no label {GPU_LABEL}=true, so no plugin runs there")
    pod = _plugins_pod(api, node, namespace)
    if pod is None or not pods.ready(pod):
        return daemonset.why(api, namespace, node, pod)
    status = published.read(api, node, pod)
    why = published.why_missing(status)
    node = current(api, node, pod, status)
    if expected is None:
        if waiting := daemonset.mps_problem(api, namespace, node):
            return Problem("mps", waiting)
        return why or Problem("not-counted", "the plugin runs, but the kubelet counts none of them yet")
    if node.shared and node.allocatable == node.capacity == expected:  # then memory is missing
        return why or Problem("memory-missing", "the plugin does not offer all of their memory yet")
    lost, holders = node.capacity - node.allocatable, why.holders if why else ()
    cause = (why.what if why else "") or published.earlier(api, node, pod)
    cause = f"; {cause}" if cause else ""
    if node.capacity == 0:
        words, code = "the plugin runs, but the kubelet does not count its GPUs yet", "not-counted"
    elif why and lost > 0 and holders:
        words, code, cause = f"{lost} of {node.capacity} {_counted(node)} reserved: {why}", "reserved", ""
    elif node.allocatable == 0:
        words, code = f"the kubelet offers none of its {node.capacity} GPUs yet", "none-allocatable"
    elif lost > 0:
        words, code = f"{lost} of {node.capacity} {_counted(node)} are unhealthy", "unhealthy"
    else:
        words, code = f"the kubelet counts {node.capacity} GPUs, the host has {expected}", "count-differs"
    return Problem(why.code if why else code, words + cause, fix=why.fix if why else "", holders=holders)


def _plugins_pod(api: Api, node: Node, namespace: str) -> Object | None:
    found = api.find("Pod", namespace, labels=daemonset.SELECTOR, fields=f"spec.nodeName={node.name}")[0]
    return daemonset.by_node(found).get(node.name)


def current(api: Api, node: Node, pod: Object | None, status: Status | Problem | None = None) -> Node:
    """The node with the `capacity` of the plugin's configuration in force, as far as its plugin reports it. The kubelet
    counts the resources of an earlier configuration for five more minutes, or until its next start: it sets them to 0 once, and
    not again where the API server was away at that moment."""
    if pod is None or len(node.counted) < 2:
        return node
    status = status or published.read(api, node, pod)
    return node.counting(published.offered(status) or node.counted)


def wait_allocatable(
    api: Api,
    name: str,
    expected: Expected,
    *,
    namespace: str,
    seconds: float,
    tell: OnProgress,
    waited: float = 0.0,
) -> Node:
    """Wait until the node offers exactly `expected`. Raises ClusterError with the reason at the deadline, or when the
    missing units are reserved by pods. `waited`: seconds spent before this call."""
    node: Node | None = None
    patience = Patience(tell)
    begun = time.monotonic()
    for found in follow(api, "Node", seconds=seconds, fields=f"metadata.name={name}", tell=tell):
        if name not in found:
            continue
        node = nodes.parse(found[name])
        if isinstance(expected, int) and len(node.counted) > 1:
            node = current(api, node, _plugins_pod(api, node, namespace))
        if node.ready and _offers(node, expected):
            return node
        reason = patience.tell(
            f"{name} offers {_part(node, expected)}",
            lambda node=node: why_unmet(api, node, expected, namespace),  # type: ignore[misc]
        )
        if reason and reason.holders:  # that may take days
            break
    seconds = min(seconds, time.monotonic() - begun)
    why = why_unmet(api, node, expected, namespace) if node else Problem("no-node", "there is no such node")
    holders = " and ".join(pod if "/" in pod else f"with UID {pod}" for pod in why.holders)
    raise ClusterError(
        f"{name} offers {_part(node, expected)} after {waited + seconds:.0f} s: {why}",
        hint=f"Nothing to fix: wait until {holders} has ended, or delete it."
        if len(why.holders) == 1
        else f"Nothing to fix: wait until {holders} have ended, or delete them."
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
    """The unit of the node's capacity: one of nvidia.com/gpu may be a shared unit."""
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


def why_unmet(api: Api, node: Node, expected: Expected, namespace: str) -> Problem:
    """Why the node does not offer `expected`."""
    if isinstance(expected, (Mapping, str)):
        return why_not(api, node, None, namespace)
    return why_not(api, node, max(1, node.capacity) if expected is None else expected, namespace)
