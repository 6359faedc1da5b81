"""Looks after one GPU: waits for its Xid events and asks it now and then how it is.

One thread a GPU: what hangs or fails for one GPU is no other's trouble.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from ..gpus.devices import Device, explain, reason, unsupported
from ..metrics import Metrics
from ..status import Reason
from . import Attention, Health
from .xids import name, verdict

log = logging.getLogger(__name__)

DEADLINE = 10.0  # seconds that one NVML call may take before the GPU counts as not answering
NO_INSTANCE = 0xFFFFFFFF  # NVML's word for "the event is of no MIG instance in particular"


class Watch(threading.Thread):
    """Keeps the `Health` of one GPU's devices and reports every change: `report(uuid, why or None)`.

    `report` is called in this thread. A device is a GPU, or each MIG device of a GPU.
    """

    def __init__(
        self,
        nvml: Any,
        devices: tuple[Device, ...],
        health: Mapping[str, Health],
        *,
        attention: Attention,
        report: Callable[[str, Reason | None], None],
        metrics: Metrics,
        interval: float = 10.0,
    ) -> None:
        super().__init__(name=f"watch {devices[0].gpu}", daemon=True)
        self.gpu = devices[0].gpu
        self.devices = devices
        self.failing = False  # NVML gave an error about this GPU when it was last asked
        self._nvml = nvml
        self._health = health
        self._attention = attention
        self._report = report
        self._metrics = metrics
        self._interval = interval
        self._halt = threading.Event()
        self._due = time.monotonic() + DEADLINE

    def stuck(self) -> bool:
        """Whether NVML has not come back from a call about this GPU for longer than it may take."""
        return self.is_alive() and time.monotonic() > self._due

    def stop(self) -> None:
        """Ask the thread to end; it does within one interval, unless it is stuck."""
        self._halt.set()

    def run(self) -> None:
        events: Any = None
        while not self._halt.is_set():
            self._due = time.monotonic() + DEADLINE
            problem, self.failing = examine(self._nvml, self.gpu)
            now = time.monotonic()
            for device in self.devices:
                self._update(device, lambda health: health.probed(problem, now))  # noqa: B023 (called at once)
            if events is None and problem is None and self._attention.events:
                events = self._subscribe()
            self._due = time.monotonic() + self._interval + DEADLINE
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
        if health.why != before:
            self._report(device.uuid, health.why)

    def _subscribe(self) -> Any:
        """An NVML event set for this GPU; None, with a word in the log, where it has no such events."""
        nvml = self._nvml
        events = None
        try:
            handle = nvml.nvmlDeviceGetHandleByUUID(self.gpu)
            events = nvml.nvmlEventSetCreate()
            nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, events)
        except nvml.NVMLError as error:
            if events is not None:
                self._free(events)
            if unsupported(nvml, error):
                log.warning(
                    "this GPU reports no Xid events; its health rests on probes", extra={"gpu": self.gpu}
                )
                self._attention = Attention(ignore_all=True)
            else:
                log.warning("cannot subscribe to Xid events: %s", explain(error), extra={"gpu": self.gpu})
            return None
        return events

    def _free(self, events: Any) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # as of a lost GPU: it is of no use either way
            self._nvml.nvmlEventSetFree(events)

    def _await_event(self, events: Any) -> bool:
        """Wait one interval for an event and act on it. False: the event set is of no use any more."""
        nvml = self._nvml
        try:
            event = nvml.nvmlEventSetWait_v2(events, int(self._interval * 1000))
        except nvml.NVMLError as error:
            if getattr(error, "value", None) == nvml.NVML_ERROR_TIMEOUT:
                return True
            log.warning("waiting for Xid events failed: %s", explain(error), extra={"gpu": self.gpu})
            self._free(events)
            self._halt.wait(1)  # an error that comes at once must not make a busy loop
            return False
        if self._halt.is_set():
            return True  # the GPU has another watch by now, which hears it too
        if event.eventType == nvml.nvmlEventTypeXidCriticalError:
            self._xid(int(event.eventData), int(event.gpuInstanceId), int(event.computeInstanceId))
        return True

    def _xid(self, number: int, gpu_instance: int, compute_instance: int) -> None:
        fields = {"gpu": self.gpu, "xid": number}
        self._metrics.count("xids_total", gpu=self.gpu, xid=str(number))
        if not self._attention.heeds(number):
            log.info("Xid %d (%s) is not held against the GPU", number, name(number), extra=fields)
            return
        log.error("Xid %d (%s): %s", number, name(number), verdict(number).value, extra=fields)
        concerned = [
            device
            for device in self.devices
            if device.instance is not None
            and device.instance[0] == gpu_instance
            and compute_instance in (device.instance[1], NO_INSTANCE)
        ]
        everyone = gpu_instance == NO_INSTANCE or not concerned
        now = time.monotonic()
        for device in self.devices if everyone else concerned:
            self._update(device, lambda health: health.xid(number, now))


def examine(nvml: Any, gpu: str) -> tuple[Reason | None, bool]:
    """Ask one GPU how it is: what is wrong with it, or None; and whether NVML itself failed."""
    try:
        handle = nvml.nvmlDeviceGetHandleByUUID(gpu)
        _ask(nvml, nvml.nvmlDeviceGetMemoryInfo, handle)
        action = _recovery_action(nvml, handle)
        if action:
            return Reason("recovery-action", f"the driver asks for a recovery action: {action}"), False
        rows = _ask(nvml, nvml.nvmlDeviceGetRemappedRows, handle)
        if rows is not None and rows[3]:
            words = "memory row remapping has failed: the GPU has to be replaced"
            return Reason("row-remap-failed", words), False
    except nvml.NVMLError as error:
        return reason(error), True
    return None, False


def _ask(nvml: Any, question: Callable[..., Any], *arguments: Any) -> Any:
    """The answer, or None where this GPU or driver knows no such thing."""
    try:
        return question(*arguments)
    except nvml.NVMLError as error:
        if unsupported(nvml, error):
            return None
        raise


def _recovery_action(nvml: Any, handle: Any) -> str | None:
    """What the driver itself says has to be done before the GPU can be used (drivers since about R560)."""
    fields = _ask(nvml, nvml.nvmlDeviceGetFieldValues, handle, [nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])
    if not fields or fields[0].nvmlReturn != nvml.NVML_SUCCESS:
        return None
    return _ACTIONS.get(int(fields[0].value.uiVal))


_ACTIONS = {  # nvmlDeviceGpuRecoveryAction_t; the ones that only concern peers leave the GPU usable
    1: "reset the GPU (nvidia-smi --gpu-reset)",
    2: "reboot the node",
    4: "drain the node and reset the GPU",
    6: "reset the GPU's PCIe bus",
    7: "reboot the system",
}
