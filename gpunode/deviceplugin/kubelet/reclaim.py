"""Reserves what containers still use by an earlier configuration, until their pods end."""

import asyncio
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path

from gpunode.contract.checkpoint import FILE_NAME, Entry, entries
from gpunode.contract.offer import Device, Unit
from gpunode.contract.status import Pod

from ..directory import Identity, alive, identity
from ..state import ContainerDevices, NodeState, Reservation, reservations
from .podresources import PodResources


def pod_names(entries: Iterable[Entry], reported: Iterable[ContainerDevices]) -> dict[str, str]:
    """Names of pods by UID, where the kubelet reports the same devices for one of their containers."""
    by_devices = {(held.container, held.resource, frozenset(held.ids)): held.pod for held in reported}
    return {
        entry.pod: pod.name
        for entry in entries
        if (pod := by_devices.get((entry.container, entry.resource, entry.ids))) is not None
    }


def unreported_entries(entries: Iterable[Entry], reported: Iterable[ContainerDevices]) -> tuple[Entry, ...]:
    """The entries with units that the kubelet does not report, each unit once."""
    known = {(held.resource, unit_id) for held in reported for unit_id in held.ids}
    rest = []
    for entry in entries:
        ids = frozenset(unit_id for unit_id in entry.ids if (entry.resource, unit_id) not in known)
        known |= {(entry.resource, unit_id) for unit_id in ids}
        if ids:
            rest.append(replace(entry, ids=ids))
    return tuple(rest)


log = logging.getLogger(__name__)

POLL = 5.0  # seconds between two checks while something is reserved
PATIENCE = 10.0  # seconds in which a starting kubelet makes its pod-resources socket
SOON = 1.0  # seconds after which the kubelet may have written its checkpoint again


class Reclaim:
    """Updates the reservations of `state` whenever the devices change, and polls while there are any.

    The kubelet's checkpoint is complete, but may have pods that have ended. The kubelet forgets those when asked for pod
    resources, and rewrites the checkpoint when it gets a list. So while only the checkpoint has a pod, this asks the
    kubelet and resends the lists. `run` never ends.
    """

    def __init__(self, pods: PodResources, state: NodeState, pod_resources: Path, kubelet: Path) -> None:
        self._pods = pods
        self._state = state
        self._sockets = (pod_resources, kubelet)
        self._kubelet: Identity | None = None  # its socket, there since this moment of the monotonic clock
        self._since = 0.0
        self._record = kubelet.parent / FILE_NAME
        self._checking = asyncio.Lock()
        self._open = asyncio.Event()  # a check is due
        # Those of the last check of new offers.
        self._devices: tuple[Device, ...] | None = None
        self._reported: tuple[ContainerDevices, ...] = ()  # by the kubelet, when it last answered
        self._unreported: tuple[Entry, ...] = ()  # what only the checkpoint had at the last read
        self._old: Identity | None = None  # the checkpoint from before the kubelet was asked
        self._names: Mapping[str, str] = {}  # of pods, by UID
        self._pause = POLL
        self._warned: set[str] = set()

    async def reserve(self, offers: Mapping[str, tuple[Unit, ...]]) -> None:
        """Reserve what must not be allocated of these units. Call it before they are offered."""
        if self._devices == self._state.devices:
            return
        async with self._checking:
            self._devices, self._old = self._state.devices, identity(self._record)
            await self._check(offers)
            self._open.set()  # allocations made during the check count in the next one

    async def run(self) -> None:
        """Check while something is reserved, and free it when its pods have ended."""
        while True:
            await self._open.wait()
            await asyncio.sleep(self._pause)
            async with self._checking:
                await self._check(self._state.offers)

    async def _check(self, offers: Mapping[str, tuple[Unit, ...]]) -> None:
        reported = await self._pods.ask()
        silent = reported is None and self._never()
        holders = () if silent else tuple(await self._holders(reported))
        before = self._state.reservations
        after = await asyncio.to_thread(reservations, offers, self._state.devices, holders, before)
        _log_changes(before, after)
        self._state.reserve(after)
        if after and self._unreported:
            self._state.resend()
        if silent:
            self._warn(
                "GPUs that pods use by an earlier configuration are not reserved: the kubelet does not report them "
                "(before Kubernetes 1.20, or with another --root-dir); drain this node before you change how its GPUs are shared"
            )
        if after or (reported is None and not silent):
            self._open.set()
        else:
            self._open.clear()

    def _never(self) -> bool:
        """True if the running kubelet will never report pods' devices.

        Its checkpoint alone does not do: it keeps pods that have ended until the next allocation.
        """
        theirs, kubelet = self._sockets
        try:
            age = time.time() - kubelet.stat().st_mtime
        except OSError:
            return False
        if (seen := identity(kubelet)) != self._kubelet:
            self._kubelet, self._since = seen, time.monotonic()
        age = max(age, time.monotonic() - self._since)  # the clock may have been set back
        return self._pods.unknown or (age >= PATIENCE and not theirs.exists() and alive(kubelet))

    async def _holders(self, reported: tuple[ContainerDevices, ...] | None) -> Iterator[ContainerDevices]:
        """All containers with devices, by the kubelet's answer (None: it gave none) and by its checkpoint."""
        self._reported = self._reported if reported is None else reported
        confirmed = identity(self._record) != self._old  # an old one may have pods that have ended
        try:
            recorded = await asyncio.to_thread(entries, self._record)
        except (OSError, ValueError) as error:
            self._warn(f"devices of init containers are not reserved: {self._record}: {error}")
            recorded = ()
        pods = frozenset(entry.pod for entry in recorded)
        names = {**self._names, **pod_names(recorded, self._reported)}
        self._names = {uid: name for uid, name in names.items() if uid in pods}
        before, self._unreported = self._unreported, unreported_entries(recorded, self._reported)
        self._pause = POLL if confirmed and self._unreported == before else SOON
        # The kubelet reports ids alone.
        index = {(entry.container, entry.resource, entry.ids): entry.index for entry in recorded}
        return chain(
            (
                replace(held, index=index.get((held.container, held.resource, frozenset(held.ids)), ""))
                for held in self._reported
            ),
            (_container_devices(entry, self._names, confirmed=confirmed) for entry in self._unreported),
        )

    def _warn(self, message: str) -> None:
        """Log a warning once, not at every check."""
        if message not in self._warned:
            self._warned.add(message)
            log.warning("%s", message)


def _container_devices(entry: Entry, names: Mapping[str, str], *, confirmed: bool) -> ContainerDevices:
    """The entry in the form of the kubelet's answer."""
    pod = Pod(names[entry.pod]) if entry.pod in names else Pod(uid=entry.pod)
    return ContainerDevices(
        pod, entry.container, entry.resource, tuple(sorted(entry.ids)), confirmed, entry.index
    )


def _log_changes(before: tuple[Reservation, ...], after: tuple[Reservation, ...]) -> None:
    known = {(reservation.resource, reservation.device) for reservation in before if reservation.confirmed}
    left = {(reservation.resource, reservation.device) for reservation in after}
    for reservation in after:
        if reservation.confirmed and (reservation.resource, reservation.device) not in known:
            fields = {
                "resource": reservation.resource,
                "device": reservation.device,
                "units": len(reservation.ids),
            }
            log.warning("reserved: %s", reservation.why, extra=fields)
    for resource, device in known - left:
        log.info("no longer reserved", extra={"resource": resource, "device": device})
