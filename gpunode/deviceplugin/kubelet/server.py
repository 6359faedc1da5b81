"""One resource, served and registered with the kubelet, whatever the kubelet does.

Order and upkeep: serve first, then register; serve and register again whenever the kubelet has started anew
(it makes a new kubelet.sock and wipes the directory of ours) or has dropped its ListAndWatch stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from ..board import Board
from ..cdi import Specs
from ..config import Config, file_word
from ..directory import Directory
from ..memory import MAX_LIST
from ..metrics import Metrics
from . import alpha
from . import v1beta1_pb2 as api
from .permission import refused
from .service import Service, options

log = logging.getLogger(__name__)

# The protocol's versions, newest first, and where each is registered. The two old ones send a message that is the
# same up to the last field, which they do not know and pass over.
VERSIONS = {
    "v1beta1": "/v1beta1.Registration/Register",
    "v1alpha2": "/deviceplugin.Registration/Register",
    "0.1": "/deviceplugin.Registration/Register",  # what v1alpha1 calls itself (constants.go of Kubernetes 1.8)
}
REGISTER_DEADLINE = 10.0  # seconds; newer kubelets call us back before they answer
STREAM_DEADLINE = 20.0  # seconds from the registration to the kubelet's ListAndWatch
SETTLED = 1.0  # seconds after which the kubelet has seen our stream end
LOOK_ANYWAY = 30.0  # seconds after which the sockets are looked at even if inotify said nothing

Identity = tuple[int, int, int]


class Lost(Exception):
    """The kubelet cannot be served just now; says why. Trying again is right."""


class ResourceServer:
    """Serves the units that `board` has under one resource name. `run` goes on until it is cancelled."""

    def __init__(
        self, resource: str, board: Board, config: Config, metrics: Metrics, specs: Specs | None
    ) -> None:
        self.resource = resource
        self._board = board
        self._config = config
        self._metrics = metrics
        self._specs = specs
        self._kubelet = Path(config.kubelet_socket)
        self._socket = self._kubelet.parent / f"nvidia-{file_word(resource)}.sock"
        self._stirred = asyncio.Event()
        self.standing_by = False  # another process serves the resource
        self._dropped: deque[float] = deque(maxlen=3)  # when a running kubelet ended our stream
        self._known: Service | None = None  # what the kubelet has registered
        self._fields = {"resource": resource}

    @property
    def registered(self) -> bool:
        """Whether the kubelet has registered it and has its list: only then pods can be given units."""
        return self._known is not None and self._known.streams > 0

    async def run(self) -> None:
        """Be registered with the kubelet, now and after each of its restarts."""
        retry = 1.0
        while True:
            try:
                self._may()
                with Directory(self._kubelet.parent, self._stirred.set):
                    await self._until_kubelet()
                    self._may()
                    async with self._serving() as (service, mine):
                        kubelet = identity(self._kubelet)
                        await self._register(service)
                        retry = 1.0
                        await self._until_outdated(service, kubelet, mine)
                    if identity(self._socket) is not None:
                        self.standing_by = True
                        try:
                            await self._stand_by(service.version)
                        finally:
                            self.standing_by = False
            except (Lost, OSError, grpc.aio.AioRpcError) as error:
                log.warning(
                    "not registered: %s; trying again in %.0f s", _words(error), retry, extra=self._fields
                )
                retry = 1.0 if await self._pause(retry) else min(retry * 2, 30.0)

    def _may(self) -> None:
        """Raises Lost where this process's user may not do what is to be done."""
        if why := refused(self._kubelet):
            raise Lost(why)

    async def _pause(self, seconds: float) -> bool:
        """Wait for so long, or until the kubelet is a new one; whether it is."""
        before = identity(self._kubelet)
        try:
            with Directory(self._kubelet.parent, self._stirred.set):
                return await self._until(lambda: identity(self._kubelet) != before, seconds)
        except OSError:
            await asyncio.sleep(seconds)
            return False

    async def _until_kubelet(self) -> None:
        if identity(self._kubelet) is None:
            log.info("waiting for the kubelet: no %s yet", self._kubelet, extra=self._fields)
            await self._until(lambda: identity(self._kubelet) is not None)

    @asynccontextmanager
    async def _serving(self) -> AsyncIterator[tuple[Service, Identity]]:
        """Serve on our socket; yields what answers there, and the socket's identity.

        The socket is made beside and moved into place: at no moment is a dead one there, and gRPC, which removes
        the path it was given when it stops, cannot remove the socket of another server that took our place.
        """
        # Short: the path of a socket has 107 characters at most.
        fresh = self._socket.with_name(f".{secrets.token_hex(4)}.sock")
        service = Service(
            self.resource, self._board, self._config, self._metrics, self._specs, self._stirred.set
        )
        # A question may name every unit twice: as free, and as held by the pod already.
        server = grpc.aio.server(options=[("grpc.max_receive_message_length", 2 * MAX_LIST)])
        server.add_generic_rpc_handlers((service.handlers(), alpha.handlers(service)))
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
                yield service, mine
            finally:
                if identity(self._socket) == mine:
                    self._socket.unlink(missing_ok=True)
        finally:
            self._known = None
            service.closing.set()
            # In a task of its own: gRPC waits in a way that can swallow a cancellation before Python 3.12.
            stopping = asyncio.ensure_future(server.stop(grace=2))
            try:
                await asyncio.wait((stopping,))
            finally:
                await stopping

    async def _register(self, service: Service) -> None:
        """Register in the newest version of the protocol that the kubelet takes."""
        refusal: Exception = Lost("the kubelet serves no version of the device plugin protocol")
        async with grpc.aio.insecure_channel(f"unix:{self._kubelet}") as channel:
            for version in VERSIONS:
                service.version = version
                try:
                    await self._tell(channel, version, options(self._config))
                    break
                except grpc.aio.AioRpcError as error:
                    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                        continue  # no such service: an older kubelet, or a newer one
                    if "version" not in (error.details() or "").lower():
                        raise
                    refusal = error
            else:
                raise refusal
        self._known = service
        self._metrics.count("registrations_total", resource=self.resource)
        fields = {"units": len(service.units()), "socket": self._socket, "version": service.version}
        log.info("registered with the kubelet", extra={**self._fields, **fields})

    async def _tell(self, channel: grpc.aio.Channel, version: str, wishes: api.DevicePluginOptions) -> None:
        """Tell the kubelet, in one version of the protocol, that our socket's path serves the resource."""
        request = api.RegisterRequest(
            version=version, endpoint=self._socket.name, resource_name=self.resource, options=wishes
        )
        call = channel.unary_unary(
            VERSIONS[version],
            request_serializer=api.RegisterRequest.SerializeToString,
            response_deserializer=api.Empty.FromString,
        )
        await call(request, timeout=REGISTER_DEADLINE)

    async def _until_outdated(self, service: Service, kubelet: Identity | None, mine: Identity) -> None:
        """Return once the kubelet is a new one, or our socket is gone or another's. Raises Lost."""

        def outdated() -> bool:
            return identity(self._kubelet) != kubelet or identity(self._socket) != mine

        if not await self._until(
            lambda: outdated() or bool(service.streams or service.lost), STREAM_DEADLINE
        ):
            raise Lost(
                f"the kubelet has registered us, but not asked for the devices in {STREAM_DEADLINE:.0f} s"
            )
        await self._until(lambda: outdated() or not service.streams)
        self._known = None
        if identity(self._kubelet) != kubelet or identity(self._socket) is None:
            log.info("the kubelet has restarted", extra=self._fields)
        elif identity(self._socket) == mine:
            await self._stream_lost(kubelet)

    async def _stream_lost(self, kubelet: Identity | None) -> None:
        """The kubelet ended its stream. It stopped, or it dropped us: one that restarts is soon a new one."""
        if await self._until(lambda: identity(self._kubelet) != kubelet, seconds=1.0):
            return
        if not alive(self._kubelet):
            log.info("the kubelet has stopped; waiting for it", extra=self._fields)
            await self._until(lambda: identity(self._kubelet) != kubelet or alive(self._kubelet))
            return
        self._dropped.append(time.monotonic())
        if len(self._dropped) == 3 and time.monotonic() - self._dropped[0] < 600:
            self._dropped.clear()
            log.error(
                "the kubelet has dropped us three times in ten minutes: does another device plugin on this node "
                "register %s? The newest wins; this one waits for the kubelet's next restart",
                self.resource,
                extra=self._fields,
            )
            await self._until(lambda: identity(self._kubelet) != kubelet)
            return
        raise Lost("the kubelet runs but has dropped our ListAndWatch stream")

    async def _stand_by(self, version: str) -> None:
        """Another process has put its socket in the place of ours: the newest wins. Wait until it is gone.

        A kubelet since 1.25 that sees our stream end disconnects whoever is registered by then (`runClient` in
        pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go), and NVIDIA's plugin does not notice: none of the two
        would be left. So the other one is registered once more.
        """
        log.error(
            "another process has taken over %s: two device plugins for %s run on this node; this one stands by",
            self._socket,
            self.resource,
            extra=self._fields,
        )
        if not await self._until(lambda: not alive(self._socket), SETTLED) and version == "v1beta1":
            try:
                await self._introduce()
            except grpc.aio.AioRpcError as error:
                log.warning(
                    "the other device plugin was not registered once more: %s",
                    error.details(),
                    extra=self._fields,
                )
        await self._until(lambda: not alive(self._socket))
        log.info("the other device plugin is gone; taking over again", extra=self._fields)

    async def _introduce(self) -> None:
        """Register whoever serves at our socket's path, with the options that it has."""
        async with (
            grpc.aio.insecure_channel(
                f"unix:{self._socket}", options=[("grpc.default_authority", "localhost")]
            ) as other,
            grpc.aio.insecure_channel(f"unix:{self._kubelet}") as kubelet,
        ):
            ask = other.unary_unary(
                "/v1beta1.DevicePlugin/GetDevicePluginOptions",
                request_serializer=api.Empty.SerializeToString,
                response_deserializer=api.DevicePluginOptions.FromString,
            )
            await self._tell(kubelet, "v1beta1", await ask(api.Empty(), timeout=REGISTER_DEADLINE))

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


def identity(path: Path) -> Identity | None:
    """What tells one file at `path` from the next one at the same path; None where there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return (
        status.st_dev,
        status.st_ino,
        status.st_mtime_ns,
    )  # not ctime: a relabel or chmod makes no other file


def alive(path: Path) -> bool:
    """Whether somebody listens on the Unix socket at `path`. At once: one that hangs is alive."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(str(path))
        except BlockingIOError:
            return True  # its queue is full
        except OSError:
            return False
    return True


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"the kubelet says {error.code().name}: {error.details()}"
    return str(error)
