"""What the ledger follows of the API server."""

from __future__ import annotations

from gpunode.deviceplugin.cluster.apiserver import Object
from gpunode.deviceplugin.cluster.follow import Kind

from .ledger import Ledger


def kinds(ledger: Ledger) -> tuple[Kind, Kind]:
    """Nodes and pods. Pods of all nodes and of none: the end of one that was not bound frees what is reserved for it."""
    nodes = Kind("/api/v1/nodes", _name, ledger.node_seen, ledger.node_gone, lambda: set(ledger.books()))
    return nodes, Kind("/api/v1/pods", _uid, ledger.pod_seen, ledger.pod_gone, ledger.pods)


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])
