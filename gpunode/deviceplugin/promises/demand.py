"""What a pod asks for, read from its object. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..settings.config import GPU_COUNT
from .quantity import whole

GPUS = GPU_COUNT  # label of a pod whose containers spread over so many GPUs, as in Alibaba Cloud's ACK
MOST_ASKS = 100  # sharing containers of a pod


class Malformed(ValueError):
    """The pod asks for what cannot be promised; the message says for what."""


def name(pod: Mapping[str, Any]) -> str:
    """Its namespace/name."""
    return f"{pod['metadata'].get('namespace', 'default')}/{pod['metadata']['name']}"


@dataclass(frozen=True, slots=True)
class Ask:
    """One container's: `each` units of each of `gpus` GPUs. `position` is its place among the pod's containers;
    sidecars come before the first, below zero."""

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
        """What the kubelet allocates in all."""
        return max(self.init, sum(ask.units for ask in self.asks))

    @cached_property
    def most_units(self) -> int:
        """Of one GPU, for one container."""
        return max(ask.each for ask in self.asks)

    @cached_property
    def most_gpus(self) -> int:
        """For one container."""
        return max(ask.gpus for ask in self.asks)


def of(pod: Mapping[str, Any], resource: str) -> Demand:
    """The demand for the resource of a pod that is to be placed. Raises Malformed."""
    try:
        gpus = whole(((pod.get("metadata") or {}).get("labels") or {}).get(GPUS, "1"))
    except (ValueError, TypeError, AttributeError) as error:
        raise Malformed(f"label {GPUS}: {error}") from None
    found = _read(pod, resource, gpus)
    if len(found.asks) > MOST_ASKS:
        raise Malformed(f"{len(found.asks)} containers ask for {resource}; at most {MOST_ASKS} of a pod can")
    return found


def held(pod: Mapping[str, Any], resource: str) -> Demand:
    """What a bound pod has: as if of one GPU, since its label can be edited. Raises Malformed."""
    return _read(pod, resource, 1)


def _read(pod: Mapping[str, Any], resource: str, gpus: int) -> Demand:
    try:
        spec = pod.get("spec") or {}
        inits = spec.get("initContainers") or []
        # A sidecar starts among the init containers, and runs beside the others.
        sidecars = [one for one in inits if one.get("restartPolicy") == "Always"]
        passing = [one for one in inits if one.get("restartPolicy") != "Always"]
        lasting = [*sidecars, *spec["containers"]]
        asks = tuple(_asks(lasting, -len(sidecars), resource, gpus))
        return Demand(asks, max((_units(one, resource) for one in passing), default=0))
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
        return whole(limits.get(resource, "0"))
    except ValueError as error:
        raise ValueError(f"{resource} of container {container.get('name')}: {error}") from None
