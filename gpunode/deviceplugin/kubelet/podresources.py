"""Which pod has which GPU, from the kubelet's pod-resources API. Asked on demand."""

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

from gpunode.contract import offer
from gpunode.contract.offer import Unit

from ..metrics import Sample
from ..rpc import Code, RpcError, call
from ..state import ContainerDevices
from .messages import containers_devices

log = logging.getLogger(__name__)

DEADLINE = 2.0  # seconds for an answer; a scrape has ten by default
FRESH = 5.0  # seconds that an answer is reused: several Prometheus servers cost the kubelet one call
LONGEST = 64 * 1024 * 1024  # bytes of an answer: there may be thousands of ids


class PodResources:
    """Client of the pod-resources API at `socket`; "": none."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._asking = asyncio.Lock()
        self._answer: tuple[ContainerDevices, ...] | None = None
        self._asked = float("-inf")
        self._problem = ""
        self.unknown = False  # the kubelet does not implement the call: it is older than 1.20

    async def samples(self, offers: Mapping[str, tuple[Unit, ...]]) -> list[Sample]:
        """Samples of units by container and device, for the offered resources; and whether the kubelet answered."""
        if not self._socket:
            return []
        answer = await self.ask(FRESH)
        if answer is None:
            return [("pod_resources_up", {}, 0.0)]
        samples = await asyncio.to_thread(pod_samples, answer, offers)
        return [("pod_resources_up", {}, 1.0), *samples]

    async def ask(self, age: float = 0.0) -> tuple[ContainerDevices, ...] | None:
        """Containers' devices as the kubelet reports them, at most `age` seconds old; None, logged, if it does not answer.

        Without those of init containers, unless they are sidecars, and without pods that have ended: with this call the
        kubelet forgets those.
        """
        async with self._asking:
            if time.monotonic() - self._asked >= age:
                self._answer = await self._ask()
                self._asked = time.monotonic()
            return self._answer

    async def _ask(self) -> tuple[ContainerDevices, ...] | None:
        try:
            answer = await call(
                Path(self._socket), "/v1.PodResourcesLister/List", b"", seconds=DEADLINE, longest=LONGEST
            )
        except RpcError as error:
            self.unknown = error.code is Code.UNIMPLEMENTED
            self._log_problem(f"{error.code.name}: {error.details}")
            return None
        self._log_problem("")
        return await asyncio.to_thread(containers_devices, answer)  # beside the event loop: it is long

    def _log_problem(self, why: str) -> None:
        """Log a problem once, not at every call."""
        if why and not self._problem:
            log.warning(
                "the kubelet does not report which pods have GPUs: %s", why, extra={"socket": self._socket}
            )
        self._problem = why


def pod_samples(
    containers: Iterable[ContainerDevices], offers: Mapping[str, tuple[Unit, ...]]
) -> list[Sample]:
    """Number of units by namespace, pod, container, resource and GPU (or MIG device). Pure."""
    gpus = {resource: {unit.id: unit.device.uuid for unit in units} for resource, units in offers.items()}
    counts: Counter[tuple[str, str, str, str, str]] = Counter()
    for container_devices in containers:
        known = gpus.get(container_devices.resource)
        namespace, _, pod = container_devices.pod.name.partition("/")
        for unit in container_devices.ids if known is not None else ():
            gpu = (known or {}).get(unit) or _earlier(unit)
            counts[namespace, pod, container_devices.container, container_devices.resource, gpu] += 1
    names = ("namespace", "pod", "container", "resource", "gpu")
    return [
        ("pod_devices", dict(zip(names, key, strict=True)), float(count))
        for key, count in sorted(counts.items())
    ]


def _earlier(unit_id: str) -> str:
    """The device of an earlier configuration's id; the id itself where it names none."""
    claim = offer.claim_of(unit_id)
    return unit_id if claim is None or claim.way == offer.GPUSHARE else claim.device
