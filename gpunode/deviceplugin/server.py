"""One resource, offered to the kubelet over the device plugin protocol v1beta1, whatever the kubelet does.

Order and upkeep: serve first, then register; serve and register again whenever the kubelet has started anew
(it makes a new kubelet.sock and wipes the directory of ours) or has dropped its ListAndWatch stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
import os
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc

from . import v1beta1_pb2 as api
from .allocate import Grant, Refused, chosen, grant
from .board import Board
from .config import Config
from .directory import Directory
from .prefer import preferred
from .resources import Unit

log = logging.getLogger(__name__)

REGISTER_DEADLINE = 10.0  # seconds; newer kubelets call us back before they answer
LOOK_ANYWAY = 30.0  # seconds after which the sockets are looked at even if inotify said nothing
MAX_LIST = 4 * 1024 * 1024  # bytes of a message that the kubelet takes (gRPC's default)
OPTIONS = api.DevicePluginOptions(get_preferred_allocation_available=True)


class Lost(Exception):
    """The kubelet cannot be served just now; says why. Trying again is right."""


class ResourceServer:
    """Serves the units that `board` has under one resource name. `run` goes on until it is cancelled."""

    def __init__(self, resource: str, board: Board, config: Config) -> None:
        self.resource = resource
        self.registered = False
        self._board = board
        self._config = config
        self._kubelet = Path(config.kubelet_socket)
        self._socket = self._kubelet.parent / f"nvidia-{resource.rpartition('/')[2]}.sock"
        self._stirred = asyncio.Event()
        self._closing = asyncio.Event()
        self._streams = 0
        self._lost_streams: deque[float] = deque(maxlen=3)
        self._fields = {"resource": resource}

    async def run(self) -> None:
        """Be registered with the kubelet, now and after each of its restarts."""
        retry = 1.0
        while True:
            try:
                with Directory(self._kubelet.parent, self._stirred.set):
                    await self._until_kubelet()
                    async with self._serving() as mine:
                        kubelet = identity(self._kubelet)
                        await self._register()
                        retry = 1.0
                        await self._until_outdated(kubelet, mine)
                    if identity(self._socket) is not None:
                        await self._stand_by()
            except (Lost, OSError, grpc.aio.AioRpcError) as error:
                log.warning(
                    "not registered: %s; trying again in %.0f s", _words(error), retry, extra=self._fields
                )
                await asyncio.sleep(retry)
                retry = min(retry * 2, 30.0)

    async def _until_kubelet(self) -> None:
        if identity(self._kubelet) is None:
            log.info("waiting for the kubelet: no %s yet", self._kubelet, extra=self._fields)
            await self._until(lambda: identity(self._kubelet) is not None)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[tuple[int, int, int]]:
        """Serve on our socket; yields the socket's identity.

        The socket is made beside and moved into place: at no moment is a dead one there, and gRPC, which removes
        the path it was given when it stops, cannot remove the socket of another server that took our place.
        """
        fresh = self._socket.with_name(f".{self._socket.name}.{os.getpid()}")
        self._closing = asyncio.Event()
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((self._handlers(),))
        try:
            server.add_insecure_port(f"unix:{fresh}")
        except RuntimeError as error:
            raise Lost(f"cannot listen in {self._socket.parent}: {error}") from None
        try:
            await server.start()
            fresh.rename(self._socket)
            mine = identity(self._socket)
            if mine is None:
                raise Lost(f"{self._socket} was removed at once")
            try:
                yield mine
            finally:
                if identity(self._socket) == mine:
                    self._socket.unlink(missing_ok=True)
        finally:
            self.registered = False
            self._closing.set()
            # In a task of its own: gRPC waits in a way that can swallow a cancellation before Python 3.12.
            stopping = asyncio.ensure_future(server.stop(grace=2))
            try:
                await asyncio.wait((stopping,))
            finally:
                await stopping

    async def _register(self) -> None:
        request = api.RegisterRequest(
            version="v1beta1", endpoint=self._socket.name, resource_name=self.resource, options=OPTIONS
        )
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=api.RegisterRequest.SerializeToString,
                response_deserializer=api.Empty.FromString,
            )
            await call(request, timeout=REGISTER_DEADLINE)
        self.registered = True
        count = len(self._board.offers.get(self.resource, ()))
        log.info(
            "registered with the kubelet", extra={**self._fields, "units": count, "socket": self._socket}
        )

    async def _until_outdated(self, kubelet: tuple[int, int, int] | None, mine: tuple[int, int, int]) -> None:
        """Return once the kubelet is a new one, or our socket is gone or another's. Raises Lost."""
        lost = len(self._lost_streams) and self._lost_streams[-1]
        await self._until(
            lambda: (
                identity(self._kubelet) != kubelet
                or identity(self._socket) != mine
                or bool(self._lost_streams and self._lost_streams[-1] != lost and not self._streams)
            )
        )
        self.registered = False
        if identity(self._kubelet) != kubelet or identity(self._socket) is None:
            log.info("the kubelet has restarted", extra=self._fields)
        elif identity(self._socket) == mine:
            await self._stream_lost(kubelet)

    async def _stream_lost(self, kubelet: tuple[int, int, int] | None) -> None:
        """The kubelet ended its stream. It stopped, or it dropped us: one that restarts is soon a new one."""
        if await self._until(lambda: identity(self._kubelet) != kubelet, seconds=1.0):
            return
        if not alive(self._kubelet):
            log.info("the kubelet has stopped; waiting for it", extra=self._fields)
            await self._until(lambda: identity(self._kubelet) != kubelet or alive(self._kubelet))
            return
        if len(self._lost_streams) == 3 and time.monotonic() - self._lost_streams[0] < 600:
            self._lost_streams.clear()
            log.error(
                "the kubelet has dropped us three times in ten minutes: does another device plugin on this node "
                "register %s? The newest wins; this one waits for the kubelet's next restart",
                self.resource,
                extra=self._fields,
            )
            await self._until(lambda: identity(self._kubelet) != kubelet)
            return
        raise Lost("the kubelet runs but has dropped our ListAndWatch stream")

    async def _stand_by(self) -> None:
        """Another process has put its socket in the place of ours: the newest wins. Wait until it is gone."""
        log.error(
            "another process has taken over %s: two device plugins for %s run on this node; this one stands by",
            self._socket,
            self.resource,
            extra=self._fields,
        )
        await self._until(lambda: not alive(self._socket))
        log.info("the other device plugin is gone; taking over again", extra=self._fields)

    async def _until(self, condition: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until `condition` holds, or for so long; whether it does. Looks when something stirs, and now and then."""
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._stirred.clear()
            # Not wait_for: before Python 3.12 it can swallow the cancellation that ends this server.
            stirred = asyncio.ensure_future(self._stirred.wait())
            try:
                await asyncio.wait((stirred,), timeout=min(LOOK_ANYWAY, left))
            finally:
                stirred.cancel()
        return True

    # The protocol, as the kubelet calls it.

    async def options(self, _request: api.Empty, _context: Any) -> api.DevicePluginOptions:
        return OPTIONS

    async def list_and_watch(
        self, _request: api.Empty, _context: Any
    ) -> AsyncIterator[api.ListAndWatchResponse]:
        self._streams += 1
        closing = asyncio.ensure_future(self._closing.wait())
        try:
            while not closing.done():
                change = asyncio.ensure_future(self._board.change().wait())
                try:
                    yield self._list()
                    await asyncio.wait((change, closing), return_when=asyncio.FIRST_COMPLETED)
                finally:
                    change.cancel()
        finally:
            self._streams -= 1
            if not closing.done():
                closing.cancel()
                self._lost_streams.append(time.monotonic())
                self._stirred.set()

    def _list(self) -> api.ListAndWatchResponse:
        sick = self._board.sick
        units = self._board.offers.get(self.resource, ())
        answer = api.ListAndWatchResponse(devices=[_device(unit, unit.device.uuid in sick) for unit in units])
        if answer.ByteSize() > MAX_LIST:
            log.error(
                "%d units make a list of %d bytes, but the kubelet takes no more than %d: none is offered; "
                "use a larger memory unit or fewer replicas",
                len(units),
                answer.ByteSize(),
                MAX_LIST,
                extra=self._fields,
            )
            return api.ListAndWatchResponse()
        return answer

    async def preferred_allocation(
        self, request: api.PreferredAllocationRequest, _context: Any
    ) -> api.PreferredAllocationResponse:
        units = self._board.offers.get(self.resource, ())
        offered = {unit.id: unit for unit in units}
        answer = api.PreferredAllocationResponse()
        for c in request.container_requests:
            ids = preferred(
                c.available_deviceIDs,
                c.must_include_deviceIDs,
                c.allocation_size,
                offered,
                self._board.sick,
                packed=self._config.shared_devices_allocation_policy == "packed",
                links=self._board.links,
            )
            answer.container_responses.add(deviceIDs=ids)
        return answer

    async def allocate(self, request: api.AllocateRequest, context: Any) -> api.AllocateResponse:
        offered = {unit.id: unit for unit in self._board.offers.get(self.resource, ())}
        answers = []
        for container in request.container_requests:
            try:
                units = chosen(
                    container.devices_ids,
                    offered,
                    self._board.sick,
                    one_share=self._config.fail_requests_greater_than_one,
                )
            except Refused as refusal:
                log.warning("allocation refused: %s", refusal, extra=self._fields)
                await context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"{self.resource}: {refusal}")
            answers.append(_answer(grant(units, self._config, os.path.exists)))
            log.info("allocated", extra={**self._fields, "units": ",".join(unit.id for unit in units)})
        return api.AllocateResponse(container_responses=answers)

    async def pre_start(
        self, _request: api.PreStartContainerRequest, _context: Any
    ) -> api.PreStartContainerResponse:
        return api.PreStartContainerResponse()

    def _handlers(self) -> Any:
        def unary(method: Callable[[Any, Any], Awaitable[Any]], request: Any, response: Any) -> Any:
            return grpc.unary_unary_rpc_method_handler(
                method,
                request_deserializer=request.FromString,
                response_serializer=response.SerializeToString,
            )

        return grpc.method_handlers_generic_handler(
            "v1beta1.DevicePlugin",
            {
                "GetDevicePluginOptions": unary(self.options, api.Empty, api.DevicePluginOptions),
                "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                    self.list_and_watch,
                    request_deserializer=api.Empty.FromString,
                    response_serializer=api.ListAndWatchResponse.SerializeToString,
                ),
                "GetPreferredAllocation": unary(
                    self.preferred_allocation, api.PreferredAllocationRequest, api.PreferredAllocationResponse
                ),
                "Allocate": unary(self.allocate, api.AllocateRequest, api.AllocateResponse),
                "PreStartContainer": unary(
                    self.pre_start, api.PreStartContainerRequest, api.PreStartContainerResponse
                ),
            },
        )


def identity(path: Path) -> tuple[int, int, int] | None:
    """What tells one file at `path` from the next one at the same path; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_ctime_ns


def alive(path: Path) -> bool:
    """Whether somebody listens on the Unix socket at `path`."""
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"the kubelet says {error.code().name}: {error.details()}"
    return str(error)


def _device(unit: Unit, sick: bool) -> api.Device:
    numa = unit.device.numa
    topology = None if numa is None else api.TopologyInfo(nodes=[api.NUMANode(ID=numa)])
    return api.Device(ID=unit.id, health="Unhealthy" if sick else "Healthy", topology=topology)


def _answer(given: Grant) -> api.ContainerAllocateResponse:
    return api.ContainerAllocateResponse(
        envs=given.envs,
        mounts=[
            api.Mount(container_path=inside, host_path=host, read_only=True) for inside, host in given.mounts
        ],
        devices=[
            api.DeviceSpec(container_path=inside, host_path=host, permissions="rw")
            for inside, host in given.nodes
        ],
    )
