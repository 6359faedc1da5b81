"""The device plugin service of one resource: lists units, prefers and allocates them.

v1beta1; and v1alpha1 (Kubernetes 1.8) and v1alpha2 (1.9) on top of it, whose kubelets know no preferred allocation,
topology or CDI.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

import grpc

from gpunode.contract.config import Config
from gpunode.contract.offer import Unit

from .. import limits
from ..cdi import CdiUnavailable, Specs
from ..metrics import Metrics
from ..state import NodeState
from . import v1alpha_pb2 as alpha
from . import v1beta1_pb2 as api
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


def options(config: Config) -> api.DevicePluginOptions:
    """The optional calls that the kubelet should make."""
    # A container with an enforced memory limit needs its own CDI device, also when it restarts after a reboot: the
    # kubelet then reuses the allocation without asking, while /var/run/cdi is empty.
    made = config.cdi and config.memory is not None
    return api.DevicePluginOptions(get_preferred_allocation_available=True, pre_start_required=made)


class Service:
    """One server's answers. Calls `stirred` when a ListAndWatch stream begins, and when the kubelet has ended one."""

    def __init__(
        self,
        resource: str,
        state: NodeState,
        config: Config,
        metrics: Metrics,
        specs: Specs | None,
        stirred: Callable[[], None],
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
        self._stirred = stirred
        self._promised = promised if promised is not None and promised.resource == resource else None
        self._preferred: frozenset[str] = frozenset()  # units last preferred because they were promised
        self._fields = {"resource": resource}
        self._free: Counter[str] | None = (
            None  # free units by GPU index, when the kubelet last asked for a preferred allocation
        )

    def units(self) -> tuple[Unit, ...]:
        """The units offered now."""
        return self._state.offers.get(self.resource, ())

    async def changes(self) -> AsyncIterator[None]:
        """Yields at once, then at every change, until `closing` is set."""
        self.streams += 1
        self._stirred()
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
                self._stirred()

    async def listed(self, response: Any, add: Callable[[Any, Unit, str], None]) -> bytes:
        """The serialized list of the units offered now; `add` puts a unit and its health into a `response`.

        Made beside the event loop, which it would block: there may be tens of thousands of units.
        """
        units, unhealthy = self.units(), self._state.unhealthy
        reserved = self._state.reserved.get(self.resource, {})

        def made() -> bytes:
            answer = response()
            for unit in units:
                unavailable = unit.id in reserved or unit.device.uuid in unhealthy
                add(answer, unit, "Unhealthy" if unavailable else "Healthy")
            return bytes(answer.SerializeToString())

        return await asyncio.to_thread(made)

    async def given(self, ids: Iterable[str], context: Any) -> Grant:
        """The edits for one container. Aborts the call with the reason if the allocation is refused."""
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
            made = await self._limited(units)
        except AllocationRefused as refusal:
            self._metrics.count("allocations_refused_total", resource=self.resource)
            log.warning("allocation refused: %s", refusal, extra=self._fields)
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{self.resource}: {refusal}")
            raise  # not reached: abort raises
        features = self._specs.features(self._config.features)[0] if self._specs else ()
        answer = grant(self.resource, units, self._config, os.path.exists, made, features)
        self._metrics.allocated(self.resource, time.perf_counter() - began)
        log.info("allocated", extra={**self._fields, **_named(units)})
        return answer

    async def _limited(self, units: Sequence[Unit]) -> str | None:
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

    async def options(self, _request: api.Empty, _context: Any) -> api.DevicePluginOptions:
        return options(self._config)

    async def list_and_watch(self, _request: api.Empty, _context: Any) -> AsyncIterator[bytes]:
        async for _ in self.changes():
            yield await self.listed(api.ListAndWatchResponse, _add)

    async def preferred_allocation(
        self, request: api.PreferredAllocationRequest, _context: Any
    ) -> api.PreferredAllocationResponse:
        offered = self._state.units.get(self.resource, {})
        answer = api.PreferredAllocationResponse()
        for c in request.container_requests:
            self._free = Counter(
                offered[deviceid].device.index for deviceid in c.available_deviceIDs if deviceid in offered
            )
            places = await self._promised.places(c.allocation_size, offered) if self._promised else ()
            # Beside the event loop: there may be thousands of sets or units to compare.
            ids = await asyncio.to_thread(
                prefer_units,
                c.available_deviceIDs,
                c.must_include_deviceIDs,
                c.allocation_size,
                offered,
                self._state.unhealthy,
                self._state.reserved.get(self.resource, ()),
                packed=self._config.packs(self.resource),
                links=self._state.links,
                promised=places,
            )
            of_gpus = Counter(offered[one].device.uuid for one in ids if one in offered)
            self._preferred = frozenset(ids if frozenset(of_gpus.items()) in places else ())
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        answers = [_answer(await self.given(c.devices_ids, context)) for c in request.container_requests]
        return api.AllocateResponse(container_responses=answers)

    async def pre_start(
        self, request: api.PreStartContainerRequest, context: Any
    ) -> api.PreStartContainerResponse:
        offered = self._state.units.get(self.resource, {})
        units = [offered[unit_id] for unit_id in request.devices_ids if unit_id in offered]
        try:
            if units:
                await self._limited(units)
        except AllocationRefused as refusal:
            log.warning("a container cannot start: %s", refusal, extra=self._fields)
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, f"{self.resource}: {refusal}")
        return api.PreStartContainerResponse()

    def handlers(self) -> Any:
        """The handlers for a gRPC server."""
        return grpc.method_handlers_generic_handler(
            "v1beta1.DevicePlugin",
            {
                "GetDevicePluginOptions": unary(self.options, api.Empty, api.DevicePluginOptions),
                "ListAndWatch": stream(self.list_and_watch, api.Empty),
                "GetPreferredAllocation": unary(
                    self.preferred_allocation, api.PreferredAllocationRequest, api.PreferredAllocationResponse
                ),
                "Allocate": unary(self.allocate, api.AllocateRequest, api.AllocateResponse),
                "PreStartContainer": unary(
                    self.pre_start, api.PreStartContainerRequest, api.PreStartContainerResponse
                ),
            },
        )


