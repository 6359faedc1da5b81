"""The GPUs of a pod's containers, by its annotations. Pure.

A placement says where. How much comes from the pod's spec, which cannot be edited. gpushare's annotations hold one GPU
for a whole pod (pkg/utils/pod.go of its extender), ACK's hold indexes by container. gpunode's own hold the node and the
GPU's UUID, which stays when indexes change.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .demand import Demand
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
        if sum(part.units for part in found) != ask.units or len({part.units for part in found}) > 1:
            raise ValueError("other units, or uneven ones: a memory limit is the same on each GPU")
        parts += found
    return tuple(parts)


def _index(text: str, _node: str, demand: Demand) -> tuple[Part, ...]:
    if not (text.isascii() and text.isdecimal()):  # -1: gpushare's plugin found no GPU
        raise ValueError("no index")
    # gpushare places a pod as a whole.
    return tuple(Part(ask.container, str(int(text)), ask.units) for ask in demand.asks)
