"""Containers whose GPUs are others than their pods' annotations say, as the plugin publishes them for the extender. Pure.

The kubelet decides which units a container gets. The extender has no other way to learn of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .prefer import Place

KEY = "elsewhere"  # of the document in the node's annotation (`sizes`)


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """One container's units by the kubelet's own record. `more`: no container of this size was promised these, so its GPU
    gives more than was promised of it."""

    uid: str  # of its pod
    pod: str  # namespace/name
    container: str
    place: Place
    more: bool = False


def fields(found: Sequence[Elsewhere]) -> list[dict[str, Any]]:
    """As the document has them."""
    return [{"uid": one.uid, "container": one.container, "gpus": dict(sorted(one.place))} for one in found]


def read(document: Mapping[str, Any]) -> dict[str, dict[str, dict[str, int]]]:
    """Units by the pod's UID, container and UUID of the GPU. Raises LookupError, TypeError, ValueError, AttributeError."""
    pods: dict[str, dict[str, dict[str, int]]] = {}
    for one in document.get(KEY) or ():
        gpus = {str(uuid): int(units) for uuid, units in one["gpus"].items()}
        if any(units <= 0 for units in gpus.values()):
            raise ValueError("units below one")
        pods.setdefault(str(one["uid"]), {})[str(one["container"])] = gpus
    return pods
