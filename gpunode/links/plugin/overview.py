"""The plugin's state on each node, and the node's allocatable GPUs."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gpunode.cluster import pods
from gpunode.cluster.api import AT_ONCE, Api
from gpunode.cluster.api.kinds import Object
from gpunode.contract.status import Status
from gpunode.errors import Problem
from gpunode.links import node as nodes
from gpunode.links.node import GPU_LABEL, Node
from gpunode.links.plugin import capacity, daemonset, expected, published
from gpunode.links.plugin.dra import NONE, Owners
from gpunode.links.plugin.published import CONTAINER
from gpunode.model import PluginConfig

NO_POD = Problem("no-pod", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The plugin on one node. `pod` is "" where there is none; `reason` is why it does not run, None where it does.
    `missing` then is why the node does not offer all its GPUs as the configuration wants. `note` explains what looks
    wrong and is not."""

    node: str
    pod: str
    phase: str
    restarts: int
    capacity: int
    allocatable: int
    reason: Problem | None = None
    last_line: str = ""
    missing: str = ""
    note: str = ""
    resource: str = ""  # that capacity and allocatable are of

    @property
    def problem(self) -> str:
        """Why it does not run, for people; "" where it does."""
        return self.reason.what if self.reason else ""

    @property
    def wrong(self) -> str:
        """What is wrong with the plugin or with what the node offers."""
        return self.problem or self.missing


def status(
    api: Api, namespace: str, config: PluginConfig | None = None, owners: Owners = NONE
) -> tuple[Row, ...]:
    """One row per node that has the GPU label or a plugin pod, with the last line the pod logged. `owners`: of nodes that
    are to have none.

    A node that offers no GPU, or fewer than its kubelet counts, is a row with `missing`.
    """
    by_node = daemonset.by_node(api.find("Pod", namespace, labels=daemonset.SELECTOR)[0])
    known = [
        node for node in nodes.every(api) if node.labels.get(GPU_LABEL) == "true" or node.name in by_node
    ]

    def one(node: Node) -> Row:
        pod = by_node.get(node.name)
        waiting = pod is None or daemonset.ending(pod) or not pods.ready(pod)
        document = published.read(api, node, pod) if pod else NO_POD
        node = capacity.current(api, node, pod, document)
        found = row(api, namespace, node, pod, waiting, log=True)
        if owned := owners.reason(node):
            return replace(found, reason=owned)
        misnamed = expected.misnamed(config, node.labels)
        if not found.problem and misnamed:
            return replace(found, missing=misnamed)
        named = expected.memory(config, node.labels)
        offers = node.offers or node.units.get(named)
        if not found.problem and (not offers or 0 < node.allocatable < node.capacity):
            return replace(found, missing=capacity.why_unmet(api, node, named or None, namespace).what)
        old = _old(node, document, config)
        found = _counted(found, node, old)
        lost = ", ".join(f"{count} of {name}" for name, count in node.short.items() if name not in old)
        if not found.problem and lost:
            return replace(
                found, missing=f"{lost} not offered: {capacity.why_not(api, node, None, namespace)}"
            )
        missing = "" if found.problem or waiting else published.unseen(document)
        return replace(found, missing=missing, note=_forgotten({name: node.short[name] for name in old}))

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(one, known))


def row(api: Api, namespace: str, node: Node, pod: Object | None, waiting: bool, *, log: bool = False) -> Row:
    reason = (
        None if node.ready else Problem(capacity.NOT_READY, f"the node is not Ready: {node.why_not_ready}")
    )
    if node.ready and waiting:
        reason = daemonset.why(api, namespace, node, pod)
    line = published.log_line(pods.last_lines(api, pod, CONTAINER, lines=20)) if pod and log else ""
    return Row(
        node=node.name,
        pod=pod["metadata"]["name"] if pod else "",
        phase=pod.get("status", {}).get("phase", "") if pod else "",
        restarts=pods.restarts(pod) if pod else 0,
        capacity=node.capacity,
        allocatable=node.allocatable,
        reason=reason,
        last_line=line,
        resource=", ".join(node.counted),
    )


def _old(node: Node, status: Status | Problem, config: PluginConfig | None) -> tuple[str, ...]:
    """Resources that the kubelet still counts and no plugin offers: this configuration makes none of them, or the
    running plugin does not offer them."""
    none = [name for name in node.short if not node.units.get(name)]
    offers = published.offered(status)
    return tuple(
        name
        for name in none
        if not expected.makes(config, node.labels, name) or (offers is not None and name not in offers)
    )


def _counted(row: Row, node: Node, old: Collection[str]) -> Row:
    """The row with the counts of what pods can request: nvidia.com/gpu, or the resources offered in its place."""
    others = [name for name in node.offers if name.startswith("nvidia.com/")]
    names = [name for name in node.counted if name not in old] or others
    if not names:
        return row
    units = [node.resources[name] for name in names]
    return replace(
        row,
        resource=", ".join(names),
        capacity=sum(unit.capacity for unit in units),
        allocatable=sum(unit.allocatable for unit in units),
    )


def _forgotten(counts: Mapping[str, int]) -> str:
    """A note that the kubelet still counts the resources of a plugin that no longer offers them; "" for none."""
    if not counts:
        return ""
    names = ", ".join(f"{name} ({count})" for name, count in counts.items())
    several = len(counts) > 1
    return (
        f"{names} {'are' if several else 'is'} of the earlier configuration; "
        f"the kubelet forgets {'them' if several else 'it'} within 5 minutes"
    )
