"""One resource, served and registered with the kubelet, whatever the kubelet does.

Order and upkeep: serve first, then register; serve and register again whenever the kubelet has started anew
(it makes a new kubelet.sock and wipes the directory of ours) or has dropped its ListAndWatch stream.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import grpc

from ..cdi import Specs
from ..metrics import Metrics
from ..offer.board import Board
from ..offer.listing import MAX_LIST
from ..settings.config import Config, file_word
from ..settings.directory import Directory
from . import alpha
from .permission import refused
from .registration import NoVersion, introduce, register
from .service import Service, options
from .sockets import Identity, alive, identity

log = logging.getLogger(__name__)

STREAM_DEADLINE = 20.0  # seconds from the registration to the kubelet's ListAndWatch
SETTLED = 1.0  # seconds after which the kubelet has seen our stream end
PAUSE = 1.0  # seconds before another try, the first time
STEADY = 600.0  # seconds after which a registration counts as a good one, whatever becomes of it
LONGEST = 600.0  # seconds between two tries, with a kubelet that drops us again and again
SOON = 1.0  # seconds in which a kubelet that restarts has a new socket
LOOK_ANYWAY = 30.0  # seconds after which the sockets are looked at even if inotify said nothing


class Lost(Exception):
    """The kubelet cannot be served just now; says why. Trying again is right."""


class Dropped(Exception):
    """The kubelet runs, but has ended its stream, so many seconds after the registration."""

    def __init__(self, lasted: float) -> None:
        super().__init__("the kubelet runs but has dropped our ListAndWatch stream")
        self.lasted = lasted


class ResourceServer:
    """Serves the units that `board` has under one resource name. `run` goes on until it is cancelled; `changed` is called
    whenever `registered` or `standing_by` may have changed."""

    def __init__(
        self,
        resource: str,
        board: Board,
        config: Config,
        metrics: Metrics,
        specs: Specs | None,
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        self.resource = resource
        self._board = board
        self._config = config
        self._metrics = metrics
        self._specs = specs
        self._changed = changed
        self._kubelet = Path(config.kubelet_socket)
        self._socket = self._kubelet.parent / f"nvidia-{file_word(resource)}.sock"
        self._stirred = asyncio.Event()
        self.standing_by = False  # another process serves the resource
        self._known: Service | None = None  # what the kubelet has registered
        self._fields = {"resource": resource}

    @property
    def registered(self) -> bool:
        """Whether the kubelet has registered it and has its list: only then pods can be given units."""
        return self._known is not None and self._known.streams > 0

    def _know(self, service: Service | None) -> None:
        self._known = service
        self._changed()

    def _stands_by(self, yes: bool) -> None:
        self.standing_by = yes
        self._changed()

    def _stream_changed(self) -> None:
        self._stirred.set()
        self._changed()

    async def run(self) -> None:
        """Be registered with the kubelet, now and after each of its restarts."""
        retry, drops = PAUSE, 0
        while True:
            try:
                await self._serve()
                retry, drops = PAUSE, 0
                continue
            except Dropped as drop:
                drops = drops + 1 if drop.lasted < STEADY else 1
                retry, why = min(PAUSE * 2 ** (drops - 1), LONGEST), f"{drop}{self._advice(drops)}"
            except (Lost, NoVersion, OSError, grpc.aio.AioRpcError) as error:
                why = _words(error)
            log.warning("not registered: %s; trying again in %.0f s", why, retry, extra=self._fields)
            if await self._pause(retry):
                retry, drops = PAUSE, 0
            else:
                retry = min(retry * 2, 30.0)

    async def _serve(self) -> None:
        """From one registration until the kubelet is a new one, or our place is free again. Raises what hinders it."""
        self._may()
        with Directory(self._kubelet.parent, self._stirred.set):
            await self._until_kubelet()
            self._may()
            async with self._serving() as (service, mine):
                kubelet = identity(self._kubelet)
                await self._register(service)
                await self._until_outdated(service, kubelet, mine)
            if identity(self._socket) is not None:
                self._stands_by(True)
                try:
                    await self._stand_by(service.version)
                finally:
                    self._stands_by(False)

    def _advice(self, drops: int) -> str:
        """What it may be when the kubelet drops us again and again."""
        if drops < 3:
            return ""
        return (
            f", {drops} times in a row: does another device plugin on this node register {self.resource}? "
            "Of two, the kubelet takes the newest"
        )

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
            self.resource, self._board, self._config, self._metrics, self._specs, self._stream_changed
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
            self._know(None)
            service.closing.set()
            # In a task of its own: gRPC waits in a way that can swallow a cancellation before Python 3.12.
            stopping = asyncio.ensure_future(server.stop(grace=2))
            try:
                await asyncio.wait((stopping,))
            finally:
                await stopping

    async def _register(self, service: Service) -> None:
        await register(self._kubelet, self._socket.name, service, options(self._config))
        self._know(service)
        self._metrics.count("registrations_total", resource=self.resource)
        fields = {"units": len(service.units()), "socket": self._socket, "version": service.version}
        log.info("registered with the kubelet", extra={**self._fields, **fields})

    async def _until_outdated(self, service: Service, kubelet: Identity | None, mine: Identity) -> None:
        """Return once the kubelet is a new one, or our socket is gone or another's. Raises Lost."""

        since = time.monotonic()

        def outdated() -> bool:
            return identity(self._kubelet) != kubelet or identity(self._socket) != mine

        if not await self._until(
            lambda: outdated() or bool(service.streams or service.lost), STREAM_DEADLINE
        ):
            raise Lost(
                f"the kubelet has registered us, but not asked for the devices in {STREAM_DEADLINE:.0f} s"
            )
        await self._until(lambda: outdated() or not service.streams)
        self._know(None)
        if identity(self._kubelet) != kubelet or identity(self._socket) is None:
            log.info("the kubelet has restarted", extra=self._fields)
        elif identity(self._socket) == mine:
            await self._stream_lost(kubelet, since)

    async def _stream_lost(self, kubelet: Identity | None, since: float) -> None:
        """The kubelet ended its stream. It stopped, or it dropped us: one that restarts is soon a new one."""
        if await self._until(lambda: identity(self._kubelet) != kubelet, SOON):
            return
        if not alive(self._kubelet):
            log.info("the kubelet has stopped; waiting for it", extra=self._fields)
            await self._until(lambda: identity(self._kubelet) != kubelet or alive(self._kubelet))
            return
        raise Dropped(time.monotonic() - since)

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
                await introduce(self._kubelet, self._socket, self.resource)
            except grpc.aio.AioRpcError as error:
                log.warning(
                    "the other device plugin was not registered once more: %s",
                    error.details(),
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


def _words(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        if error.code() is grpc.StatusCode.UNAVAILABLE:
            return f"no kubelet answers at its socket: {error.details()}"
        return f"the kubelet says {error.code().name}: {error.details()}"
    return str(error)
