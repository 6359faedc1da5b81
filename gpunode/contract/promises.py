"""Demands of pods for memory of shared GPUs, their placement by annotations, and the nodes' documents on it. Pure.

A placement says where. How much comes from the pod's spec, which cannot be edited. gpushare's annotations hold one GPU
for a whole pod (pkg/utils/pod.go of its extender), ACK's hold indexes by container. gpunode's own hold the node and the
GPU's UUID, which stays when indexes change.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from .config import GPU_COUNT

MOST_UNITS = 2**63 - 1  # the API server's own limit
# The API server writes 1000 as "1k" (apimachinery's resource.Quantity is canonical).
SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)
}
QUANTITY = re.compile(r"([+-]?\d{1,19}(?:\.\d{0,18})?)(?:[eE]([+-]?\d{1,2})|([kMGTPE]|[KMGTPE]i)?)", re.ASCII)


def parse_quantity(value: object) -> int:
    """A quantity of an extended resource as a number. ValueError if it is not a whole number, negative or too large."""
    from decimal import Decimal  # the device plugin has no use for it

    match = QUANTITY.fullmatch(str(value)) if type(value) in (str, int) else None
    if match is None:
        raise ValueError(f"expected a quantity, found {str(value)[:40]!r}")
    digits, exponent, suffix = match.groups()
    number = Decimal(digits) * (Decimal(10) ** int(exponent) if exponent else SUFFIXES[suffix or ""])
    if number != number.to_integral_value():
        raise ValueError(f"expected a whole number, found {value!r}")
    if not 0 <= number <= MOST_UNITS:
        raise ValueError(f"expected a number from 0 to {MOST_UNITS}, found {value!r}")
    return int(number)


GPUS = GPU_COUNT  # label of a pod whose containers spread over so many GPUs, as in Alibaba Cloud's ACK
MOST_ASKS = 100  # sharing containers of a pod


class Malformed(ValueError):
    """The pod's request cannot be promised; the message has the cause."""


def pod_name(pod: Mapping[str, Any]) -> str:
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Ask:
    """A container's demand: `each` units of each of `gpus` GPUs. `position`: its place among the pod's containers; sidecars
    come before the first, below zero."""

    container: str
    position: int
    each: int
    gpus: int = 1

    @property
    def units(self) -> int:
        return self.each * self.gpus


@dataclass(frozen=True)
class Demand:
    """A pod's. `init`: the most that one of its init containers asks for, which runs before and ends."""

    asks: tuple[Ask, ...] = ()
    init: int = 0

    @cached_property  # all three are asked for each node
    def units(self) -> int:
        """Units that the kubelet allocates in all."""
        return max(self.init, sum(ask.units for ask in self.asks))

    @cached_property
    def most_units(self) -> int:
        """Of one GPU, for one container."""
        return max(ask.each for ask in self.asks)

    @cached_property
    def most_gpus(self) -> int:
        """For one container."""
        return max(ask.gpus for ask in self.asks)


def has_ended(pod: Mapping[str, Any]) -> bool:
    """True in the phases in which the kubelet has freed the pod's devices."""
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def demand_of(pod: Mapping[str, Any], resource: str) -> Demand:
    """The demand for the resource of a pod that is to be placed. Raises Malformed."""
    try:
        gpus = parse_quantity(((pod.get("metadata") or {}).get("labels") or {}).get(GPUS, "1"))
    except (ValueError, TypeError, AttributeError) as error:
        raise Malformed(f"label {GPUS}: {error}") from None
    demand = _demand(pod, resource, gpus)
    if len(demand.asks) > MOST_ASKS:
        raise Malformed(f"{len(demand.asks)} containers ask for {resource}; at most {MOST_ASKS} of a pod can")
    return demand


def bound_demand(pod: Mapping[str, Any], resource: str) -> Demand:
    """The demand of a bound pod, as if for one GPU, since its label can be edited. Raises Malformed."""
    return _demand(pod, resource, 1)


def _demand(pod: Mapping[str, Any], resource: str, gpus: int) -> Demand:
    try:
        spec = pod.get("spec") or {}
        inits = spec.get("initContainers") or []
        # A sidecar starts among the init containers, and runs beside the others.
        sidecars = [init for init in inits if init.get("restartPolicy") == "Always"]
        passing = [init for init in inits if init.get("restartPolicy") != "Always"]
        lasting = [*sidecars, *spec["containers"]]
        asks = tuple(_asks(lasting, -len(sidecars), resource, gpus))
        return Demand(asks, max((_units(container, resource) for container in passing), default=0))
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Malformed(f"the pod cannot be read: {error if str(error) else repr(error)}") from None


