"""The device plugin service of one resource: lists units, prefers and allocates them.

v1beta1; and v1alpha1 (Kubernetes 1.8) and v1alpha2 (1.9) on top of it, whose kubelets know no preferred allocation,
topology or CDI.
"""

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing

from gpunode.contract.config import Config
from gpunode.contract.offer import Unit

from .. import limits
from ..cdi import CdiUnavailable, Specs
from ..metrics import Metrics
from ..rpc import Code, RpcError, Streaming, Unary
from ..state import NodeState
from . import messages
from .allocate import (
    AllocationRefused,
    Grant,
    check_one_gpu,
    choose_units,
    grant,
    mib_of_each_gpu,
    prefer_units,
)
from .promised import Promised

log = logging.getLogger(__name__)


def options(config: Config) -> bytes:
    """The optional calls that the kubelet should make."""
    # A container with an enforced memory limit needs its own CDI device, also when it restarts after a reboot: the
    # kubelet then reuses the allocation without asking, while /var/run/cdi is empty.
    own_device = config.cdi and config.memory is not None
    return messages.options(pre_start=own_device, preferred=True)


class Service:
    """One server's answers. Calls `on_stream_change` when a ListAndWatch stream begins, and when the kubelet has ended one."""

    def __init__(
        self,
        resource: str,
        state: NodeState,
        config: Config,
        metrics: Metrics,
        specs: Specs | None,
        on_stream_change: Callable[[], None],
        promised: Promised | None = None,
    ) -> None:
        self.resource = resource
        self.version = "v1beta1"  # of the protocol, as the kubelet accepted it
        self.streams = 0
        self.lost = 0  # streams that the kubelet ended
        self.closing = asyncio.Event()  # set it to end the streams
        self._state = state
        self._config = config
        self._metrics = metrics
        self._specs = specs
        self._on_stream_change = on_stream_change
        self._promised = promised if promised is not None and promised.resource == resource else None
        self._preferred: frozenset[str] = frozenset()  # units last preferred because they were promised
        self._fields = {"resource": resource}
        # Free units by GPU index, when the kubelet last asked for a preferred allocation
        self._free: Counter[str] | None = None

    def units(self) -> tuple[Unit, ...]:
        return self._state.offers.get(self.resource, ())

    async def changes(self) -> AsyncGenerator[None, None]:
        """Yields at once, then at every change, until `closing` is set."""
        self.streams += 1
        self._on_stream_change()
        closing = asyncio.ensure_future(self.closing.wait())
        try:
            while not closing.done():
                change = asyncio.ensure_future(self._state.changed().wait())
                try:
                    yield
                    await asyncio.wait((change, closing), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
        finally:
            self.streams -= 1
            if not closing.done():
                closing.cancel()
                self.lost += 1
                self._on_stream_change()

    async def device_list(self) -> bytes:
        """The list of the units offered now.

        Made beside the event loop, which it would block: there may be tens of thousands of units.
        """
        units, unhealthy = self.units(), self._state.unhealthy
        reserved = self._state.reserved.get(self.resource, {})

        def encode() -> bytes:
            return b"".join(
                [
                    messages.device(
                        unit,
                        "Unhealthy" if unit.id in reserved or unit.device.uuid in unhealthy else "Healthy",
                    )
                    for unit in units
                ]
            )

        return await asyncio.to_thread(encode)

    async def allocate_units(self, ids: Iterable[str]) -> Grant:
        """The edits for one container. Raises RpcError with the reason if the allocation is refused."""
        began = time.perf_counter()
        free, self._free = self._free, None  # valid for one allocation
        ids = tuple(ids)
        try:
            units = choose_units(
                ids,
                self._state.units.get(self.resource, {}),
                self._state.unhealthy,
                self._state.reserved.get(self.resource),
                one_share=self._config.fail_requests_greater_than_one,
            )
            if frozenset(ids) != self._preferred:  # the extender may promise a container memory of several
                check_one_gpu(units, free)
            cdi_device = await self._limit_memory(units)
        except AllocationRefused as refusal:
            self._metrics.count("allocations_refused_total", resource=self.resource)
            log.warning("allocation refused: %s", refusal, extra=self._fields)
            raise RpcError(Code.INVALID_ARGUMENT, f"{self.resource}: {refusal}") from None
        features = self._specs.features(self._config.features)[0] if self._specs else ()
        answer = grant(self.resource, units, self._config, os.path.exists, cdi_device, features)
        self._metrics.observe_allocation(self.resource, time.perf_counter() - began)
        log.info("allocated", extra={**self._fields, **_unit_fields(units)})
        return answer

    async def _limit_memory(self, units: Sequence[Unit]) -> str | None:
        """The name of the CDI device that limits a container's memory; None for containers without enforced limit.

        Raises AllocationRefused if it cannot be written: without it, the container could use others' memory.
        """
        mib = mib_of_each_gpu(units)
        gpus = list(dict.fromkeys(unit.device.uuid for unit in units))
        unlimited = any(self._state.memory_limits.get(gpu, "") is not None for gpu in gpus)
        if self._specs is None or not mib or unlimited:
            return None
        try:
            ids = [unit.id for unit in units]
            return await asyncio.to_thread(self._specs.write, ids, gpus, limits.variables(mib))
        except CdiUnavailable as error:
            raise AllocationRefused(f"its memory limit cannot be set: {error}") from None

    # The protocol, as the kubelet calls it.

    async def options(self, _request: bytes) -> bytes:
        return options(self._config)

    async def list_and_watch(self, _request: bytes) -> AsyncGenerator[bytes, None]:
        async with aclosing(self.changes()) as changes:
            async for _ in changes:
                yield await self.device_list()

    async def preferred_allocation(self, request: bytes) -> bytes:
        offered = self._state.units.get(self.resource, {})
        answers = []
        # Beside the event loop: there may be thousands of ids, and of sets to compare.
        for preference in await asyncio.to_thread(messages.preferences, request):
            self._free = Counter(
                offered[unit_id].device.index for unit_id in preference.available if unit_id in offered
            )
            places = await self._promised.places(preference.size, offered) if self._promised else ()
            ids = await asyncio.to_thread(
                prefer_units,
                preference.available,
                preference.must,
                preference.size,
                offered,
                self._state.unhealthy,
                self._state.reserved.get(self.resource, ()),
                packed=self._config.packs(self.resource),
                links=self._state.links,
                promised=places,
            )
            of_gpus = Counter(offered[unit_id].device.uuid for unit_id in ids if unit_id in offered)
            self._preferred = frozenset(ids if frozenset(of_gpus.items()) in places else ())
            answers.append(ids)
        return messages.preferred_response(answers)

    async def allocate(self, request: bytes) -> bytes:
        return messages.allocate_response(
            [await self.allocate_units(ids) for ids in messages.ids_by_container(request)]
        )

    async def allocate_alpha(self, request: bytes) -> bytes:
        ids = messages.ids(request)
        edits = await self.allocate_units(ids)
        if self.version == "v1alpha2":
            return messages.allocate_response_1_9(edits)
        return messages.allocate_response_1_8(edits, ids)

    async def pre_start(self, request: bytes) -> bytes:
        offered = self._state.units.get(self.resource, {})
        units = [offered[unit_id] for unit_id in messages.ids(request) if unit_id in offered]
        try:
            if units:
                await self._limit_memory(units)
        except AllocationRefused as refusal:
            log.warning("a container cannot start: %s", refusal, extra=self._fields)
            raise RpcError(Code.FAILED_PRECONDITION, f"{self.resource}: {refusal}") from None
        return b""

    def unary(self) -> Mapping[str, Unary]:
        """The calls with one answer, by their path."""
        beta, alpha = "/v1beta1.DevicePlugin/", "/deviceplugin.DevicePlugin/"
        return {
            beta + "GetDevicePluginOptions": self.options,
            beta + "GetPreferredAllocation": self.preferred_allocation,
            beta + "Allocate": self.allocate,
            beta + "PreStartContainer": self.pre_start,
            alpha + "Allocate": self.allocate_alpha,
        }

    def streaming(self) -> Mapping[str, Streaming]:
        """The calls with many answers, by their path."""
        return dict.fromkeys(
            ("/v1beta1.DevicePlugin/ListAndWatch", "/deviceplugin.DevicePlugin/ListAndWatch"),
            self.list_and_watch,
        )


def _unit_fields(units: Sequence[Unit]) -> dict[str, object]:
    """Log fields of an allocation: each unit's id; for pieces of memory, which may be thousands, number and GPU."""
    if any(unit.mib for unit in units):
        return {"units": len(units), "mib": sum(unit.mib for unit in units), "gpu": units[0].device.uuid}
    return {"units": ",".join(unit.id for unit in units)}
