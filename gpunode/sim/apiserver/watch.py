"""A watch: the changes of the objects that a query selects, as the API server streams them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping

from gpunode.sim.apiserver.errors import status_error
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.selectors import Test, selected
from gpunode.sim.apiserver.store import KINDS, Change, Object, TooOld

BOOKMARK = 60.0  # seconds between two bookmarks; one more comes shortly before the end
LONGEST = 3600.0
INITIAL = "k8s.io/initial-events-end"  # the bookmark after the objects that existed when the watch began


def events(of: Resources, query: Mapping[str, str]) -> Iterator[Object]:
    """Watch events for `timeoutSeconds`. Raises StatusError at the call, not at the first event."""
    return _told(of, query, selected(of.kind, query))


def _told(of: Resources, query: Mapping[str, str], wanted: Test) -> Iterator[Object]:
    store = of.store
    end = time.monotonic() + float(query.get("timeoutSeconds") or LONGEST)
    mark = min(time.monotonic() + BOOKMARK, end - 2) if query.get("allowWatchBookmarks") == "true" else end
    version = int(query.get("resourceVersion") or 0)
    if not version or query.get("sendInitialEvents") == "true":
        with store.changed:
            found, version = store.all(of.kind, of.namespace), store.version
        yield from ({"type": "ADDED", "object": one} for one in found if wanted(one))
    if query.get("sendInitialEvents") == "true":
        yield _bookmark(of.kind, version, **{INITIAL: "true"})
    while (left := end - time.monotonic()) > 0:
        try:
            changes = store.since(version)
        except TooOld:
            message = f"too old resource version: {version} ({store.version})"
            yield {"type": "ERROR", "object": status_error(410, "Expired", message).status}
            return
        for change in changes:
            version = change.version
            item = change.item
            if item["kind"] == of.kind and of.namespace in {"", item["metadata"].get("namespace")}:
                yield from _event(change, wanted)
        if time.monotonic() >= mark and end - time.monotonic() > 0:
            mark = min(time.monotonic() + BOOKMARK, end - 2) if mark < end - 2 else end
            yield _bookmark(of.kind, version)
        with store.changed:
            if store.version == version:
                store.changed.wait(min(left, max(0.0, mark - time.monotonic())))


def _bookmark(kind: str, version: int, **notes: str) -> Object:
    meta: Object = {"resourceVersion": str(version), "creationTimestamp": None}
    meta |= {"annotations": notes} if notes else {}
    return {"type": "BOOKMARK", "object": {"kind": kind, "apiVersion": KINDS[kind].api, "metadata": meta}}


def _event(change: Change, wanted: Test) -> Iterator[Object]:
    """The change as this watch sees it: ADDED once the object is selected, DELETED once it no longer is."""
    was = change.before is not None and wanted(change.before)
    is_ = change.type != "DELETED" and wanted(change.item)
    if was or is_:
        kind = "MODIFIED" if was and is_ else "ADDED" if is_ else "DELETED"
        yield {"type": kind, "object": change.item}
