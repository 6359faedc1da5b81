"""Watches the GPUs: a thread probes them and waits for their Xid events. One that hangs keeps it, and the others get another."""

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from gpunode.contract.config import Config
from gpunode.contract.offer import Device
from gpunode.contract.status import Reason

from .gpus import NVML_SILENT, Handles, ask, explain, reason_of, text, unsupported
from .health import Health, Lasting, Verdict, XidPolicy, XidRecord, verdict, xid_name
from .metrics import Metrics
from .state import NodeState
from .threads import NvmlThread, post

log = logging.getLogger(__name__)

DEADLINE = 10.0  # seconds that one NVML call may take before the GPU counts as not answering
PATIENCE = 2.0  # seconds that a call may take before the other GPUs get another watch
TICK = 2.0  # seconds between two checks for such calls, at least
PAUSE = 1.0  # seconds before a wait for events that failed begins again
NO_INSTANCE = 0xFFFFFFFF  # NVML: the event concerns no particular MIG instance


Change = Callable[[Health], None]


@dataclass(eq=False, slots=True)
class WatchedGpu:
    """A GPU with its MIG devices, and what its watch knows of it."""

    devices: tuple[Device, ...]
    failing: bool = False  # NVML returned an error for it at the last probe
    failed: float = -math.inf  # when it did last; monotonic
    driver_decides: bool = False  # by its recovery action: whether the GPU can be used after an Xid
    energy: int | None = None  # mJ since the driver has initialised the GPU, as it last said
    mute: bool = False  # it reports no Xid events

    @property
    def uuid(self) -> str:
        return self.devices[0].gpu


@dataclass(eq=False, slots=True)
class EventSet:
    """An event set of NVML, and the GPUs that are registered in it, by handle."""

    handle: Any = None
    gpus: dict[Any, WatchedGpu] = field(default_factory=dict)


