"""What the plugin publishes: its status in the log, and, where the configuration wants them, events and an annotation."""

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from gpunode.contract.condition import condition_of
from gpunode.contract.config import Config
from gpunode.contract.offer import Device
from gpunode.contract.promises import ELSEWHERE, MEMORY_ANNOTATION, VERSION, elsewhere_fields
from gpunode.contract.status import (
    ANNOTATION,
    ENFORCED,
    MARK,
    Configuration,
    Reason,
    Reserved,
    Resource,
    Status,
    Unavailable,
    dumps,
)
from gpunode.contract.times import utc

from ..state import STARTING, NodeState
from .events import NodeEvent, PendingEvents, Snapshot, events_between, snapshot
from .writer import PendingAnnotation, PendingCondition, Writer


def status_of(
    state: NodeState,
    config: Config,
    registered: Mapping[str, bool],
    not_ready: Reason | None,
    gone: tuple[Unavailable, ...] = (),
) -> Status:
    """The status of `state`; `gone`: GPUs that NVML listed earlier."""
    listed = {device.uuid for device in state.devices}
    return Status(
        since="",
        configuration=_configuration(config),
        driver=state.driver,
        resources={
            name: Resource(len(units), registered.get(name, False)) for name, units in state.offers.items()
        },
        problem=state.problem,
        not_ready=not_ready,
        lost=(*_unavailable(state), *gone),
        reserved=tuple(
            Reserved(
                reservation.resource,
                reservation.device,
                len(reservation.ids),
                reservation.pods,
                reservation.why,
            )
            for reservation in state.reservations
            if reservation.confirmed and reservation.device in listed
        ),
        memory_limits={
            uuid: Reason(ENFORCED, "") if why is None else Reason("not-enforced", why)
            for uuid, why in state.memory_limits.items()
            if uuid in listed
        },
    )


def gone_gpus(
    before: Mapping[str, Unavailable], devices: Mapping[str, Device], state: NodeState
) -> Mapping[str, Unavailable]:
    """The GPUs of `before` and `devices` that NVML no longer lists, by UUID."""
    if state.problem is not None:
        return before
    message = "NVML no longer lists it; see the kernel log, reboot the host"
    missing = {
        uuid: Unavailable(uuid, device.index, "gone", message, listed=False)
        for uuid, device in devices.items()
        if device.profile is None
    }
    there = {device.uuid for device in state.devices}
    return {uuid: lost for uuid, lost in {**before, **missing}.items() if uuid not in there}


def _unavailable(state: NodeState) -> Iterator[Unavailable]:
    offered = {unit.device.uuid for units in state.offers.values() for unit in units}
    for device in state.devices:
        if device.uuid in offered and (why := state.unhealthy.get(device.uuid)):
            yield Unavailable(device.uuid, device.index, why.code, why.words)
        if why := state.not_offered.get(device.uuid):
            yield Unavailable(device.uuid, device.index, why.code, why.words, listed=False)
    for index, why in state.unidentified.items():
        yield Unavailable("", index, why.code, why.words, listed=False)


def _configuration(config: Config) -> Configuration:
    replicas = "mps" if config.mps else "time-slicing"
    ways = [*(["memory"] if config.memory else []), *([replicas] if config.shares else [])]
    return Configuration(
        mig_strategy=config.mig_strategy,
        sharing=", ".join(ways) or "none",
        device_list_strategy=tuple(config.device_list_strategy),
        file=config.config_file or "",
    )


def memory_document(state: NodeState, resource: str) -> str | None:
    """The annotation's text; None while no GPU is offered as this resource.

    `reserved`: units that pods use by an earlier configuration. `lost`: the GPU is Unhealthy. `elsewhere`: containers whose
    GPUs are others than noted.
    """
    units = state.offers.get(resource, ())
    if not units:
        return None
    count = Counter(unit.device.uuid for unit in units)
    reserved = Counter(unit.device.uuid for unit in units if unit.id in state.reserved.get(resource, {}))
    gpus = [
        {
            "index": device.index,
            "uuid": device.uuid,
            "units": count[device.uuid],
            "reserved": reserved[device.uuid],
            "lost": device.uuid in state.unhealthy,
        }
        for device in dict.fromkeys(unit.device for unit in units)
    ]
    document = {"version": VERSION, "mib": units[0].mib, "gpus": gpus}
    if state.elsewhere:
        document[ELSEWHERE] = elsewhere_fields(state.elsewhere)
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


