"""A cluster without an inventory file: its GPU nodes in the place of hosts, the plugin as it is deployed there."""

from __future__ import annotations

from gpunode.engine import nodes
from gpunode.links import node as cluster_nodes
from gpunode.links.node import GPU_LABEL
from gpunode.links.plugin import deployed
from gpunode.model import Cluster, Host, Inventory, Ssh


def inventory(cluster: Cluster) -> Inventory:
    """What commands that ask the cluster alone need of an inventory. Its hosts are never dialled: each names its node.

    A cluster without a node that has gpunode's label has no hosts. Raises ClusterError where it does not answer.
    """
    asked = Inventory("", (), cluster)
    api = nodes.connect(asked)
    hosts = tuple(
        Host(node.name, Ssh(node.name), node=node.name) for node in cluster_nodes.every(api, labels=GPU_LABEL)
    )
    wish = Cluster(
        cluster.kubeconfig,
        cluster.context,
        cluster.namespace,
        deployed.image(api, cluster.namespace),
        deployed.config(api, cluster.namespace),
    )
    return Inventory(f"cluster {api.access.context}", hosts, wish)
