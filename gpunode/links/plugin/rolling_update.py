"""Rolling updates of the plugin: a tenth of the nodes at a time, so that a broken version stops there. Nodes that had no
ready plugin before do not count.

Kubernetes counts them: `maxUnavailable` is of all nodes without a ready pod. Where these stop the update, gpunode replaces
as many pods as Kubernetes would have replaced without them. Pure but for `advance`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.links.node import RUNTIME_LABEL, Node
from gpunode.links.plugin import daemonset


def bound(count: int) -> int:
    """How many of `count` nodes may be without the plugin at a time: the template's 10 %, rounded up."""
    return max(1, -(-count // 10))


def waves(count: int) -> int:
    """In how many batches all of them are replaced."""
    return max(1, -(-count // bound(count)))


def without(nodes: Iterable[Node], found: Mapping[str, Object]) -> set[str]:
    """Nodes without a ready pod."""
    return {node.name for node in nodes if not _serves(node, found.get(node.name))}


def advance(
    api: Api,
    namespace: str,
    nodes: Sequence[Node],
    found: Mapping[str, Object],
    waiting: Collection[str],
    before: Collection[str],
) -> None:
    """Delete pods of the earlier version where Kubernetes stops because of nodes that were without the plugin `before`.
    `nodes` are all that should have it, `waiting` those that have not the new version."""
    for name in due(nodes, found, waiting, before):
        api.delete("Pod", found[name]["metadata"]["name"], namespace, uid=found[name]["metadata"]["uid"])


def due(
    nodes: Sequence[Node], found: Mapping[str, Object], waiting: Collection[str], before: Collection[str]
) -> list[str]:
    """The nodes whose pods are replaced next."""
    turn: list[str] = []
    for mode in (True, False):  # a DaemonSet each
        these = [node for node in nodes if (node.labels.get(RUNTIME_LABEL) == "class") == mode]
        out, most = without(these, found), bound(len(these))
        if len(out) < most:
            continue  # Kubernetes continues on its own
        old = [node.name for node in these if node.name in waiting and node.name not in out]
        turn += old[: max(0, most - len(out - set(before)))]
    return turn


def _serves(node: Node, pod: Object | None) -> bool:
    return node.ready and pod is not None and not daemonset.ending(pod) and pods.ready(pod)
