"""Watches the GPUs: a thread for each waits for its Xid events and probes it, so that one that hangs does not affect others."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gpunode.contract.config import Config
from gpunode.contract.offer import Device
from gpunode.contract.status import Reason

from .gpus import NVML_SILENT, Handles, ask, explain, reason_of, unsupported
from .health import Health, Lasting, Verdict, XidPolicy, XidRecord, verdict, xid_name
from .metrics import Metrics
from .state import NodeState
from .threads import NvmlThread, post

log = logging.getLogger(__name__)

DEADLINE = 10.0  # seconds that one NVML call may take before the GPU counts as not answering
NO_INSTANCE = 0xFFFFFFFF  # NVML: the event concerns no particular MIG instance


class GpuWatch(NvmlThread):
    """Updates the `Health` of a GPU and its MIG devices, and calls `report(uuid, reason or None)` at every change.

    `report` is called in this thread.
    """

    def __init__(
        self,
        handles: Handles,
        devices: tuple[Device, ...],
        health: Mapping[str, Health],
        *,
        xid_policy: XidPolicy,
        record: XidRecord,
        report: Callable[[str, Reason | None], None],
        metrics: Metrics,
        interval: float = 10.0,
    ) -> None:
        super().__init__(name=f"watch {devices[0].gpu}", daemon=True)
        self.gpu = devices[0].gpu
        self.devices = devices
        self.failing = False  # NVML returned an error for this GPU at the last probe
        self._handles = handles
        self._nvml = handles.nvml
        self._health = health
        self._xid_policy = xid_policy
        self._record = record
        self._driver_decides = False  # by its recovery action: whether the GPU can be used after an Xid
        self._energy: int | None = None  # mJ since the driver has initialised the GPU, as it last said
        self._report = report
        self._metrics = metrics
        self._interval = interval
        self._halt = threading.Event()
        self.due = time.monotonic() + DEADLINE  # when the call that it makes, or its next one, is late

    def stuck(self) -> bool:
        """True if an NVML call for this GPU takes longer than its deadline."""
        return self.is_alive() and time.monotonic() > self.due

    def stop(self) -> None:
        """Ask the thread to end. It ends within one interval, unless it is stuck."""
        self._halt.set()

    def run(self) -> None:
        events: Any = None
        while not self._halt.is_set():
            self.due = time.monotonic() + DEADLINE
            probe = examine(self._handles, self.gpu)
            self.failing = probe.failed
            if not probe.failed:
                self._driver_decides = probe.driver_decides
                self._read_energy()
            now = time.monotonic()
            for device in self.devices:
                self._update(device, lambda health: self._record_probe(health, probe, now))  # noqa: B023 (called at once)
            if events is None and probe.problem is None and self._xid_policy.events:
                events = self._subscribe()
            self.due = time.monotonic() + self._interval + DEADLINE
            if events is None:
                self._halt.wait(self._interval)
            elif not self._await_event(events):
                events = None
        if events is not None:
            self._free(events)

    def _update(self, device: Device, change: Callable[[Health], None]) -> None:
        health = self._health[device.uuid]
        before = health.why
        change(health)
        self._record.set(device.uuid, health.lasting)
        if health.why != before:
            self._report(device.uuid, health.why)

    def _record_probe(self, health: Health, probe: Probe, now: float) -> None:
        """Record a probe; a lasting Xid ends where the driver decides, or with a reset of the GPU."""
        known = health.lasting.energy if health.lasting else None
        reset = known is not None and self._energy is not None and self._energy < known
        if reset or self._driver_decides:
            health.lasting = None
        health.record_probe(probe.problem, now)

    def _read_energy(self) -> None:
        """At each probe: a GPU that is lost with its Xid does not say any more."""
        with contextlib.suppress(self._nvml.NVMLError):
            self._energy = int(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handles.of(self.gpu)))

    def _subscribe(self) -> Any:
        """An NVML event set for this GPU; None, logged, if there are no such events."""
        nvml = self._nvml
        events = None
        try:
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(
                self._handles.of(self.gpu), nvml.nvmlEventTypeXidCriticalError, events
            )
        except nvml.NVMLError as error:
            if events is not None:
                self._free(events)
            if unsupported(nvml, error):
                log.warning(
                    "this GPU reports no Xid events; only probes check its health", extra={"gpu": self.gpu}
                )
                self._xid_policy = XidPolicy(ignore_all=True)
            else:
                log.warning("cannot subscribe to Xid events: %s", explain(error), extra={"gpu": self.gpu})
            return None
        return events

    def _free(self, events: Any) -> None:
        with contextlib.suppress(
            self._nvml.NVMLError
        ):  # as for a lost GPU; the event set is dropped either way
            self._nvml.nvmlEventSetFree(events)

    def _await_event(self, events: Any) -> bool:
        """Wait one interval for an event and handle it. False: the event set can no longer be used."""
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(events, int(self._interval * 1000))
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == nvml.NVML_ERROR_TIMEOUT:
                return True
            log.warning("waiting for Xid events failed: %s", explain(error), extra={"gpu": self.gpu})
            self._free(events)
            self._halt.wait(1)  # against a busy loop of immediate errors
            return False
        if self._halt.is_set():
            return True  # the GPU has a new watch, which gets the event too
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            self._xid(int(event.eventData), int(event.gpuInstanceId), int(event.computeInstanceId))
        return True

    def _xid(self, number: int, gpu_instance: int, compute_instance: int) -> None:
        fields = {"gpu": self.gpu, "xid": number}
        self._metrics.count("xids_total", gpu=self.gpu, xid=str(number))
        if not self._xid_policy.counts(number):
            log.info("Xid %d (%s) does not make the GPU Unhealthy", number, xid_name(number), extra=fields)
            return
        log.error("Xid %d (%s): %s", number, xid_name(number), verdict(number).value, extra=fields)
        concerned = [
            device
            for device in self.devices
            if device.instance is not None
            and device.instance[0] == gpu_instance
            and compute_instance in (device.instance[1], NO_INSTANCE)
        ]
        everyone = gpu_instance == NO_INSTANCE or not concerned
        affected = self.devices if everyone else tuple(concerned)
        needed, now = verdict(number), time.monotonic()
        energy = self._energy if needed is Verdict.RESET else None
        lasting = None if self._driver_decides or needed is Verdict.APPLICATION else Lasting(number, energy)
        for device in affected:
            self._update(device, lambda health: health.xid(number, now, lasting))


@dataclass(frozen=True, slots=True)
class Probe:
    """A GPU's problem or None; whether NVML itself failed; whether its driver reports recovery actions."""

    problem: Reason | None
    failed: bool = False
    driver_decides: bool = False


