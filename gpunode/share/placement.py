"""Where a pod's containers are, and the annotations that say so. Pure.

A placement says where; how much is what the pod's spec asks for, which nobody can edit. gpushare's annotations hold one
GPU for a whole pod (pkg/utils/pod.go of its extender), ACK's hold indexes by container; gpunode's own names the GPU by
UUID, which survives that GPUs are counted anew, and the node it was chosen for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .choice import Choice
from .demand import Demand
from .gpus import Gpu
from .quantity import whole

OWN = "gpunode.dev/gpu-memory"  # of a pod: {"version": 1, "node", "containers": {name: [{"index", "uuid"}]}}
VERSION = 1
INDEX, DEV, POD = "ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_DEV", "ALIYUN_COM_GPU_MEM_POD"
ASSIGNED, ASSUMED = "ALIYUN_COM_GPU_MEM_ASSIGNED", "ALIYUN_COM_GPU_MEM_ASSUME_TIME"
# {container's position: {GPU's index: units}}, which kubectl-inspect-gpushare reads (cmd/inspect/nodeinfo.go).
ALLOCATION = "scheduler.framework.gpushare.allocation"


@dataclass(frozen=True, slots=True)
class Part:
    """One container's units of one GPU. `uuid` is "" where it was not known."""

    container: str
    index: str
    units: int
    uuid: str = ""


def made(demand: Demand, choice: Choice, gpus: Sequence[Gpu]) -> tuple[Part, ...]:
    """The placement that a choice among these GPUs makes."""
    return tuple(
        Part(ask.container, gpus[gpu].index, ask.each, gpus[gpu].uuid)
        for ask, positions in zip(demand.asks, choice, strict=True)
        for gpu in positions
    )


def notes(node: str, demand: Demand, parts: Sequence[Part], gpus: Sequence[Gpu], now: int) -> dict[str, str]:
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
        OWN: _line({"version": VERSION, "node": node, "containers": containers}),
        ALLOCATION: _line(by_position),
        # More than one is no number: gpushare's plugin refuses it, rather than place the whole pod on the first.
        INDEX: ",".join(indexes),
        DEV: str(size),
        POD: str(demand.units),
        ASSIGNED: "false",
        ASSUMED: str(now),
    }


def read(pod: Mapping[str, Any], node: str, demand: Demand) -> tuple[Part, ...] | None:
    """Where its annotations place the containers of a bound pod; None if they do not, or contradict its spec."""
    found = (pod.get("metadata") or {}).get("annotations") or {}
    for name, reader in ((OWN, _own), (ALLOCATION, _allocation), (INDEX, _index)):
        if name in found:
            try:
                return reader(str(found[name]), node, demand)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                return None
    return None


def _own(text: str, node: str, demand: Demand) -> tuple[Part, ...]:
    document = json.loads(text)
    if document["version"] != VERSION or document["node"] != node:
        raise ValueError("another version or node")
    parts = []
    for ask in demand.asks:
        gpus = {(str(one["index"]), str(one["uuid"])) for one in document["containers"][ask.container]}
        if not gpus or ask.units % len(gpus):
            raise ValueError("another number of GPUs")
        parts += [Part(ask.container, index, ask.units // len(gpus), uuid) for index, uuid in sorted(gpus)]
    return tuple(parts)


def _allocation(text: str, _node: str, demand: Demand) -> tuple[Part, ...]:
    document = json.loads(text)
    parts = []
    for ask in demand.asks:
        gpus = document[str(ask.position)]
        found = [Part(ask.container, index, whole(units)) for index, units in sorted(gpus.items())]
        if sum(part.units for part in found) != ask.units:
            raise ValueError("other units")
        parts += found
    return tuple(parts)


def _index(text: str, _node: str, demand: Demand) -> tuple[Part, ...]:
    if not (text.isascii() and text.isdecimal()):  # -1: gpushare's plugin found no GPU
        raise ValueError("no index")
    # gpushare places a pod as a whole.
    return tuple(Part(ask.container, str(int(text)), ask.units) for ask in demand.asks)


def _line(document: object) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))