class GpuWatch(NvmlThread):
    """Probes GPUs, one after the other, and waits for the Xid events of all by one event set. Calls `update(device, change)` with
    what it finds, and `blame()` where the wait fails though every GPU answers: which of them is at fault is then unknown.

    Both are called in this thread.
    """

    def __init__(
        self,
        handles: Handles,
        gpus: tuple[WatchedGpu, ...],
        update: Callable[[Device, Change], None],
        blame: "Callable[[GpuWatch], None]",
        *,
        xid_policy: XidPolicy,
        metrics: Metrics,
        interval: float = 10.0,
        events: EventSet | None = None,
    ) -> None:
        super().__init__(name="watch " + ",".join(gpu.uuid for gpu in gpus), daemon=True)
        self.gpus = gpus
        self._handles = handles
        self._nvml = handles.nvml
        self._update = update
        self._blame = blame
        self._xid_policy = xid_policy
        self._metrics = metrics
        self._interval = interval
        self._halt = threading.Event()
        self._lock = threading.Lock()  # for what `leave` takes
        self._asked: WatchedGpu | None = None  # the GPU that an NVML call is about
        self._events = events or EventSet()
        self.since = time.monotonic()  # when the NVML call began, or a wait should have returned; monotonic

    def late(self, seconds: float) -> bool:
        """True if an NVML call takes longer."""
        return self.is_alive() and time.monotonic() > self.since + seconds

    def stop(self) -> None:
        """Ask the thread to end. It ends within one interval, unless it is stuck."""
        self._halt.set()

    def leave(self) -> tuple[tuple[WatchedGpu, ...], EventSet]:
        """Keep only the GPU that an NVML call is about: the others, and the event set, in which events may wait. No others where
        there is no such call."""
        with self._lock:
            if self._asked is None:
                return (), EventSet()
            others = tuple(gpu for gpu in self.gpus if gpu is not self._asked)
            events, self._events = self._events, EventSet()
            self.gpus = (self._asked,)
            return others, events

    def run(self) -> None:
        while not self._halt.is_set():
            self._probe(*self.gpus)
            self._subscribe()
            self._await_events(time.monotonic() + self._interval)
        self._free()

    @contextlib.contextmanager
    def _asking(self, gpu: WatchedGpu) -> Iterator[bool]:
        """While entered, NVML calls are about this GPU; False if it has another watch by now."""
        with self._lock:
            own = gpu in self.gpus
            self._asked, self.since = gpu if own else None, time.monotonic()
        yield own
        with self._lock:
            self._asked = None

    def _probe(self, *gpus: WatchedGpu) -> bool:
        """Probe these GPUs; True if NVML answers for all of them."""
        for gpu in gpus:
            with self._asking(gpu) as own:
                if not own:
                    continue
                probe = examine(self._handles, gpu.uuid)
                if not probe.failed:
                    gpu.driver_decides = probe.driver_decides
                    # At each probe: a GPU that is lost with its Xid does not say any more.
                    with contextlib.suppress(self._nvml.NVMLError):
                        handle = self._handles.of(gpu.uuid)
                        gpu.energy = int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
            gpu.failing = probe.failed
            now = time.monotonic()
            if probe.failed:
                gpu.failed = now
            for device in gpu.devices:
                self._update(device, lambda health: _record_probe(health, gpu, probe, now))  # noqa: B023 (called at once)
        return not any(gpu.failing for gpu in gpus)

    def _subscribe(self) -> None:
        """Register the GPUs that answer, and report Xid events."""
        nvml, events = self._nvml, self._events
        for gpu in self.gpus if self._xid_policy.events else ():
            if gpu.failing or gpu.mute or gpu in events.gpus.values():
                continue
            with self._asking(gpu) as own:
                if not own:
                    return
                try:
                    if events.handle is None:
                        events.handle = nvml.nvmlEventSetCreate()
                    handle = self._handles.of(gpu.uuid)
                    nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events.handle)
                    events.gpus[handle] = gpu
                except nvml.NVMLError as error:
                    gpu.mute = unsupported(nvml, error)
                    message = f"cannot subscribe to Xid events: {explain(error)}"
                    if gpu.mute:
                        message = "this GPU reports no Xid events; only probes check its health"
                    log.warning("%s", message, extra={"gpu": gpu.uuid})

    def _free(self) -> None:
        events, self._events = self._events, EventSet()
        if events.handle is not None:
            with contextlib.suppress(self._nvml.NVMLError):  # as for a lost GPU; it is dropped either way
                self._nvml.nvmlEventSetFree(events.handle)

    def _await_events(self, end: float) -> None:
        """Handle events until `end` (monotonic), or until the event set fails: those who answer are then registered in another."""
        nvml = self._nvml
        while not self._halt.is_set() and (left := end - time.monotonic()) > 0:
            self.since = end
            if not self._events.gpus:
                self._halt.wait(left)
                return
            try:
                event = nvml.nvmlEventSetWait_v2(self._events.handle, math.ceil(left * 1000))
            except nvml.NVMLError as error:
                if getattr(error, "value", None) != nvml.NVML_ERROR_TIMEOUT:
                    self._recover(error)
                return
            if not self._halt.is_set() and event.eventType == nvml.nvmlEventTypeXidCriticalError:
                gpu = self._gpu_of(event)
                if gpu is not None and gpu in self.gpus:  # else it has a new watch, which gets the event too
                    self._xid(gpu, event)
                    self._probe(gpu)

    def _recover(self, error: Exception) -> None:
        """One lost GPU fails the wait for all. A probe tells which, and the others are registered in another set at once."""
        gpus = ",".join(gpu.uuid for gpu in self.gpus)
        log.warning("waiting for Xid events failed: %s", explain(error), extra={"gpus": gpus})
        self._free()
        lately = {gpu for gpu in self.gpus if gpu.failed > time.monotonic() - PAUSE}
        answer = self._probe(*self.gpus)
        self._subscribe()
        if answer and len(self.gpus) > 1:
            self._blame(self)
        if not any(gpu.failing and gpu not in lately for gpu in self.gpus):
            self._halt.wait(PAUSE)  # against a busy loop of immediate errors

    def _gpu_of(self, event: Any) -> WatchedGpu | None:
        """The GPU of an event; None, logged, where NVML does not name one that is registered."""
        if event.device in self._events.gpus:
            return self._events.gpus[event.device]
        try:
            uuid = text(self._nvml.nvmlDeviceGetUUID(event.device))
        except self._nvml.NVMLError as error:
            uuid = f"an unknown GPU ({explain(error)})"
        log.error("Xid %d of %s, which is not watched", event.eventData, uuid)
        return next((gpu for gpu in self.gpus if gpu.uuid == uuid), None)

    def _xid(self, gpu: WatchedGpu, event: Any) -> None:
        number, instance = int(event.eventData), (int(event.gpuInstanceId), int(event.computeInstanceId))
        fields = {"gpu": gpu.uuid, "xid": number}
        self._metrics.count_xid(gpu.uuid, number)
        if not self._xid_policy.counts(number):
            log.info("Xid %d (%s) does not make the GPU Unhealthy", number, xid_name(number), extra=fields)
            return
        needed, now = verdict(number), time.monotonic()
        log.error("Xid %d (%s): %s", number, xid_name(number), needed.value, extra=fields)
        energy = gpu.energy if needed is Verdict.RESET else None
        lasting = None if gpu.driver_decides or needed is Verdict.APPLICATION else Lasting(number, energy)
        for device in _concerned(gpu.devices, *instance):
            self._update(device, lambda health: health.xid(number, now, lasting))