def examine(handles: Handles, gpu: str) -> Probe:
    """Probe one GPU."""
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
    """The watches of this machine's GPUs. `health` has the devices' health, by UUID."""

    def __init__(
        self,
        handles: Handles,
        state: NodeState,
        config: Config,
        xid_policy: XidPolicy,
        metrics: Metrics,
        before: Mapping[str, Health],
    ) -> None:
        self._handles = handles
        self._state = state
        self._config = config
        self._xid_policy = xid_policy
        self._metrics = metrics
        # Copies: a watch of the earlier configuration may still be running.
        quiet = config.recovery_seconds
        self.health = {uuid: replace(known, quiet=quiet) for uuid, known in before.items()}
        self._record = XidRecord(Path(config.kubelet_socket).parent)
        self._watches: dict[str, GpuWatch] = {}  # by the GPU's UUID

    def keep(self, devices: Iterable[Device]) -> None:
        """Watch exactly these GPUs, with their current MIG devices."""
        groups: dict[str, tuple[Device, ...]] = {}
        for device in devices:
            groups[device.gpu] = (*groups.get(device.gpu, ()), device)
        for gpu, watch in list(self._watches.items()):
            if not watch.is_alive() or watch.devices != groups.get(gpu):
                watch.stop()
                del self._watches[gpu]
        for gpu, group in groups.items():
            if gpu in self._watches:
                continue
            for device in group:
                if device.uuid not in self.health:
                    self._begin(device)
            watch = GpuWatch(
                self._handles,
                group,
                self.health,
                xid_policy=self._xid_policy,
                record=self._record,
                report=self._reporter(),
                metrics=self._metrics,
                interval=self._config.health_interval,
            )
            self._watches[gpu] = watch
            watch.start()

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

    def check_stuck(self) -> None:
        """Mark GPUs Unhealthy whose watch hangs in NVML."""
        for watch in self._watches.values():
            if watch.stuck():
                message = f"NVML does not answer within {DEADLINE:.0f} s about this GPU"
                self.set_unhealthy(watch.devices, Reason(NVML_SILENT, message))

    @property
    def due(self) -> float:
        """When the first watch can be stuck, at the earliest; monotonic."""
        return min((watch.due for watch in self._watches.values()), default=math.inf)

    @property
    def answering(self) -> bool:
        """True if NVML answers about any GPU."""
        return any(not watch.failing and not watch.stuck() for watch in self._watches.values())

    def stop(self) -> None:
        """Ask all watches to end, without waiting."""
        for watch in self._watches.values():
            watch.stop()

    async def end(self) -> bool:
        """End all watches; False if one hangs in NVML."""
        self.stop()
        until = time.monotonic() + self._config.health_interval + 1
        while any(watch.is_alive() for watch in self._watches.values()):
            if time.monotonic() > until:
                return False
            await asyncio.sleep(0.05)
        self._watches.clear()
        return True

    def _reporter(self) -> Callable[[str, Reason | None], None]:
        """A callback that passes a watch's findings from its thread to this event loop."""
        loop = asyncio.get_running_loop()
        return lambda uuid, why: post(loop, lambda: self._judge(uuid, why))

    def _judge(self, uuid: str, why: Reason | None) -> None:
        if why is None:
            log.info("healthy again", extra={"device": uuid})
        else:
            log.error("unhealthy: %s", why, extra={"device": uuid})
        self._state.set_health(uuid, why)
