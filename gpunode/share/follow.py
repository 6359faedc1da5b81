"""What the extender follows of the API server: nodes and pods for its ledger, and its own node."""

from __future__ import annotations

from urllib.parse import quote

from gpunode.deviceplugin.cluster.apiserver import Kind, Object

from .ledger import Ledger


def kinds(ledger: Ledger) -> tuple[Kind, Kind]:
    """Nodes and pods. Pods of all nodes and of none: the end of one that was not bound frees what is reserved for it."""
    nodes = Kind("/api/v1/nodes", _name, ledger.node_seen, ledger.node_gone, lambda: set(ledger.books()))
    return nodes, Kind("/api/v1/pods", _uid, ledger.pod_seen, ledger.pod_gone, ledger.pods)


def _name(node: Object) -> str:
    return str(node["metadata"]["name"])


def _uid(pod: Object) -> str:
    return str(pod["metadata"]["uid"])


class Home:
    """A node, followed. `ready`: Services lead to its pods. They do not once its kubelet is silent, though its containers go on
    and reach the API server: a leader there would get no requests."""

    def __init__(self, node: str) -> None:
        self.ready = True  # until more is known
        self._node = node

    @property
    def kind(self) -> Kind:
        """What a Follower follows to keep this current."""
        path = f"/api/v1/nodes?fieldSelector=metadata.name%3D{quote(self._node, safe='')}"
        return Kind(path, lambda node: str(node["metadata"]["name"]), self._seen, self._gone, self._known)

    def _seen(self, node: Object) -> None:
        conditions = (node.get("status") or {}).get("conditions") or []
        self.ready = all(
            condition["status"] == "True" for condition in conditions if condition["type"] == "Ready"
        )

    def _gone(self, _name: str) -> None:
        self.ready = False

    def _known(self) -> set[str]:
        return {self._node}