def unary(method: Callable[[Any, Any], Any], request: Any, response: Any) -> Any:
    """A handler for one request, one answer."""
    return grpc.unary_unary_rpc_method_handler(
        method, request_deserializer=request.FromString, response_serializer=response.SerializeToString
    )


def stream(method: Callable[[Any, Any], Any], request: Any) -> Any:
    """A handler for one request, many answers, already serialized."""
    return grpc.unary_stream_rpc_method_handler(method, request_deserializer=request.FromString)


def _named(units: Sequence[Unit]) -> dict[str, object]:
    """Log fields of an allocation: each unit's id; for pieces of memory, which may be thousands, number and GPU."""
    if any(unit.mib for unit in units):
        return {"units": len(units), "mib": sum(unit.mib for unit in units), "gpu": units[0].device.uuid}
    return {"units": ",".join(unit.id for unit in units)}


def _add(answer: api.ListAndWatchResponse, unit: Unit, health: str) -> None:
    device = answer.devices.add(ID=unit.id, health=health)
    if unit.device.numa is not None:
        device.topology.nodes.add(ID=unit.device.numa)


def _answer(given: Grant) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=given.envs,
        mounts=[api.Mount(container_path=inside, host_path=host) for inside, host in given.mounts],
        devices=[
            api.DeviceSpec(container_path=inside, host_path=host, permissions="rw")
            for inside, host in given.nodes
        ],
        annotations=given.annotations,
        cdi_devices=[api.CDIDevice(name=name) for name in given.cdi],
    )


def alpha_handlers(service: Service) -> Any:
    """The handlers for a gRPC server."""

    async def list_and_watch(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        async for _ in service.changes():
            yield await service.listed(alpha.ListAndWatchResponse, _add_alpha)

    async def allocate(
        request: alpha.AllocateRequest, context: Any
    ) -> alpha.AllocateResponse | alpha.AllocateResponse18:
        given = await service.given(request.devicesIDs, context)
        if service.version == "v1alpha2":
            return alpha.AllocateResponse(envs=given.envs, mounts=_mounts(given), devices=_nodes(given))
        # A 1.8 kubelet expects an entry for every device, and merges the edits of all entries.
        entries = [alpha.DeviceRuntimeSpec(ID=unit_id) for unit_id in request.devicesIDs]
        if entries:
            entries[0].envs.update(given.envs)
            entries[0].mounts.extend(_mounts(given))
            entries[0].devices.extend(_nodes(given))
        return alpha.AllocateResponse18(spec=entries)

    either = _Either()
    return grpc.method_handlers_generic_handler(
        "deviceplugin.DevicePlugin",
        {
            "ListAndWatch": stream(list_and_watch, alpha.Empty),
            "Allocate": unary(allocate, alpha.AllocateRequest, either),
        },
    )


class _Either:
    """Serializes either of the two answers."""

    @staticmethod
    def SerializeToString(answer: Any) -> bytes:  # noqa: N802 (protobuf's name)
        return bytes(answer.SerializeToString())


def _add_alpha(answer: alpha.ListAndWatchResponse, unit: Unit, health: str) -> None:
    answer.devices.add(ID=unit.id, health=health)


def _mounts(given: Grant) -> list[alpha.Mount]:
    return [alpha.Mount(container_path=inside, host_path=host) for inside, host in given.mounts]


def _nodes(given: Grant) -> list[alpha.DeviceSpec]:
    return [
        alpha.DeviceSpec(container_path=inside, host_path=host, permissions="rw")
        for inside, host in given.nodes
    ]
