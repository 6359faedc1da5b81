"""The protocol of Kubernetes 1.8 (v1alpha1) and 1.9 (v1alpha2), on top of the service for v1beta1.

Those kubelets know no preferred allocation, topology or CDI.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc

from gpunode.contract.offer import Unit

from . import v1alpha_pb2 as api
from .allocate import Grant
from .service import Service, stream, unary


def handlers(service: Service) -> Any:
    """The handlers for a gRPC server."""

    async def list_and_watch(_request: Any, _context: Any) -> AsyncIterator[bytes]:
        async for _ in service.changes():
            yield await service.listed(api.ListAndWatchResponse, _add)

    async def allocate(
        request: api.AllocateRequest, context: Any
    ) -> api.AllocateResponse | api.AllocateResponse18:
        given = await service.given(request.devicesIDs, context)
        if service.version == "v1alpha2":
            return api.AllocateResponse(envs=given.envs, mounts=_mounts(given), devices=_nodes(given))
        # A 1.8 kubelet expects an entry for every device, and merges the edits of all entries.
        entries = [api.DeviceRuntimeSpec(ID=unit_id) for unit_id in request.devicesIDs]
        if entries:
            entries[0].envs.update(given.envs)
            entries[0].mounts.extend(_mounts(given))
            entries[0].devices.extend(_nodes(given))
        return api.AllocateResponse18(spec=entries)

    either = _Either()
    return grpc.method_handlers_generic_handler(
        "deviceplugin.DevicePlugin",
        {
            "ListAndWatch": stream(list_and_watch, api.Empty),
            "Allocate": unary(allocate, api.AllocateRequest, either),
        },
    )


class _Either:
    """Serializes either of the two answers."""

    @staticmethod
    def SerializeToString(answer: Any) -> bytes:  # noqa: N802 (protobuf's name)
        return bytes(answer.SerializeToString())


def _add(answer: api.ListAndWatchResponse, unit: Unit, health: str) -> None:
    answer.devices.add(ID=unit.id, health=health)


def _mounts(given: Grant) -> list[api.Mount]:
    return [api.Mount(container_path=inside, host_path=host) for inside, host in given.mounts]


def _nodes(given: Grant) -> list[api.DeviceSpec]:
    return [
        api.DeviceSpec(container_path=inside, host_path=host, permissions="rw")
        for inside, host in given.nodes
    ]
