"""A minimal client of the cluster's API server for a pod: service account, TLS, plain objects; and threads that follow some.

Of the standard library rather than a client library, which keeps the image small. Its calls block: use separate threads.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias
from urllib.parse import quote

from gpunode.contract.config import LABEL

Object: TypeAlias = dict[str, Any]


class ApiError(Exception):
    """The API server refused or did not answer. `code` is the HTTP status; 0 for no answer."""

    def __init__(self, code: int, why: str) -> None:
        super().__init__(why)
        self.code = code


class ApiServer(Protocol):
    """The calls to the API server. They raise ApiError."""

    def get(self, path: str) -> Object:
        """The object at `path`, or a list of objects."""

    def send(self, method: str, path: str, body: Object | None = None) -> Object:
        """Create (POST) an object in the collection at `path`, or change (PATCH, a merge patch; of a `/status` a strategic
        one) the object at `path`. Returns the object; {} if the answer broke after its status."""

    def watch(self, path: str, seconds: int) -> Iterator[tuple[str, Object]]:
        """Watch the objects that `path` selects: (ADDED | MODIFIED | DELETED …, object), first the existing ones."""


log = logging.getLogger(__name__)

PAGE = 500  # objects of a list
WATCH = 300  # seconds, after which a watch begins again where it was
RETRY = 1.0  # seconds before a list that failed is tried again


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

    def __init__(self, api: ApiServer, kind: Kind, stop: threading.Event) -> None:
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
                for item in page.get("items") or []:
                    self._kind.seen(item)
                    names.add(self._kind.name(item))
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
        for what, item in self._api.watch(path, WATCH):
            try:
                if what == "DELETED":
                    self._kind.gone(self._kind.name(item))
                elif what != "BOOKMARK":
                    self._kind.seen(item)
                version = str(item["metadata"]["resourceVersion"])
            except (LookupError, TypeError, AttributeError) as error:
                raise ApiError(0, f"an event that cannot be read: {error!r}") from None
            if self._stop_following.is_set():
                break
        return version


WATCH = 300  # seconds that one watch lasts
FIRST, LONGEST = 1.0, 30.0  # seconds between two tries: doubled from the one up to the other


class NodeLabel(threading.Thread):
    """Watches `node` for the label `key`. It needs only the right to watch nodes."""

    def __init__(self, api: ApiServer, node: str, key: str = LABEL) -> None:
        super().__init__(name=f"watch of node {node}", daemon=True)
        self.key = key
        self.value = ""  # "": the node has no such label, or it is unknown
        self._api = api
        self._path = f"/api/v1/nodes?fieldSelector=metadata.name%3D{quote(node, safe='')}"
        self._known = threading.Event()
        self._changed: Callable[[], None] = lambda: None

    def wait(self, seconds: float | None = None) -> bool:
        """True once the API server has sent the label or refused to; False after `seconds`."""
        return self._known.wait(seconds)

    def listen(self, changed: Callable[[], None]) -> None:
        """Call `changed`, in this thread, after each change of `value`; replaces an earlier one."""
        self._changed = changed

    def run(self) -> None:
        failed = 0  # tries in a row
        while True:
            began = time.monotonic()
            try:
                for kind, node in self._api.watch(self._path, WATCH):
                    if failed:
                        log.info("the node's labels are known again")
                    failed = 0
                    if kind in ("ADDED", "MODIFIED", "DELETED"):
                        labels = node["metadata"].get("labels") or {} if kind != "DELETED" else {}
                        self._take(str(labels.get(self.key, "")))
                if time.monotonic() - began >= FIRST:
                    continue  # it timed out: the next one begins with the current state
                why = "the watch ends at once"
            except ApiError as error:
                why = str(error)
                if error.code in (401, 403):
                    self._known.set()  # waiting does not help
            if not failed:
                log.warning(
                    "the node's label %s is not known: %s; trying again, at last every %.0f s",
                    self.key,
                    why,
                    LONGEST,
                )
            time.sleep(min(FIRST * 2 ** min(failed, 10), LONGEST))
            failed += 1

    def _take(self, value: str) -> None:
        before, self.value = self.value, value
        self._known.set()
        if value != before:
            self._changed()
