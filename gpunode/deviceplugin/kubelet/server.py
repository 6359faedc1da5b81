"""Serves one resource and keeps it registered with the kubelet.

It serves first, then registers. It does both again when the kubelet has restarted (which makes a new kubelet.sock and
empties the directory) or has dropped its ListAndWatch stream.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from gpunode.contract.config import Config, file_name
from gpunode.contract.offer import MAX_LIST

from ..cdi import Specs
from ..directory import Directory, Identity, alive, identity
from ..metrics import Metrics
from ..rpc import Code, RpcError, Server, call
from ..state import NodeState
from ..threads import wait_at_most
from . import messages
from .promised import Promised
from .service import Service, options

# The protocol's versions, newest first, with their method. The old ones ignore the message's last field.
VERSIONS = {
    "v1beta1": "/v1beta1.Registration/Register",
    "v1alpha2": "/deviceplugin.Registration/Register",
    "0.1": "/deviceplugin.Registration/Register",  # what v1alpha1 calls itself (constants.go of Kubernetes 1.8)
}
DEADLINE = 10.0  # seconds; newer kubelets call back before they answer


class KubeletUnavailable(Exception):
    """The kubelet cannot be served now; the message has the reason. A retry may succeed."""


async def register(kubelet: Path, endpoint: str, service: Service, plugin_options: bytes) -> None:
    """Register `service` in the newest version that the kubelet accepts, and set `service.version` to it.

    `endpoint` is its socket's name. Raises KubeletUnavailable, RpcError.
    """
    refusal: Exception = KubeletUnavailable("the kubelet serves no version of the device plugin protocol")
    for version in VERSIONS:
        service.version = version
        try:
            await _call(kubelet, version, endpoint, service.resource, plugin_options)
            return
        except RpcError as error:
            if error.code is Code.UNIMPLEMENTED:
                continue  # no such service: an older kubelet, or a newer one
            if "version" not in error.details.lower():
                raise
            refusal = error
    raise refusal


async def introduce(kubelet: Path, other: Path, resource: str) -> None:
    """Register the plugin behind the socket `other` for `resource`, with its own options. Raises RpcError."""
    plugin_options = await call(other, "/v1beta1.DevicePlugin/GetDevicePluginOptions", b"", seconds=DEADLINE)
    await _call(kubelet, "v1beta1", other.name, resource, plugin_options)


async def _call(kubelet: Path, version: str, endpoint: str, resource: str, plugin_options: bytes) -> None:
    request = messages.registration(version, endpoint, resource, plugin_options)
    await call(kubelet, VERSIONS[version], request, seconds=DEADLINE)


def permission_problem(kubelet: Path) -> str | None:
    """Why this user cannot connect to the socket `kubelet` or make one beside it; None if it can.

    None also while they do not exist: the kubelet may create them later.
    """
    folder = kubelet.parent
    for path, wanted in ((folder, os.R_OK | os.W_OK | os.X_OK), (kubelet, os.R_OK | os.W_OK)):
        try:
            status = path.stat()
        except OSError:
            return None
        if os.access(path, wanted):
            continue
        if os.statvfs(path).f_flag & os.ST_RDONLY:
            return f"{folder} is mounted read-only: let the pod write there"
        user, owner = os.getuid(), status.st_uid
        refusal = f"user {user} may not use {path}, which belongs to user {owner} (mode {status.st_mode & 0o7777:04o})"
        instead = f"run the plugin as user {owner} (runAsUser), or " if owner != user else ""
        return f"{refusal}: {instead}let user {user} write there"
    return None


log = logging.getLogger(__name__)

STREAM_DEADLINE = 20.0  # seconds from the registration to the kubelet's ListAndWatch
SETTLED = 1.0  # seconds after which the kubelet has noticed that our stream ended
PAUSE = 1.0  # seconds before the first retry
STEADY = 600.0  # seconds after which a registration counts as stable
LONGEST = 600.0  # seconds between two tries with a kubelet that keeps dropping the stream
SOON = 1.0  # seconds in which a restarting kubelet makes a new socket
CHECK_ANYWAY = 30.0  # seconds after which the sockets are checked without an inotify event


class StreamDropped(Exception):
    """The kubelet runs, but ended its stream `lasted` seconds after the registration."""

    def __init__(self, lasted: float) -> None:
        super().__init__("the kubelet runs but has dropped our ListAndWatch stream")
        self.lasted = lasted


class ResourceServer:
    """Serves the units of one resource of `state`. `run` continues until it is cancelled. Calls `changed` whenever
    `registered` or `standing_by` may have changed."""

    def __init__(
        self,
        resource: str,
        state: NodeState,
        config: Config,
        metrics: Metrics,
        specs: Specs | None,
        changed: Callable[[], None] = lambda: None,
        promised: Promised | None = None,
    ) -> None:
        self.resource = resource
        self._config = config
        self._metrics = metrics
        self._specs = specs
        self._changed = changed
        self._make = partial(Service, resource, state, config, metrics, specs, self._stream_changed, promised)
        self._kubelet = Path(config.kubelet_socket)
        self._socket = self._kubelet.parent / f"nvidia-{file_name(resource)}.sock"
        self._wakeup = asyncio.Event()
        self.standing_by = False  # another process serves the resource
        self._accepted: Service | None = None  # the service that the kubelet has registered
        self._fields = {"resource": resource}

    @property
    def registered(self) -> bool:
        """True if the kubelet has registered the resource and has its list: only then pods can get units."""
        return self._accepted is not None and self._accepted.streams > 0

    def _set_accepted(self, service: Service | None) -> None:
        self._accepted = service
        self._changed()

    def _set_standing_by(self, yes: bool) -> None:
        self.standing_by = yes
        self._changed()

    def _stream_changed(self) -> None:
        self._wakeup.set()
        self._changed()

    async def run(self) -> None:
        """Stay registered with the kubelet across its restarts."""
        retry, drops = PAUSE, 0
        while True:
            try:
                await self._serve()
                retry, drops = PAUSE, 0
                continue
            except StreamDropped as drop:
                drops = drops + 1 if drop.lasted < STEADY else 1
                retry, why = min(PAUSE * 2 ** (drops - 1), LONGEST), f"{drop}{self._advice(drops)}"
            except (KubeletUnavailable, OSError, RpcError) as error:
                why = _words(error)
            log.warning("not registered: %s; trying again in %.0f s", why, retry, extra=self._fields)
            if await self._pause(retry):
                retry, drops = PAUSE, 0
            else:
                retry = min(retry * 2, 30.0)

    async def _serve(self) -> None:
        """Serve from one registration until the kubelet restarts, or until another plugin that took over is gone."""
        self._check_permission()
        with Directory(self._kubelet.parent, self._wakeup.set):
            await self._until_kubelet()
            self._check_permission()
            async with self._serving() as (service, mine):
                kubelet = identity(self._kubelet)
                await self._register(service)
                await self._until_outdated(service, kubelet, mine)
            if identity(self._socket) is not None:
                self._set_standing_by(True)
                try:
                    await self._stand_by(service.version)
                finally:
                    self._set_standing_by(False)

    def _advice(self, drops: int) -> str:
        """The likely cause if the kubelet drops the stream repeatedly; "" for the first two times."""
        if drops < 3:
            return ""
        return (
            f", {drops} times in a row: does another device plugin on this node register {self.resource}? "
            "Of two, the kubelet takes the newest"
        )

    def _check_permission(self) -> None:
        """Raises KubeletUnavailable if this process's user lacks permission."""
        if why := permission_problem(self._kubelet):
            raise KubeletUnavailable(why)

    async def _pause(self, seconds: float) -> bool:
        """Wait for so many seconds, or until the kubelet restarts; True if it did."""
        before = identity(self._kubelet)
        try:
            with Directory(self._kubelet.parent, self._wakeup.set):
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
        """Serve on our socket; yields the service and the socket's identity.

        The socket is made under another name and moved into place, so there is never a dead one.
        """
        # A short name: the path of a socket has 107 characters at most.
        fresh = self._socket.with_name(f".{os.urandom(4).hex()}.sock")
        service = self._make()
        # A request may name every unit twice: as available, and as one that must be included.
        unary = service.unary()
        # Without a CDI specification, which takes files, an allocation never waits.
        at_once = [path for path in unary if path.endswith("/Allocate") and self._specs is None]
        server = Server(unary, service.streaming(), longest=2 * MAX_LIST, at_once=at_once)
        try:
            await server.start(fresh)
        except OSError as error:
            raise KubeletUnavailable(f"cannot listen in {self._socket.parent}: {error}") from None
        try:
            fresh.rename(self._socket)
            mine = identity(self._socket)
            if mine is None:
                raise KubeletUnavailable(f"{self._socket} was removed at once")
            try:
                yield service, mine
            finally:
                if identity(self._socket) == mine:
                    self._socket.unlink(missing_ok=True)
        finally:
            self._set_accepted(None)
            service.closing.set()
            await server.stop(grace=2)

    async def _register(self, service: Service) -> None:
        await register(self._kubelet, self._socket.name, service, options(self._config))
        self._set_accepted(service)
        self._metrics.count("registrations_total", resource=self.resource)
        fields = {"units": len(service.units()), "socket": self._socket, "version": service.version}
        log.info("registered with the kubelet", extra={**self._fields, **fields})

    async def _until_outdated(self, service: Service, kubelet: Identity | None, mine: Identity) -> None:
        """Return once the kubelet has restarted, or our socket was removed or replaced. Raises KubeletUnavailable."""

        since = time.monotonic()

        def outdated() -> bool:
            return identity(self._kubelet) != kubelet or identity(self._socket) != mine

        if not await self._until(
            lambda: outdated() or bool(service.streams or service.lost), STREAM_DEADLINE
        ):
            raise KubeletUnavailable(
                f"the kubelet registered the resource, but did not ask for its devices within {STREAM_DEADLINE:.0f} s"
            )
        await self._until(lambda: outdated() or not service.streams)
        self._set_accepted(None)
        if identity(self._kubelet) != kubelet or identity(self._socket) is None:
            log.info("the kubelet has restarted", extra=self._fields)
        elif identity(self._socket) == mine:
            await self._on_stream_end(kubelet, since)

    async def _on_stream_end(self, kubelet: Identity | None, since: float) -> None:
        """The kubelet ended its stream: return if it restarts or stops, raise StreamDropped if it goes on running."""
        if await self._until(lambda: identity(self._kubelet) != kubelet, SOON):
            return
        if not alive(self._kubelet):
            log.info("the kubelet has stopped; waiting for it", extra=self._fields)
            await self._until(lambda: identity(self._kubelet) != kubelet or alive(self._kubelet))
            return
        raise StreamDropped(time.monotonic() - since)

    async def _stand_by(self, version: str) -> None:
        """Another process has replaced our socket: the newest wins. Wait until that process is gone.

        When our stream ends, kubelets since 1.25 disconnect the plugin registered by then (`runClient` in
        pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go). NVIDIA's plugin does not notice that, so neither of the
        two would be registered. This registers the other one again.
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
            except RpcError as error:
                log.warning(
                    "the other device plugin could not be registered again: %s",
                    error.details,
                    extra=self._fields,
                )
        await self._until(lambda: not alive(self._socket))
        log.info("the other device plugin is gone; taking over again", extra=self._fields)

    async def _until(self, condition: Callable[[], bool], seconds: float = math.inf) -> bool:
        """Wait until `condition` holds, at most so many seconds; True if it does. Checks at events, and periodically."""
        end = time.monotonic() + seconds
        while not condition():
            left = end - time.monotonic()
            if left <= 0:
                return False
            self._wakeup.clear()
            await wait_at_most(min(CHECK_ANYWAY, left), self._wakeup.wait())
        return True


def _words(error: Exception) -> str:
    if isinstance(error, RpcError):
        if error.code is Code.UNAVAILABLE:
            return f"no kubelet answers at its socket: {error.details}"
        return f"the kubelet answers {error.code.name}: {error.details}"
    return str(error)