def _concerned(devices: tuple[Device, ...], gpu_instance: int, compute_instance: int) -> Sequence[Device]:
    """The MIG devices that an event names; all of the GPU's where it names none that is known."""
    concerned = [
        device
        for device in devices
        if device.instance is not None
        and device.instance[0] == gpu_instance
        and compute_instance in (device.instance[1], NO_INSTANCE)
    ]
    return devices if gpu_instance == NO_INSTANCE or not concerned else concerned


def _record_probe(health: Health, gpu: WatchedGpu, probe: "Probe", now: float) -> None:
    """A lasting Xid ends where the driver decides, or with a reset of the GPU."""
    known = health.lasting.energy if health.lasting else None
    reset = known is not None and gpu.energy is not None and gpu.energy < known
    if reset or gpu.driver_decides:
        health.lasting = None
    health.record_probe(probe.problem, now)


@dataclass(frozen=True, slots=True)
class Probe:
    """A GPU's problem or None; whether NVML itself failed; whether its driver reports recovery actions."""

    problem: Reason | None
    failed: bool = False
    driver_decides: bool = False


def examine(handles: Handles, gpu: str) -> Probe:
    nvml = handles.nvml
    try:
        handle = handles.of(gpu)
        ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        action = _recovery_action(nvml, handle)
        decides = action is not None
        if action in _ACTIONS:
            message = f"the driver asks for a recovery action: {_ACTIONS[action]}"
            return Probe(Reason("recovery-action", message), driver_decides=decides)
        rows = ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None and rows[3]:
            message = "memory row remapping has failed: the GPU has to be replaced"
            return Probe(Reason("row-remap-failed", message), driver_decides=decides)
    except nvml.NVMLError as error:
        handles.drop(gpu)
        return Probe(reason_of(error), failed=True)
    return Probe(None, driver_decides=decides)


