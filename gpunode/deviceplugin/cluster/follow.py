"""Keeps a caller's view of some objects current: a list, then a watch from there, and again when it breaks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote

from .apiserver import ApiError, Object

log = logging.getLogger(__name__)

PAGE = 500  # objects of a list
WATCH = 300  # seconds, after which a watch begins again where it was
RETRY = 1.0  # seconds before a list that failed is tried again


class Reads(Protocol):
    """The API server's objects. Its calls raise ApiError."""

    def get(self, path: str) -> Object: ...

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]: ...


@dataclass(frozen=True)
class Kind:
    """Objects at `path`, and who takes them. `name`: the taker's name for one; `known`: those it has."""

    path: str
    name: Callable[[Object], str]
    seen: Callable[[Object], None]
    gone: Callable[[str], None]
    known: Callable[[], set[str]]


class Follower(threading.Thread):
    """Follows one kind until `stop`. `listed` is set once all of it was taken."""

    def __init__(self, api: Reads, kind: Kind, stop: threading.Event) -> None:
        super().__init__(name=f"follower of {kind.path}", daemon=True)
        self.listed = threading.Event()
        self._api = api
        self._kind = kind
        self._mark = "&" if "?" in kind.path else "?"
        self._stop_following = stop

    def run(self) -> None:
        version = ""  # of the list, from which a watch goes on; "" before there is one
        while not self._stop_following.is_set():
            try:
                version = self._watch(version) if version else self._list()
            except ApiError as error:
                if self._stop_following.is_set():
                    break  # its caller has stopped it
                log.warning("%s cannot be followed: %s; listing again", self._kind.path, error)
                version = ""
                self._stop_following.wait(RETRY)

    def _list(self) -> str:
        """Take all objects, and those that are gone out; the version of the list."""
        before, names = self._kind.known(), set()
        version = following = ""
        while True:
            page = self._api.get(f"{self._kind.path}{self._mark}limit={PAGE}{following}")
            try:
                for one in page.get("items") or []:
                    self._kind.seen(one)
                    names.add(self._kind.name(one))
                version = str(page["metadata"]["resourceVersion"])
                token = page["metadata"].get("continue")
            except (LookupError, TypeError, AttributeError) as error:
                raise ApiError(0, f"a list that cannot be read: {error!r}") from None
            if not token:
                break
            following = f"&continue={quote(token, safe='')}"
        # Only what was known before: a pod can be bound while the list is read.
        for name in before - names:
            self._kind.gone(name)
        self.listed.set()
        return version

    def _watch(self, version: str) -> str:
        """Follow from this version until the watch ends; the version that it reached."""
        path = (
            f"{self._kind.path}{self._mark}resourceVersion={quote(version, safe='')}&allowWatchBookmarks=true"
        )
        for what, one in self._api.watch(path, WATCH):
            try:
                if what == "DELETED":
                    self._kind.gone(self._kind.name(one))
                elif what != "BOOKMARK":
                    self._kind.seen(one)
                version = str(one["metadata"]["resourceVersion"])
            except (LookupError, TypeError, AttributeError) as error:
                raise ApiError(0, f"an event that cannot be read: {error!r}") from None
            if self._stop_following.is_set():
                break
        return version
