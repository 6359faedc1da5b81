"""How a new version of the plugin comes to the nodes: a tenth of them at a time, so that one that does not work is on no
more. Nodes that were without the plugin before do not count.

Kubernetes counts them: `maxUnavailable` is of all nodes that have no ready pod. Where so many are down or broken that it
goes no further, gpunode does, as far as it would have gone without them. Pure but for `go_on`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from gpunode.cluster import daemonset, pods
from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object
from gpunode.cluster.nodes import RUNTIME_LABEL, Node


def bound(count: int) -> int:
    """How many of so many nodes may be without the plugin at a time: what the template's 10 % comes to."""
    return max(1, -(-count // 10))


def waves(count: int) -> int:
    """In how many goes all of them are replaced."""
    return max(1, -(-count // bound(count)))


def without(nodes: Iterable[Node], found: Mapping[str, Object]) -> set[str]:
    """Nodes that have no ready pod."""
    return {node.name for node in nodes if not _serves(node, found.get(node.name))}


def go_on(
    api: Api,
    namespace: str,
    nodes: Sequence[Node],
    found: Mapping[str, Object],
    waiting: Collection[str],
    before: Collection[str],
) -> None:
    """Delete pods of the version of before, of nodes that wait for the new one, where Kubernetes does not because of those
    that were `before` without the plugin. `nodes` are all that are to have it."""
    for name in held_back(nodes, found, waiting, before):
        api.delete("Pod", found[name]["metadata"]["name"], namespace, uid=found[name]["metadata"]["uid"])


def held_back(
    nodes: Sequence[Node], found: Mapping[str, Object], waiting: Collection[str], before: Collection[str]
) -> list[str]:
    """The nodes whose turn it is by now."""
    turn: list[str] = []
    for mode in (True, False):  # a DaemonSet each
        these = [node for node in nodes if (node.labels.get(RUNTIME_LABEL) == "class") == mode]
        out, most = without(these, found), bound(len(these))
        if len(out) < most:
            continue  # Kubernetes goes on by itself
        due = [node.name for node in these if node.name in waiting and node.name not in out]
        turn += due[: max(0, most - len(out - set(before)))]
    return turn


def _serves(node: Node, pod: Object | None) -> bool:
    return node.ready and pod is not None and not daemonset.ending(pod) and pods.ready(pod)
