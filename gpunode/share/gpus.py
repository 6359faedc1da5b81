"""A node's GPUs that are shared by memory, read from its object. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gpunode.contract import status
from gpunode.contract.config import GPU_COUNT
from gpunode.contract.promises import MEMORY_ANNOTATION, VERSION, Part, read_elsewhere, whole
from gpunode.contract.status import Reason

MOST_GPUS = 128  # of a node; a count beyond is a mistake


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU with its memory in units. `uuid` is "" where the node does not publish it; `lost`: its units are Unhealthy;
    `reserved`: units beside these, which pods use by an earlier configuration."""

    index: str
    units: int
    uuid: str = ""
    lost: bool = False
    reserved: int = 0


def of(node: Mapping[str, Any], resource: str) -> tuple[Gpu, ...] | Reason:
    """The node's GPUs, in the order of their indexes, or why it shares none that can be promised.

    Their sizes are those of the node's annotation. Without it they are the node's memory by its number of GPUs, as
    gpushare's extender divides (pkg/cache/nodeinfo.go), which is right only where all GPUs are alike and shared.
    """
    meta, capacity = node.get("metadata") or {}, (node.get("status") or {}).get("capacity") or {}
    annotations = meta.get("annotations") or {}
    try:
        total, count = (whole(capacity.get(name, "0")) for name in (resource, GPU_COUNT))
        if not total:
            return Reason("not-shared", f"it offers no {resource}")
        if MEMORY_ANNOTATION in annotations:
            gpus = _published(annotations[MEMORY_ANNOTATION])
        elif not 0 < count <= MOST_GPUS:
            return Reason("gpus-unknown", f"it does not publish its GPUs: {GPU_COUNT} is {count}")
        elif total % count:
            return Reason("gpus-unknown", f"its GPUs differ, and it does not publish each one's {resource}")
        else:
            gpus = tuple(Gpu(str(index), total // count) for index in range(count))
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        return Reason("gpus-unknown", f"what it publishes of its GPUs cannot be read: {error}")
    lost = _lost(annotations.get(status.ANNOTATION))
    return tuple(replace(gpu, lost=gpu.lost or (gpu.uuid or gpu.index) in lost) for gpu in gpus)


def unit(node: Mapping[str, Any], resource: str) -> int:
    """MiB of a unit of the resource; 0 where the node does not publish it."""
    if not isinstance(of(node, resource), tuple):
        return 0
    text = ((node["metadata"].get("annotations")) or {}).get(MEMORY_ANNOTATION)
    mib = json.loads(text).get("mib", 0) if text else 0
    return mib if isinstance(mib, int) and mib > 0 else 0


def moved(node: Mapping[str, Any]) -> dict[str, tuple[Part, ...]]:
    """What containers have by the kubelet's record, by their pod's UID: those pods that the node publishes as being on other
    GPUs than noted; {} where it cannot be read."""
    try:
        document = json.loads(
            ((node.get("metadata") or {}).get("annotations") or {}).get(MEMORY_ANNOTATION) or "{}"
        )
        index = {str(one["uuid"]): str(one["index"]) for one in document.get("gpus") or ()}
        return {
            uid: tuple(
                Part(container, index.get(uuid, ""), units, uuid)
                for container, gpus in sorted(containers.items())
                for uuid, units in sorted(gpus.items())
            )
            for uid, containers in read_elsewhere(document).items()
        }
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return {}


def _published(text: str) -> tuple[Gpu, ...]:
    document = json.loads(text)
    if document["version"] != VERSION:
        raise ValueError(f"version {document['version']}, expected {VERSION}")
    gpus = tuple(_gpu(one) for one in document["gpus"])
    if len({gpu.index for gpu in gpus}) < len(gpus) or len({gpu.uuid for gpu in gpus}) < len(gpus):
        raise ValueError("a GPU is listed twice")
    if not 0 < len(gpus) <= MOST_GPUS:
        raise ValueError(f"{len(gpus)} GPUs")
    return gpus


def _gpu(one: Mapping[str, Any]) -> Gpu:
    """Reserved units are used by an earlier configuration: they cannot be promised."""
    units, reserved = whole(one["units"]), whole(one.get("reserved", 0))
    return Gpu(
        str(one["index"]),
        max(units - reserved, 0),
        str(one["uuid"]),
        bool(one.get("lost")),
        min(reserved, units),
    )


def _lost(text: str | None) -> set[str]:
    """UUIDs and indexes of the GPUs that the plugin's status has as not allocatable; empty where it is not published."""
    if not text:
        return set()
    try:
        return {name for one in status.loads(text).lost for name in (one.device, one.index) if name}
    except ValueError:  # of another version: the kubelet still refuses what is Unhealthy
        return set()
