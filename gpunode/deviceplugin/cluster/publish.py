"""What the plugin publishes: its status in the log, and, where the configuration wants them, events and an annotation."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from gpunode.contract.config import Config
from gpunode.contract.promises import MEMORY_ANNOTATION
from gpunode.contract.status import ANNOTATION, MARK, Reason, Status, Unavailable, dumps

from ..offer import sizes
from ..offer.state import STARTING, NodeState
from . import document
from .annotation import PendingAnnotation
from .apiserver import ApiServer, InCluster
from .changes import Snapshot, events_between, snapshot
from .events import NodeEvent, PendingEvents
from .writer import Writer

LAST_WRITES = 2.0  # seconds for each writer at the end; a pod's grace is ten
# A logger with a level of its own: the status is in the log at every log level.
log = logging.getLogger(f"{__package__}.status")
log.setLevel(logging.INFO)


class Publisher:
    """Publishes every change of the node's state. Lives longer than the state of one configuration.

    `status`: in the node's annotation, too.
    """

    def __init__(
        self, events: Writer | None = None, annotation: Writer | None = None, *, status: bool = True
    ) -> None:
        self._events = events
        self._annotation = annotation
        self._status = status
        self._before = Snapshot()
        self._gone: Mapping[str, Unavailable] = {}
        self._refused: Reason | None = None
        self._since = _now()
        self._published: Status | None = None
        for writer in (events, annotation):
            if writer is not None:
                writer.start()

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str]) -> Publisher:
        """The publisher for a configuration; by default without events and annotation."""
        api: ApiServer = InCluster(environ, Path(config.service_account_directory))
        events = Writer(api, PendingEvents(config.node_name), "events") if config.node_events else None
        note = PendingAnnotation(config.node_name)
        wanted = config.node_annotation or config.follow_promises
        writer = Writer(api, note, "the node's annotation") if wanted else None
        return cls(events, writer, status=config.node_annotation)

    def publish_event(self, event: NodeEvent) -> None:
        """Publish an event."""
        if self._events is not None:
            self._events.put(event)

    def begin(self) -> None:
        """Begin to publish for another configuration."""
        self._since, self._refused = _now(), None

    def config_refused(self, why: Exception) -> None:
        """Publish that a new configuration was refused."""
        self.publish_event(
            NodeEvent("ConfigRefused", f"The device plugin's configuration stays as it was: {why}")
        )
        self._refuse(Reason("config-refused", str(why)))

    def config_accepted(self) -> None:
        """Publish that the configuration is valid again."""
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
            self._gone = document.gone(self._gone, self._before.devices, state)
            self._before = now
            if config.follow_promises and self._annotation is not None and state.offers:
                memory = sizes.document(state, config.memory.resource) if config.memory else None
                self._annotation.put((MEMORY_ANNOTATION, memory))
        status = document.of(state, config, registered, not_ready, tuple(self._gone.values()))
        status = replace(status, since=self._since).refusing(self._refused)
        if again or status != self._published:
            self._put(status, annotate=discovered)

    def close(self) -> None:
        """Remove the status and end the writers. The GPUs' sizes stay, as pods' promises do."""
        if self._annotation is not None and self._status:
            self._annotation.put((ANNOTATION, None))
        for writer in (self._events, self._annotation):
            if writer is not None:
                writer.close(LAST_WRITES)

    def _refuse(self, why: Reason | None) -> None:
        self._refused = why
        if self._published is not None:
            self._put(self._published.refusing(why), annotate=True)

    def _put(self, status: Status, *, annotate: bool) -> None:
        self._published = status
        text = dumps(status)
        log.info("%s %s", MARK, text)
        if annotate and self._status and self._annotation is not None:
            self._annotation.put((ANNOTATION, text))


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
