"""What a pod asks for, read from its object. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from gpunode.deviceplugin.settings.config import GPU_COUNT

from .quantity import whole

GPUS = GPU_COUNT  # label of a pod whose containers spread over so many GPUs, as in Alibaba Cloud's ACK
MOST_ASKS = 100  # sharing containers of a pod


class Malformed(ValueError):
    """The pod asks for what nobody can promise; the message says for what."""


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
    """The pod's demand for the resource. Raises Malformed."""
    try:
        spec = pod.get("spec") or {}
        gpus = whole(((pod.get("metadata") or {}).get("labels") or {}).get(GPUS, "1"))
        inits = spec.get("initContainers") or []
        # A sidecar starts among the init containers, and runs beside the others.
        sidecars = [one for one in inits if one.get("restartPolicy") == "Always"]
        passing = [one for one in inits if one.get("restartPolicy") != "Always"]
        lasting = [*sidecars, *spec["containers"]]
        asks = tuple(_asks(lasting, -len(sidecars), resource, gpus))
        init = max((_units(one, resource) for one in passing), default=0)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Malformed(f"the pod cannot be read: {error if str(error) else repr(error)}") from None
    if len(asks) > MOST_ASKS:
        raise Malformed(f"{len(asks)} containers ask for {resource}; at most {MOST_ASKS} of a pod can")
    return Demand(asks, init)


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