def _recovery_action(nvml: Any, handle: Any) -> int | None:
    """The recovery action that the driver asks for, 0 for none; None where it reports none (before about R560)."""
    fields = ask(nvml, nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if not fields or fields[0].nvmlReturn != nvml.NVML_SUCCESS:
        return None
    return int(fields[0].value.uiVal)


_ACTIONS = {  # nvmlDeviceGpuRecoveryAction_t; the ones that only concern peers leave the GPU usable
    1: "reset the GPU (nvidia-smi --gpu-reset)",
    2: "reboot the node",
    4: "drain the node and reset the GPU",
    6: "reset the GPU's PCIe bus",
    7: "reboot the system",
}


class GpuWatches:
    """Watches this machine's GPUs: all by one thread, but for those that hang in NVML. `health` has the devices' health, by UUID."""

    def __init__(
        self,
        handles: Handles,
        state: NodeState,
        config: Config,
        xid_policy: XidPolicy,
        metrics: Metrics,
        before: Mapping[str, Health],
    ) -> None:
        self._state = state
        self._config = config
        self._xid_policy = xid_policy
        self._loop = asyncio.get_running_loop()
        self._make = partial(
            GpuWatch,
            handles,
            update=self._update,
            blame=lambda watch: post(self._loop, lambda: self._separate(watch)),
            xid_policy=xid_policy,
            metrics=metrics,
            interval=config.health_interval,
        )
        # Copies: a watch of the earlier configuration may still be running.
        quiet = config.recovery_seconds
        self.health = {uuid: replace(known, quiet=quiet) for uuid, known in before.items()}
        self._record = XidRecord(Path(config.kubelet_socket).parent)
        self._lock = threading.Lock()  # of `health`: an event of a GPU and its probe may be of two threads
        self._watches: list[GpuWatch] = []
        self._checking: asyncio.Handle = self._loop.call_soon(self._check)

    def keep(self, devices: Iterable[Device]) -> None:
        """Watch exactly these GPUs, with their current MIG devices."""
        groups: dict[str, tuple[Device, ...]] = {}
        for device in devices:
            groups[device.gpu] = (*groups.get(device.gpu, ()), device)
        for watch in self._watches:
            watch.gpus = tuple(gpu for gpu in watch.gpus if gpu.devices == groups.get(gpu.uuid))
            if not watch.gpus:
                watch.stop()
        self._watches = [watch for watch in self._watches if watch.gpus and watch.is_alive()]
        known = {gpu.uuid for watch in self._watches for gpu in watch.gpus}
        new = tuple(WatchedGpu(group) for uuid, group in groups.items() if uuid not in known)
        for device in (device for gpu in new for device in gpu.devices if device.uuid not in self.health):
            self._begin(device)
        if new:
            self._start(self._make(new))
        self._checking.cancel()
        self._check()

    def _start(self, watch: GpuWatch) -> None:
        self._watches.append(watch)
        watch.start()

    def _separate(self, watch: GpuWatch) -> None:
        if watch in self._watches:
            self._watches.remove(watch)
            watch.stop()
            for gpu in watch.gpus:
                self._start(self._make((gpu,)))

    def _begin(self, device: Device) -> None:
        """A device's health, with the Xid that an earlier process of the plugin recorded."""
        lasting = self._record.get(device.uuid)
        if lasting is not None and not self._xid_policy.counts(lasting.xid):
            lasting = None
        self.health[device.uuid] = Health(self._config.recovery_seconds, lasting=lasting)
        if lasting is not None:
            self.set_unhealthy((device,), lasting.reason)

    def set_unhealthy(self, devices: Iterable[Device], why: Reason) -> None:
        """Mark devices that cannot be probed as Unhealthy, until their watch finds them healthy."""
        for device in devices:
            health = self.health[device.uuid]
            before = health.why
            # Each time: the quiet time counts from the end of the problem.
            health.record_probe(why, time.monotonic())
            if before is None:
                self._judge(device.uuid, why)

    def _check(self) -> None:
        """Mark a GPU Unhealthy that hangs in NVML; before that, the others get another watch, which has all their events.

        Called again when the next call could hang, at the earliest.
        """
        for watch in tuple(self._watches):
            if len(watch.gpus) > 1 and watch.late(min(PATIENCE, DEADLINE)):
                others, events = watch.leave()
                if others:
                    self._start(self._make(others, events=events))
                elif watch.late(DEADLINE):
                    self._separate(watch)  # the wait for all hangs
            if len(watch.gpus) == 1 and watch.late(DEADLINE):
                words = f"NVML does not answer within {DEADLINE:.0f} s about this GPU"
                self.set_unhealthy(watch.gpus[0].devices, Reason(NVML_SILENT, words))
        ends = [watch.since + (PATIENCE if len(watch.gpus) > 1 else DEADLINE) for watch in self._watches]
        now = self._loop.time()  # time.monotonic
        self._checking = self._loop.call_at(max(now + TICK, min(ends, default=now + DEADLINE)), self._check)

    @property
    def answering(self) -> bool:
        """True if NVML answers about any GPU."""
        return any(
            not gpu.failing for watch in self._watches if not watch.late(DEADLINE) for gpu in watch.gpus
        )

    def stop(self) -> None:
        """Ask all watches to end, without waiting."""
        self._checking.cancel()
        for watch in self._watches:
            watch.stop()

    async def end(self) -> bool:
        """End all watches; False if one hangs in NVML."""
        self.stop()
        until = time.monotonic() + self._config.health_interval + 1
        while any(watch.is_alive() for watch in self._watches):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.05)
        self._watches.clear()
        return True

    def _update(self, device: Device, change: Change) -> None:
        """Change a device's health; for any thread."""
        with self._lock:
            health = self.health[device.uuid]
            before = health.why
            change(health)
            self._record.set(device.uuid, health.lasting)
            if (why := health.why) != before:
                post(self._loop, lambda: self._judge(device.uuid, why))

    def _judge(self, uuid: str, why: Reason | None) -> None:
        if why is None:
            log.info("healthy again", extra={"device": uuid})
        else:
            log.error("unhealthy: %s", why, extra={"device": uuid})
        self._state.set_health(uuid, why)
