"""Keys that several kinds have."""

from __future__ import annotations

from typing import Annotated, TypeAlias

Host: TypeAlias = Annotated[str, "name in the inventory"]
Somewhere: TypeAlias = Annotated[str | None, "name in the inventory; null: the cluster"]
Node: TypeAlias = Annotated[str, "the node's name"]
Message: TypeAlias = Annotated[str, "for people"]
Seconds: TypeAlias = Annotated[float, "how long it took"]
Object: TypeAlias = Annotated[str, "kind and name, with the namespace"]
Resource: TypeAlias = Annotated[str, "name of the extended resource"]
Index: TypeAlias = Annotated[str, "the GPU's index"]
Uuid: TypeAlias = Annotated[str, "the GPU's UUID"]
