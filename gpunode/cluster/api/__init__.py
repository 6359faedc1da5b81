"""The Kubernetes API over HTTP: plain objects in, plain objects out, every failure a ClusterError.

A request waits `READ` seconds in silence, and `connection.WHOLE` for a whole answer. Nothing is tried again but one of
429 (the API server asks for it) and what `connection.py` repeats. Long waits are in `watch.py`.
"""

import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

from gpunode.cluster.api import notes, refusal
from gpunode.cluster.api.connection import MANAGER, Connection, side_by_side
from gpunode.cluster.api.kinds import KINDS, OLDER, Kind, Object, Served, discover
from gpunode.cluster.api.kubeconfig import Access, load
from gpunode.errors import HttpError
from gpunode.model import Cluster

__all__ = ["MANAGER", "Api", "connect", "side_by_side"]
READ = 20.0
PAGE = 500
EVICTION = 22  # the minor from which evictions are of policy/v1; an older API server takes v1beta1 only


def connect(cluster: Cluster) -> "Api":
    """The API of the cluster the inventory names. Reads the kubeconfig; asks the API server nothing yet."""
    return Api(load(cluster))


class Api:
    """One cluster. Safe to use from several threads."""

    def __init__(self, access: Access) -> None:
        self.access, self._connection = access, Connection(access)

    def close(self) -> None:
        self._connection.pool.clear()

    def version(self) -> str:
        """The API server's version, `v1.36.3`: the cheapest request that any client may send."""
        return str(self._object("GET", "/version", needs="gitVersion")["gitVersion"])

    @property
    def simulated(self) -> bool:
        """True for the cluster of `gpunode demo`."""
        return self.version().endswith("+simulated")

    @cached_property
    def served(self) -> Served:
        """The kinds and features of this API server. Raises ClusterError if it is too old."""
        return discover(self.read)

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None:
        try:
            return self._object("GET", self._path(kind, namespace, name))
        except HttpError as error:
            if error.reason == "NotFound":
                return None
            raise

    def read(self, where: str) -> Object:
        """The API server's answer at this path, such as the groups that it serves."""
        return self._object("GET", where)

    def health(self, where: str) -> tuple[int, str]:
        """HTTP's status and the answer at a path such as /readyz, which is text; any status is an answer."""
        response, data = self._send("GET", where)
        return int(response.status), data.decode(errors="replace")

    def find(
        self, kind: str | Kind, namespace: str | None = None, *, labels: str = "", fields: str = ""
    ) -> tuple[list[Object], str]:
        """All objects that the selectors match, and the resourceVersion to watch from."""
        query = {"labelSelector": labels, "fieldSelector": fields, "limit": str(PAGE)}
        where = (self._kind(kind) if isinstance(kind, str) else kind).path(namespace)
        items: list[Object] = []
        while True:
            answer = self._object("GET", where, query, needs="metadata")
            items += answer.get("items") or []
            query["continue"] = answer["metadata"].get("continue", "")
            if not query["continue"]:
                return items, answer["metadata"].get("resourceVersion", "")

    def apply(
        self,
        manifest: Object,
        *,
        manager: str = MANAGER,
        force: bool = False,
        dry_run: bool = False,
        noted: bool = False,
    ) -> Object:
        """Apply the manifest: it is the whole wish of `manager`. Returns the object as it then is. Fields of others with
        other values are a Conflict, unless `force`. `noted`: a note in the object has its owners (`notes`), as of every
        object where there is no server-side apply."""
        if noted or not self.served.apply:
            return notes.apply(self, manifest, manager=manager, force=force, dry_run=dry_run)
        meta = manifest["metadata"]
        query = {"fieldManager": manager, "force": str(force).lower(), "dryRun": "All" if dry_run else ""}
        where = self._path(manifest["kind"], meta.get("namespace"), meta["name"])
        return self._object("PATCH", where, query, manifest, "application/apply-patch+yaml")

    def merge(
        self,
        kind: str,
        name: str,
        fields: Object,
        namespace: str | None = None,
        *,
        manager: str = MANAGER,
        dry_run: bool = False,
        part: str = "",
    ) -> Object:
        """Set these fields of an object that is there, or its `part` (status), whoever set them; None takes one away."""
        query = {"fieldManager": manager, "dryRun": "All" if dry_run else ""}
        where = self._path(kind, namespace, name) + (f"/{part}" if part else "")
        return self._object("PATCH", where, query, fields, "application/merge-patch+json")

    def create(self, manifest: Object, *, manager: str = MANAGER, dry_run: bool = False) -> Object:
        """Create an object that must not exist yet."""
        where = self._path(manifest["kind"], manifest["metadata"].get("namespace"))
        query = {"fieldManager": manager, "dryRun": "All" if dry_run else ""}
        return self._object("POST", where, query, self._with_version(manifest))

    def replace(self, manifest: Object) -> Object:
        """Put an object in the place of the one that was read: refused (Conflict) if that has changed since."""
        meta = manifest["metadata"]
        where = self._path(manifest["kind"], meta.get("namespace"), meta["name"])
        return self._object("PUT", where, {"fieldManager": MANAGER}, self._with_version(manifest))

    def evict(self, pod: Object) -> str:
        """Ask for the pod's eviction, which honours its grace period and PodDisruptionBudgets. Returns why it is not
        allowed now, "" where it is under way or the pod is gone."""
        meta = pod["metadata"]
        eviction = {
            "kind": "Eviction",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
            "deleteOptions": {"preconditions": {"uid": meta["uid"]}},
        }
        where = self._path("Pod", meta["namespace"], meta["name"]) + "/eviction"
        version = "policy/v1" if self.served.minor >= EVICTION else "policy/v1beta1"
        response, data = self._send("POST", where, body={"apiVersion": version, **eviction})
        if response.status == 429:
            return refusal.message_of(data)
        if response.status >= 300:
            error = refusal.http_error(self.access, response.status, data)
            if error.reason not in ("NotFound", "Conflict"):  # gone, or another by now
                raise error
        return ""

    def delete(self, kind: str, name: str, namespace: str | None = None, *, uid: str = "") -> bool:
        """Delete what the object owns, then it; False when it was gone already (or, with `uid`, is another by now)."""
        options: Object = {"propagationPolicy": "Foreground"}
        if uid:
            options["preconditions"] = {"uid": uid}
        try:
            self._ask("DELETE", self._path(kind, namespace, name), body=options)
        except HttpError as error:
            if error.reason == "NotFound" or (uid and error.reason == "Conflict"):
                return False
            raise
        return True

    def log(
        self,
        namespace: str,
        pod: str,
        container: str,
        *,
        lines: int = 200,
        previous: bool = False,
    ) -> str:
        """The last lines that a container wrote."""
        query = {
            "container": container,
            "tailLines": str(lines),
            "limitBytes": "262144",
            "previous": "true" if previous else "",
        }
        return self._ask("GET", self._path("Pod", namespace, pod) + "/log", query).decode(errors="replace")

    def watch(
        self,
        kind: str,
        namespace: str | None = None,
        *,
        version: str,
        seconds: int,
        labels: str = "",
        fields: str = "",
    ) -> Iterator[tuple[str, Object]]:
        """The events of matching objects for at most `seconds`: (ADDED | MODIFIED | DELETED | BOOKMARK, object)."""
        query = {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(seconds),
            "allowWatchBookmarks": "true",
            "labelSelector": labels,
            "fieldSelector": fields,
        }
        with refusal.translate_errors(self.access):
            response, data = self._connection.send(
                "GET", self._path(kind, namespace), query, None, "", seconds + READ, following=True
            )
            end = threading.Timer(seconds + READ, _cut, [response])
            end.start()
            try:
                if response.status != 200:
                    raise refusal.http_error(self.access, response.status, data)
                for line in _lines(response.stream(65536)):
                    yield refusal.parse_event(self.access, line)
            finally:
                end.cancel()
                response.close()

    def _path(self, kind: str, namespace: str | None = None, name: str = "") -> str:
        return self._kind(kind).path(namespace, name)

    def _kind(self, kind: str) -> Kind:
        return self.served.kind(kind) if kind in OLDER else KINDS[kind]

    def _with_version(self, manifest: Object) -> Object:
        return {**manifest, "apiVersion": self._kind(manifest["kind"]).api}

    def _object(self, *request: Any, needs: str = "") -> Object:
        return refusal.parse(self.access, 200, self._ask(*request), needs)

    def _send(
        self,
        method: str,
        where: str,
        query: Mapping[str, str] | None = None,
        body: Object | None = None,
        content: str = "application/json",
    ) -> tuple[Any, bytes]:
        """The answer, of whatever status, and its body."""
        with refusal.translate_errors(self.access):
            return self._connection.send(method, where, query or {}, body, content, READ)

    def _ask(self, *request: Any, **parts: Any) -> bytes:
        """The body of a good answer."""
        for attempt in (1, 2, 3):
            response, data = self._send(*request, **parts)
            if response.status != 429 or attempt == 3:
                break
            asked = response.headers.get("Retry-After", "")
            time.sleep(min(int(asked), 5) if re.fullmatch("[0-9]{1,9}", asked) else 1)  # it may be a date
        if response.status >= 300:
            raise refusal.http_error(self.access, response.status, data)
        return data


def _cut(response: Any) -> None:
    """End a watch whose events drip: a socket's timeout counts silence alone."""
    with suppress(OSError, RuntimeError, ValueError):  # it has just ended
        response.shutdown()


def _lines(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Each whole line of these chunks that is not empty; the rest waits for its end."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from filter(None, whole)
