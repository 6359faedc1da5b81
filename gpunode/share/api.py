"""What the extender asks the API server, and its client in a pod."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from http.client import HTTPException
from typing import Any, Protocol, TypeAlias

from gpunode.deviceplugin.cluster.apiserver import ApiError, InCluster

Object: TypeAlias = dict[str, Any]


class Api(Protocol):
    """The extender's calls to the API server. They raise ApiError."""

    def get(self, path: str) -> Object:
        """The object at `path`, or a list of objects."""

    def send(self, method: str, path: str, body: Object | None = None) -> None:
        """Create (POST) an object in the collection at `path`."""

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        """What happens to the objects that `path` selects: (ADDED | MODIFIED | DELETED | BOOKMARK, object)."""


class Client(InCluster):
    """The device plugin's client, which also reads."""

    def get(self, path: str) -> Object:
        with closing(self._connect()) as connection:
            answer = self._ask(connection, "GET", path, None)
            try:
                found = json.loads(answer.read())
            except (OSError, HTTPException, ValueError, RecursionError) as error:
                raise ApiError(0, f"the API server's answer broke: {error!r}") from None
        if not isinstance(found, dict):
            raise ApiError(0, "the API server's answer is no object")
        return found
