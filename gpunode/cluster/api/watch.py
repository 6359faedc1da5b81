"""Waits for the cluster: yields the matching objects after every change, until a deadline."""

import time
from collections.abc import Callable, Iterator, Mapping
from typing import TypeVar

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.errors import ApiConnectionLost, HttpError, Problem

T = TypeVar("T")
# Gets a sentence on what is waited for; it may be repeated.
OnProgress = Callable[[str], None]

BEAT = 5  # seconds: what is seen is given again at least this often, for reasons that no watched object shows
PAUSE = 1.0  # seconds before an API server that is away is asked again
SEARCH = 2.0  # seconds between two searches for reasons
USUAL = 15.0  # seconds that things take where all is well: reasons are looked for only after them
AGAIN = {410, 429, 500, 502, 503, 504}  # an expired watch, or an API server that restarts


def follow(
    api: Api,
    kind: str,
    namespace: str | None = None,
    *,
    seconds: float,
    labels: str = "",
    fields: str = "",
    notify: OnProgress = lambda _: None,
) -> Iterator[dict[str, Object]]:
    """The matching objects by name: at once, after each change, and every BEAT, until `seconds` have passed.

    Outlives restarts of the API server, but raises the errors of the first request.
    """
    for seen, _ in changes(
        api, kind, namespace, seconds=seconds, labels=labels, fields=fields, notify=notify
    ):
        yield dict(seen)


def changes(
    api: Api,
    kind: str,
    namespace: str | None = None,
    *,
    seconds: float,
    labels: str = "",
    fields: str = "",
    notify: OnProgress = lambda _: None,
) -> Iterator[tuple[Mapping[str, Object], str | None]]:
    """`follow` without copies, with the name of the object that changed; None: any may have changed.

    Objects of all namespaces go by `namespace/name`.
    """

    def key(item: Object) -> str:
        meta = item["metadata"]
        if namespace is None and meta.get("namespace"):
            return f"{meta['namespace']}/{meta['name']}"
        return str(meta["name"])

    end = time.monotonic() + seconds
    items, version = api.find(kind, namespace, labels=labels, fields=fields)
    seen = {key(item): item for item in items}
    yield seen, None
    while (left := end - time.monotonic()) > 0:
        try:
            if not version:
                items, version = api.find(kind, namespace, labels=labels, fields=fields)
                seen = {key(item): item for item in items}
            beat = max(1, min(BEAT, int(left)))
            for change, item in api.watch(
                kind, namespace, version=version, seconds=beat, labels=labels, fields=fields
            ):
                version = item["metadata"]["resourceVersion"]
                if change == "BOOKMARK":
                    continue
                if change == "DELETED":
                    seen.pop(key(item), None)
                else:
                    seen[key(item)] = item
                yield seen, key(item)
                if time.monotonic() >= end:
                    return
        except (ApiConnectionLost, HttpError) as error:
            if isinstance(error, HttpError) and error.status not in AGAIN:
                raise
            version = ""
            notify(error.message)
            time.sleep(min(PAUSE, max(0.0, end - time.monotonic())))
            continue
        yield seen, None


def wait_for_api(api: Api, *, seconds: float, notify: OnProgress) -> None:
    """Wait until the API server answers. Raises ClusterError if it does not within `seconds`."""
    end = time.monotonic() + seconds
    while True:
        try:
            api.version()
            return
        except (ApiConnectionLost, HttpError) as error:
            if time.monotonic() >= end or (isinstance(error, HttpError) and error.status not in AGAIN):
                raise
            notify(error.message)
            time.sleep(PAUSE)


def repeat(api: Api, act: Callable[[], T], *, seconds: float, notify: OnProgress) -> T:
    """What `act` returns, which can be repeated: the API server may go away once meanwhile, for so many seconds."""
    try:
        return act()
    except ApiConnectionLost:
        wait_for_api(api, seconds=seconds, notify=notify)
        return act()


class Patience:
    """Reports the progress of a wait: shortly at first, later with the reason, which costs a request."""

    def __init__(self, notify: OnProgress) -> None:
        self._notify = notify
        self._begun, self._looked = time.monotonic(), 0.0

    def notify(self, so_far: str, why: Callable[[], Problem]) -> Problem | None:
        """Report the progress, not too often. Returns the reason if it was asked for."""
        now, reason = time.monotonic(), None
        if now - self._begun < USUAL:
            self._notify(so_far)
        elif now - self._looked >= SEARCH:
            self._looked, reason = now, why()
            self._notify(f"{so_far}; {reason}")
        return reason
