"""What the cluster has now: nodes, pods, and the usage of GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.engine import nodes
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, UsageError
from gpunode.links.capacity import link as capacity
from gpunode.links.plugin.usage import NodeUsage, read_usage
from gpunode.wording import near


@dataclass(frozen=True, slots=True)
class Cluster:
    """`hosts`: the session's hosts can be asked."""

    session: Session
    api: Api
    nodes: Sequence[Object]
    pods: Sequence[Object]
    hosts: bool

    def find_node(self, name: str) -> Object | None:
        return next((item for item in self.nodes if item["metadata"]["name"] == name), None)

    def named_node(self, name: str) -> Object:
        """Raises UsageError for a name that the user has wrong."""
        if item := self.find_node(name):
            return item
        raise absent("node", name, [item["metadata"]["name"] for item in self.nodes])

    def node(self, name: str) -> Object:
        """Raises ClusterError for a node that was deleted since it was read."""
        if item := self.find_node(name):
            return item
        raise ClusterError(f"the cluster has no node {name} any more", hint="Run it again.")

    def pods_of(self, node: str) -> list[Object]:
        return [pod for pod in self.pods if pod["spec"].get("nodeName") == node]

    def usage(self, only: Sequence[str] | None = None) -> tuple[NodeUsage, ...]:
        """As the plugins report it now."""
        namespace = self.session.inventory.cluster.namespace
        return read_usage(self.api, namespace, self.nodes, self.pods, only)


def read_cluster(session: Session, *, hosts: bool) -> Cluster:
    """Raises ClusterError."""
    api = nodes.connect(session.inventory)
    config = session.inventory.cluster.plugin_config
    items = [capacity.drop_stale(item, config) for item in api.find("Node")[0]]
    return Cluster(session, api, items, api.find("Pod")[0], hosts)


def absent(kind: str, name: str, names: Sequence[str]) -> UsageError:
    """With near ones of `names`, which the cluster has."""
    same = [other for other in names if other.rpartition("/")[2] == name.rpartition("/")[2]]
    close = (same or near(name, names, 3, 0.8))[:3]
    hint = f"`kubectl get {kind}s{' -A' if kind == 'pod' else ''}` lists them."
    if close:
        hint = f"Did you mean {' or '.join(close)}?"
    return UsageError(f"the cluster has no {kind} {name}", hint=hint)