LAST_WRITES = 2.0  # seconds for each writer at the end; a pod's grace is ten
# A logger with a level of its own: the status is in the log at every log level.
log = logging.getLogger(f"{__package__}.status")
log.setLevel(logging.INFO)


class Publisher:
    """Publishes every change of the node's state. Lives longer than the state of one configuration.

    `status`: in the node's annotation, too. `condition`: writes the node's.
    """

    def __init__(
        self,
        events: Writer | None = None,
        annotation: Writer | None = None,
        condition: Writer | None = None,
        *,
        status: bool = True,
    ) -> None:
        self._events = events
        self._annotation = annotation
        self._condition = condition
        self._status = status
        self._before = Snapshot()
        self._gone: Mapping[str, Unavailable] = {}
        self._refused: Reason | None = None
        self._since = utc()
        self._published: Status | None = None
        for writer in (events, annotation, condition):
            if writer is not None:
                writer.start()

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str]) -> "Publisher":
        """The publisher for a configuration; by default without events and annotation."""
        annotates = config.node_annotation or config.follow_promises
        if not (config.node_events or annotates or config.node_condition):
            return cls()
        from .incluster import InCluster

        api = InCluster(environ, Path(config.service_account_directory))
        events = Writer(api, PendingEvents(config.node_name), "events") if config.node_events else None
        note = PendingAnnotation(config.node_name)
        writer = Writer(api, note, "the node's annotation") if annotates else None
        own = PendingCondition(config.node_name)
        condition = Writer(api, own, "the node's condition", own.read) if config.node_condition else None
        return cls(events, writer, condition, status=config.node_annotation)

    def publish_event(self, event: NodeEvent) -> None:
        if self._events is not None:
            self._events.put(event)

    def begin(self) -> None:
        self._since = utc()

    def config_refused(self, why: Exception) -> None:
        self.publish_event(
            NodeEvent("ConfigRefused", f"The device plugin's configuration is unchanged: {why}")
        )
        self._refuse(Reason("config-refused", str(why)))

    def config_accepted(self) -> None:
        self.publish_event(
            NodeEvent("ConfigTaken", "The device plugin's configuration can be used again", "Normal")
        )
        self._refuse(None)

    def publish(
        self,
        state: NodeState,
        config: Config,
        registered: Mapping[str, bool],
        not_ready: Reason | None,
        *,
        again: bool = False,
    ) -> None:
        """Publish the state if it has changed, or `again`.

        `registered`: by resource, whether the kubelet has it and its list; `not_ready`: why pods can get nothing.
        """
        discovered = state.problem != STARTING
        if discovered:
            now = snapshot(state)
            for event in events_between(self._before, now):
                self.publish_event(event)
            self._gone = gone_gpus(self._gone, self._before.devices, state)
            self._before = now
            if config.follow_promises and self._annotation is not None and state.offers:
                memory = memory_document(state, config.memory.resource) if config.memory else None
                self._annotation.put((MEMORY_ANNOTATION, memory))
        status = status_of(state, config, registered, not_ready, tuple(self._gone.values()))
        status = replace(status, since=self._since).with_refusal(self._refused)
        if again or status != self._published:
            self._put(status, annotate=discovered)

    def close(self) -> None:
        """Remove status and condition, and end the writers. The GPUs' sizes stay, as pods' promises do."""
        if self._annotation is not None and self._status:
            self._annotation.put((ANNOTATION, None))
        if self._condition is not None:
            self._condition.put(None)
        for writer in (self._events, self._annotation, self._condition):
            if writer is not None:
                writer.close(LAST_WRITES)

    def _refuse(self, why: Reason | None) -> None:
        self._refused = why
        if self._published is not None:
            self._put(self._published.with_refusal(why), annotate=True)

    def _put(self, status: Status, *, annotate: bool) -> None:
        self._published = status
        text = dumps(status)
        log.info("%s %s", MARK, text)
        if annotate and self._status and self._annotation is not None:
            self._annotation.put((ANNOTATION, text))
        if self._condition is not None:
            self._condition.put(condition_of(status))
