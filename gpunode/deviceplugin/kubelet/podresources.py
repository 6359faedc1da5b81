"""Which pod has which GPU, as the kubelet tells on its pod-resources socket. Asked when somebody wants to know."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Mapping

import grpc

from ..metrics import Sample
from ..resources import Unit
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
        self._answer: api.ListPodResourcesResponse | None = None
        self._asked = float("-inf")
        self._said = ""

    async def samples(self, offers: Mapping[str, tuple[Unit, ...]]) -> list[Sample]:
        """Units of each device that each container has, of the resources that are offered; and whether that is known."""
        if not self._socket:
            return []
        async with self._asking:
            if time.monotonic() - self._asked >= FRESH:
                self._answer = await self._ask()
                self._asked = time.monotonic()
        if self._answer is None:
            return [("pod_resources_up", {}, 0.0)]
        return [("pod_resources_up", {}, 1.0), *held(self._answer, offers)]

    async def _ask(self) -> api.ListPodResourcesResponse | None:
        """The kubelet's answer; None, with a word in the log, where there is none."""
        # A pool of its own: in the common one a failed connection is remembered, and a kubelet that is back is not asked.
        options = [("grpc.max_receive_message_length", LONGEST), ("grpc.use_local_subchannel_pool", 1)]
        async with grpc.aio.insecure_channel(f"unix:{self._socket}", options=options) as channel:
            call = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=api.ListPodResourcesRequest.SerializeToString,
                response_deserializer=api.ListPodResourcesResponse.FromString,
            )
            try:
                answer: api.ListPodResourcesResponse = await call(
                    api.ListPodResourcesRequest(), timeout=DEADLINE
                )
            except grpc.aio.AioRpcError as error:
                self._say(f"{error.code().name}: {error.details()}")
                return None
        self._say("")
        return answer

    def _say(self, why: str) -> None:
        """Log once, not at every scrape."""
        if why and not self._said:
            log.warning(
                "the kubelet does not tell which pods have GPUs: %s", why, extra={"socket": self._socket}
            )
        self._said = why


def held(answer: api.ListPodResourcesResponse, offers: Mapping[str, tuple[Unit, ...]]) -> list[Sample]:
    """Units by namespace, pod, container, resource and GPU (or MIG device). Pure."""
    gpus = {resource: {unit.id: unit.device.uuid for unit in units} for resource, units in offers.items()}
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    for pod in answer.pod_resources:
        for container in pod.containers:
            for devices in container.devices:
                known = gpus.get(devices.resource_name)
                for unit in devices.device_ids if known is not None else ():
                    # An id of an earlier configuration is still its pod's.
                    gpu = (known or {}).get(unit, unit)
                    counts[pod.namespace, pod.name, container.name, devices.resource_name, gpu] += 1
    names = ("namespace", "pod", "container", "resource", "gpu")
    return [
        ("pod_devices", dict(zip(names, key, strict=True)), float(count))
        for key, count in sorted(counts.items())
    ]