def _asks(containers: list[Mapping[str, Any]], first: int, resource: str, gpus: int) -> Iterator[Ask]:
    for position, container in enumerate(containers, first):
        units = _units(container, resource)
        if units:
            if not gpus or units % gpus:
                raise ValueError(
                    f"{units} {resource} of container {container['name']} by {gpus} GPUs is no whole number"
                )
            yield Ask(str(container["name"]), position, units // gpus, gpus)


def _units(container: Mapping[str, Any], resource: str) -> int:
    """A container's limit, which for an extended resource is its request."""
    limits = (container.get("resources") or {}).get("limits") or {}
    try:
        return parse_quantity(limits.get(resource, "0"))
    except ValueError as error:
        raise ValueError(f"{resource} of container {container.get('name')}: {error}") from None


# Of a pod: {"version": 1, "node", "containers": {name: [{"index", "uuid"}]}}. Of a node: version; mib: of a unit; gpus:
# [index, uuid, units, reserved, lost]; elsewhere: [uid, container, gpus].
MEMORY_ANNOTATION = "gpunode.dev/gpu-memory"
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


def placement_of(pod: Mapping[str, Any], node: str, demand: Demand) -> tuple[Part, ...] | None:
    """The placement of a bound pod by its annotations; None if they have none, or contradict its spec."""
    annotations = (pod.get("metadata") or {}).get("annotations") or {}
    for name, reader in ((MEMORY_ANNOTATION, _by_own), (ALLOCATION, _by_allocation), (INDEX, _by_index)):
        if name in annotations:
            try:
                return reader(str(annotations[name]), node, demand)
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
                return None
    return None


def _by_own(text: str, node: str, demand: Demand) -> tuple[Part, ...]:
    document = json.loads(text)
    if document["version"] != VERSION or document["node"] != node:
        raise ValueError("another version or node")
    parts = []
    for ask in demand.asks:
        gpus = {(str(gpu["index"]), str(gpu["uuid"])) for gpu in document["containers"][ask.container]}
        if not gpus or ask.units % len(gpus):
            raise ValueError("another number of GPUs")
        parts += [Part(ask.container, index, ask.units // len(gpus), uuid) for index, uuid in sorted(gpus)]
    return tuple(parts)


def _by_allocation(text: str, _node: str, demand: Demand) -> tuple[Part, ...]:
    document = json.loads(text)
    parts = []
    for ask in demand.asks:
        gpus = document[str(ask.position)]
        placed = [Part(ask.container, index, parse_quantity(units)) for index, units in sorted(gpus.items())]
        if sum(part.units for part in placed) != ask.units or len({part.units for part in placed}) > 1:
            raise ValueError("other units, or uneven ones: a memory limit is the same on each GPU")
        parts += placed
    return tuple(parts)


def _by_index(text: str, _node: str, demand: Demand) -> tuple[Part, ...]:
    if not (text.isascii() and text.isdecimal()):  # -1: gpushare's plugin found no GPU
        raise ValueError("no index")
    # gpushare places a pod as a whole.
    return tuple(Part(ask.container, str(int(text)), ask.units) for ask in demand.asks)


Place = frozenset[tuple[str, int]]  # UUIDs of GPUs, with the units of each


ELSEWHERE = "elsewhere"  # of the node's document


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A container with other GPUs than its pod's annotations name, and its units by the kubelet's record. `more`: no container of
    this size was promised these units, so its GPU gives more than was promised of it."""

    uid: str  # of its pod
    pod: str  # namespace/name
    container: str
    place: Place
    more: bool = False


def elsewhere_fields(moved: Sequence[Elsewhere]) -> list[dict[str, Any]]:
    """The entries of the node's document."""
    return [
        {"uid": each.uid, "container": each.container, "gpus": dict(sorted(each.place))} for each in moved
    ]


def read_elsewhere(document: Mapping[str, Any]) -> dict[str, dict[str, dict[str, int]]]:
    """Units by the pod's UID, container and UUID of the GPU. Raises LookupError, TypeError, ValueError, AttributeError."""
    pods: dict[str, dict[str, dict[str, int]]] = {}
    for entry in document.get(ELSEWHERE) or ():
        gpus = {str(uuid): parse_quantity(units) for uuid, units in entry["gpus"].items()}
        if not all(gpus.values()):
            raise ValueError("units below one")
        pods.setdefault(str(entry["uid"]), {})[str(entry["container"])] = gpus
    return pods
