"""What the plugin says to the cluster, as far as its configuration wants that: events about its node, an annotation."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from ..offer.board import NOT_LOOKED, Board
from ..settings.config import Config
from .apiserver import ApiServer, InCluster
from .events import Event, Events
from .view import Annotation, View, news, summary, view
from .writer import Writer

LAST_WORDS = 2.0  # seconds for each writer at the end; a pod's grace is ten


class Voice:
    """Says what is news on the board. Outlives the boards of one configuration and the next."""

    def __init__(self, events: Writer | None = None, annotation: Writer | None = None) -> None:
        self._events = events
        self._annotation = annotation
        self._before = View()
        for writer in (events, annotation):
            if writer is not None:
                writer.start()

    @classmethod
    def of(cls, config: Config, environ: Mapping[str, str]) -> Voice:
        """The voice that the configuration asks for: none by default."""
        api: ApiServer = InCluster(environ, Path(config.service_account_directory))
        events = Writer(api, Events(config.node_name), "events") if config.node_events else None
        note = Annotation(config.node_name)
        return cls(events, Writer(api, note, "the node's annotation") if config.node_annotation else None)

    def say(self, event: Event) -> None:
        """This happened."""
        if self._events is not None:
            self._events.put(event)

    def refused(self, why: Exception) -> None:
        """A new configuration cannot be used."""
        self.say(Event("ConfigRefused", f"The device plugin's configuration stays as it was: {why}"))

    def taken(self) -> None:
        """After that, one can be used again."""
        self.say(Event("ConfigTaken", "The device plugin's configuration can be used again", "Normal"))

    def look(self, board: Board, config: Config) -> None:
        """Tell what is new since the last look."""
        if board.missing == NOT_LOOKED:
            return
        now = view(board)
        for event in news(self._before, now):
            self.say(event)
        self._before = now
        if self._annotation is not None:
            self._annotation.put(summary(now, config))

    def close(self) -> None:
        """The plugin ends: its view of the node is nobody's any more."""
        if self._annotation is not None:
            self._annotation.put(None)
        for writer in (self._events, self._annotation):
            if writer is not None:
                writer.close(LAST_WORDS)
