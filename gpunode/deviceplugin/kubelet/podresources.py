"""Which pod has which GPU, as the kubelet tells on its pod-resources socket. Asked when somebody wants to know."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping

import grpc

from ..metrics import Sample
from ..offer import ids
from ..offer.holds import Holder
from ..offer.resources import Unit
from ..status import Pod
from . import podresources_pb2 as api

log = logging.getLogger(__name__)

DEADLINE = 2.0  # seconds for an answer; a scrape has ten by default
FRESH = 5.0  # seconds that an answer counts: two Prometheus servers, or an impatient one, cost the kubelet one question
LONGEST = 64 * 1024 * 1024  # bytes of an answer: each share of a GPU has an id, and there may be thousands


class PodResources:
    """Asks the kubelet behind `socket`; "" for nobody."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._asking = asyncio.Lock()
        self._answer: tuple[Holder, ...] | None = None
        self._asked = float("-inf")
        self._said = ""
        self.unknown = False  # the kubelet has said that it knows no such question: it is older than 1.20

    async def samples(self, offers: Mapping[str, tuple[Unit, ...]]) -> list[Sample]:
        """Units of each device that each container has, of the resources that are offered; and whether that is known."""
        if not self._socket:
            return []
        answer = await self.ask(FRESH)
        if answer is None:
            return [("pod_resources_up", {}, 0.0)]
        told = await asyncio.to_thread(given, answer, offers)
        return [("pod_resources_up", {}, 1.0), *told]

    async def ask(self, age: float = 0.0) -> tuple[Holder, ...] | None:
        """What containers have, as the kubelet tells; None, with a word in the log, where it does not. The answer may be
        so many seconds old.

        Not told is what init containers have, unless they go on beside the others; nor what pods had that have ended:
        with this question the kubelet forgets it.
        """
        async with self._asking:
            if time.monotonic() - self._asked >= age:
                self._answer = await self._ask()
                self._asked = time.monotonic()
            return self._answer

    async def _ask(self) -> tuple[Holder, ...] | None:
        # A pool of its own: in the common one a failed connection is remembered, and a kubelet that is back is not asked.
        options = [("grpc.max_receive_message_length", LONGEST), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            call = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=api.ListPodResourcesRequest.SerializeToString,
                response_deserializer=None,  # bytes: thousands of ids are read beside the event loop
            )
            try:
                answer: bytes = await call(api.ListPodResourcesRequest(), timeout=DEADLINE)
            except grpc.aio.AioRpcError as error:
                self.unknown = error.code() is grpc.StatusCode.UNIMPLEMENTED
                self._say(f"{error.code().name}: {error.details()}")
                return None
        self._say("")
        return await asyncio.to_thread(_parsed, answer)

    def _say(self, why: str) -> None:
        """Log once, not every time."""
        if why and not self._said:
            log.warning(
                "the kubelet does not tell which pods have GPUs: %s", why, extra={"socket": self._socket}
            )
        self._said = why


def _parsed(answer: bytes) -> tuple[Holder, ...]:
    return read(api.ListPodResourcesResponse.FromString(answer))


def read(answer: api.ListPodResourcesResponse) -> tuple[Holder, ...]:
    """What the kubelet's answer says. Pure."""
    found: dict[tuple[Pod, str, str], set[str]] = {}  # the kubelet tells by NUMA node, and in any order
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                key = (Pod(f"{pod.namespace}/{pod.name}"), container.name, devices.resource_name)
                found.setdefault(key, set()).update(devices.device_ids)
    return tuple(Holder(*key, tuple(sorted(held))) for key, held in found.items())


def given(holders: Iterable[Holder], offers: Mapping[str, tuple[Unit, ...]]) -> list[Sample]:
    """Units by namespace, pod, container, resource and GPU (or MIG device). Pure."""
    gpus = {resource: {unit.id: unit.device.uuid for unit in units} for resource, units in offers.items()}
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    for holder in holders:
        known = gpus.get(holder.resource)
        namespace, _, pod = holder.pod.name.partition("/")
        for unit in holder.ids if known is not None else ():
            gpu = (known or {}).get(unit) or _earlier(unit)
            counts[namespace, pod, holder.container, holder.resource, gpu] += 1
    names = ("namespace", "pod", "container", "resource", "gpu")
    return [
        ("pod_devices", dict(zip(names, key, strict=True)), float(count))
        for key, count in sorted(counts.items())
    ]


def _earlier(unit_id: str) -> str:
    """The device of an id that an earlier configuration gave; the id itself where it does not tell."""
    claim = ids.read(unit_id)
    return unit_id if claim is None or claim.way == ids.GPUSHARE else claim.device
