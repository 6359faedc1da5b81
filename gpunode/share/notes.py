"""The annotations that say where a pod's containers are. Pure."""

from __future__ import annotations

import json
from collections.abc import Sequence

from gpunode.contract.promises import (
    ALLOCATION,
    ASSIGNED,
    ASSUMED,
    DEV,
    INDEX,
    MEMORY_ANNOTATION,
    POD,
    VERSION,
    Demand,
    Part,
)

from .choice import Choice
from .gpus import Gpu


def placed(demand: Demand, choice: Choice, gpus: Sequence[Gpu]) -> tuple[Part, ...]:
    """The placement that a choice among these GPUs makes."""
    return tuple(
        Part(ask.container, gpus[gpu].index, ask.each, gpus[gpu].uuid)
        for ask, positions in zip(demand.asks, choice, strict=True)
        for gpu in positions
    )


def of(node: str, demand: Demand, parts: Sequence[Part], gpus: Sequence[Gpu], now: int) -> dict[str, str]:
    """The annotations of a pod placed like this at `now` (nanoseconds of Unix time)."""
    containers: dict[str, list[dict[str, str]]] = {}
    by_position: dict[str, dict[str, int]] = {}
    position = {ask.container: str(ask.position) for ask in demand.asks}
    for part in parts:
        containers.setdefault(part.container, []).append({"index": part.index, "uuid": part.uuid})
        by_position.setdefault(position[part.container], {})[part.index] = part.units
    indexes = list(dict.fromkeys(part.index for part in parts))
    size = next(gpu.units for gpu in gpus if gpu.index == indexes[0])
    return {
        MEMORY_ANNOTATION: _line({"version": VERSION, "node": node, "containers": containers}),
        ALLOCATION: _line(by_position),
        # More than one is no number: gpushare's plugin refuses it, rather than place the whole pod on the first.
        INDEX: ",".join(indexes),
        DEV: str(size),
        POD: str(demand.units),
        ASSIGNED: "false",
        ASSUMED: str(now),
    }


def _line(document: object) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
