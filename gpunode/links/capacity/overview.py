"""The plugin's state on each node of the cluster, and what the node offers."""

from dataclasses import dataclass

from gpunode.cluster import pods
from gpunode.cluster.api import Api, side_by_side
from gpunode.errors import Problem
from gpunode.links import node as nodes
from gpunode.links.capacity.link import NO_POD, stale_counts, why_short, with_capacity
from gpunode.links.node import GPU_LABEL, Node
from gpunode.links.plugin import daemonset, expected, published
from gpunode.links.plugin.other_owners import NONE, Owners
from gpunode.links.plugin.published import CONTAINER
from gpunode.model import PluginConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The plugin on one node. `pod` is "" where there is none; `reason` is why it does not run, None where it does.
    `missing` then is why the node does not offer all its GPUs as the configuration wants. `note` explains what looks
    wrong and is not. `resource`: that capacity and allocatable are of."""

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
    resource: str = ""

    @property
    def wrong(self) -> str:
        """What is wrong with the plugin or with what the node offers."""
        return self.reason.what if self.reason else self.missing


def status(
    api: Api, namespace: str, config: PluginConfig | None = None, owners: Owners = NONE
) -> tuple[Row, ...]:
    """One row per node that has the GPU label or a plugin pod, with the last line the pod logged. `owners`: of nodes that
    are to have none."""
    by_node = daemonset.by_node(api.find("Pod", namespace, labels=daemonset.SELECTOR)[0])
    known = [
        node for node in nodes.fetch(api) if node.labels.get(GPU_LABEL) == "true" or node.name in by_node
    ]

    def row(node: Node) -> Row:
        pod = by_node.get(node.name)
        document = published.read(api, node, pod) if pod else NO_POD
        node = with_capacity(node, document)
        reason = owners.reason(node) or daemonset.read_state(api, namespace, node, pod).reason
        missing = "" if reason else expected.label_problem(config, node.labels)
        missing = missing or (
            "" if reason else why_short(api, node, document, config=config, namespace=namespace)
        )
        cordoned = missing if published.only_cordoned(document) else ""
        old = stale_counts(node, document, config)
        # What pods can request: nvidia.com/gpu, or the resources offered in its place.
        others = [name for name in node.offers if name.startswith("nvidia.com/")]
        counted = [name for name in node.counted if name not in old] or others or node.counted
        units = [node.resources[name] for name in counted]
        return Row(
            node=node.name,
            pod=pod["metadata"]["name"] if pod else "",
            phase=pod.get("status", {}).get("phase", "") if pod else "",
            restarts=pods.restarts(pod) if pod else 0,
            capacity=sum(unit.capacity for unit in units),
            allocatable=sum(unit.allocatable for unit in units),
            reason=reason,
            last_line=published.log_line(pods.last_lines(api, pod, CONTAINER, lines=20)) if pod else "",
            missing="" if cordoned else missing,
            note=cordoned or ("" if missing else _note(old)),
            resource=", ".join(counted),
        )

    return tuple(side_by_side(row, known))


def _note(old: dict[str, int]) -> str:
    """That the kubelet still counts the resources of a plugin that no longer offers them; "" for none."""
    if not old:
        return ""
    names = ", ".join(f"{name} ({count})" for name, count in old.items())
    several = len(old) > 1
    return (
        f"{names} {'are' if several else 'is'} of the earlier configuration; "
        f"the kubelet forgets {'them' if several else 'it'} within 5 minutes"
    )
