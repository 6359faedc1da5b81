"""What the plugin publishes: its status in the log, and, where the configuration wants them, events and an annotation."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from ..offer.board import NOT_LOOKED, Board
from ..settings.config import Config
from ..status import MARK, Lost, Reason, Status, dumps
from . import document
from .apiserver import ApiServer, InCluster
from .events import Event, Events
from .view import Annotation, View, news, view
from .writer import Writer

LAST_WRITES = 2.0  # seconds for each writer at the end; a pod's grace is ten
# A logger with a level of its own: the status is in the log at every log level.
log = logging.getLogger(f"{__package__}.status")
log.setLevel(logging.INFO)


class Publisher:
    """Publishes every change of the board. Outlives the boards of one configuration and the next."""

    def __init__(self, events: Writer | None = None, annotation: Writer | None = None) -> None:
        self._events = events
        self._annotation = annotation
        self._before = View()
        self._gone: Mapping[str, Lost] = {}
        self._refused: Reason | None = None
        self._since = _now()
        self._published: Status | None = None
        for writer in (events, annotation):
            if writer is not None:
                writer.start()

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str]) -> Publisher:
        """The publisher that the configuration asks for: neither events nor annotation by default."""
        api: ApiServer = InCluster(environ, Path(config.service_account_directory))
        events = Writer(api, Events(config.node_name), "events") if config.node_events else None
        note = Annotation(config.node_name)
        return cls(events, Writer(api, note, "the node's annotation") if config.node_annotation else None)

    def say(self, event: Event) -> None:
        """Publish an event."""
        if self._events is not None:
            self._events.put(event)

    def begin(self) -> None:
        """From now on another configuration is in force."""
        self._since, self._refused = _now(), None

    def refused(self, why: Exception) -> None:
        """A new configuration cannot be used."""
        self.say(Event("ConfigRefused", f"The device plugin's configuration stays as it was: {why}"))
        self._refuse(Reason("config-refused", str(why)))

    def taken(self) -> None:
        """After that, one can be used again."""
        self.say(Event("ConfigTaken", "The device plugin's configuration can be used again", "Normal"))
        self._refuse(None)

    def publish(
        self,
        board: Board,
        config: Config,
        registered: Mapping[str, bool],
        not_ready: Reason | None,
        *,
        again: bool = False,
    ) -> None:
        """The board as it is now, where that is news, or `again`.

        `registered`: by resource, whether the kubelet has it and its list; `not_ready`: why pods can be given nothing.
        """
        looked = board.missing != NOT_LOOKED
        if looked:
            now = view(board)
            for event in news(self._before, now):
                self.say(event)
            self._gone = document.gone(self._gone, self._before.devices, board)
            self._before = now
        status = document.of(board, config, registered, not_ready, tuple(self._gone.values()))
        status = replace(status, since=self._since).refusing(self._refused)
        if again or status != self._published:
            self._put(status, annotate=looked)

    def close(self) -> None:
        """The plugin ends: its annotation is removed."""
        if self._annotation is not None:
            self._annotation.put(None)
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
        if annotate and self._annotation is not None:
            self._annotation.put(text)


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
