"""What the extender asks the API server."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from gpunode.deviceplugin.cluster.apiserver import Object


class Api(Protocol):
    """The extender's calls to the API server. They raise ApiError."""

    def get(self, path: str) -> Object:
        """The object at `path`, or a list of objects."""

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        """Create (POST) an object in the collection at `path`."""

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        """What happens to the objects that `path` selects: (ADDED | MODIFIED | DELETED | BOOKMARK, object)."""
