"""The node on which a replica runs."""

from __future__ import annotations

from urllib.parse import quote

from gpunode.deviceplugin.cluster.apiserver import Object
from gpunode.deviceplugin.cluster.follow import Kind


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
        self.ready = all(one["status"] == "True" for one in conditions if one["type"] == "Ready")

    def _gone(self, _name: str) -> None:
        self.ready = False

    def _known(self) -> set[str]:
        return {self._node}
