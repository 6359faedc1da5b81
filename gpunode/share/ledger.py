"""Who has been promised what: a book for each node, kept from the API server's nodes and pods alone.

A book is a value, replaced as a whole, so that readers take no lock. An event of a pod costs its node's GPUs; memory is
linear in pods.
"""

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import quote

from gpunode.contract.promises import (
    Demand,
    Malformed,
    Part,
    bound_demand,
    demand_of,
    has_ended,
    placement_of,
    pod_name,
)
from gpunode.contract.status import Reason
from gpunode.deviceplugin.cluster.apiserver import Kind, Object

from .book import Book, Gpu, Nominee, Promise, gpus_of, moved_parts
from .fit import Refused, beside_nominees, find, place_parts


@dataclass(frozen=True, slots=True)
class Moved:
    """A pod of a node with other GPUs of it than it is noted on; `promise.has` says which."""

    uid: str
    node: str
    promise: Promise
    gpus: tuple[Gpu, ...]


class Ledger:
    """The books of all nodes. Safe to use from several threads.

    One lock covers the choice and its record, microseconds for one node, and never a request to the API server.
    """

    def __init__(self, resource: str) -> None:
        self.resource = resource
        self._lock = threading.Lock()
        self._books: dict[str, Book] = {}
        self._promises: dict[str, dict[str, Promise]] = {}  # by node, then UID
        self._nodes: dict[str, str] = {}  # by UID, of the pods with a promise
        self._nominees: dict[str, tuple[str, Nominee]] = {}  # by UID: the node, and what it is to get there
        self._moved: dict[
            str, dict[str, tuple[Part, ...]]
        ] = {}  # by node, then UID: what pods have elsewhere

    @classmethod
    def of(
        cls, resource: str, nodes: Iterable[Mapping[str, Any]], pods: Iterable[Mapping[str, Any]]
    ) -> "Ledger":
        """The ledger of a cluster with these objects, in any order."""
        ledger = cls(resource)
        for node in nodes:
            ledger.put_node(node)
        for pod in pods:
            ledger.put_pod(pod)
        return ledger

    def book(self, node: str, uid: str = "") -> Book | None:
        """The node's book, without a reservation for the pod `uid`; None for an unknown node."""
        if self._nodes.get(uid) != node:
            return self._books.get(node)
        with self._lock:
            book, held = self._books.get(node), self._promises.get(node, {}).get(uid)
            return book.plus((held,), -1) if book is not None and held is not None and held.reserved else book

    def room(self, node: str, uid: str, priority: int, *, packed: bool) -> Book | None:
        """The book for a pod of this priority, with promises for the pods nominated to the node."""
        book = self.book(node, uid)
        return book and beside_nominees(book, uid, priority, packed=packed)

    def books(self) -> dict[str, Book]:
        with self._lock:
            return dict(self._books)

    def promises(self, node: str) -> dict[str, Promise]:
        """The node's promises, by the pods' UIDs."""
        with self._lock:
            return dict(self._promises.get(node, {}))

    def page(self, node: str, uid: str = "") -> tuple[Book | None, dict[str, Promise]]:
        """`book` and `promises` of the same moment."""
        with self._lock:
            book, promises = self._books.get(node), dict(self._promises.get(node, {}))
        held = promises.get(uid)
        if book is not None and held is not None and held.reserved:
            book = book.plus((promises.pop(uid),), -1)
        return book, promises

    def moved_pods(self) -> list[Moved]:
        with self._lock:
            return [
                Moved(uid, node, promise, book.gpus)
                for node, uids in self._moved.items()
                for uid in uids
                if (book := self._books.get(node)) is not None
                and (promise := self._promises.get(node, {}).get(uid)) is not None
                and not book.is_settled(promise)
            ]

    def pods(self) -> set[str]:
        """The UIDs of all pods that have a promise, reserved ones too, or are nominated."""
        with self._lock:
            return {*self._nodes, *self._nominees}

    def put_node(self, node: Mapping[str, Any]) -> None:
        name, gpus = node["metadata"]["name"], gpus_of(node, self.resource)
        empty = Book(why=gpus) if isinstance(gpus, Reason) else Book(gpus, (0,) * len(gpus))
        moved = moved_parts(node)
        with self._lock:
            self._move(name, moved)
            before = self._books.get(name)
            if before is None or (before.gpus, before.why) != (empty.gpus, empty.why):
                self._books[name] = empty.plus(self._promises.get(name, {}).values())
                self._show(name)

    def drop_node(self, name: str) -> None:
        with self._lock:
            self._move(name, {})
            self._books.pop(name, None)

    def put_pod(self, pod: Mapping[str, Any]) -> None:
        """Record a pod's current state. A reservation stays until the pod is bound or gone: earlier events can be older."""
        uid, node = str(pod["metadata"]["uid"]), str((pod.get("spec") or {}).get("nodeName") or "")
        ended = has_ended(pod)
        promise = None if ended or not node else self._promise(pod, node)
        nominee = None if ended or node else self._nominee(pod)
        with self._lock:
            self._nominate(uid, nominee)
            if node or ended:
                self._drop(uid)
            if promise is not None:
                self._add(uid, node, promise)

    def drop_pod(self, uid: str) -> None:
        with self._lock:
            self._nominate(uid, None)
            self._drop(uid)

    def reserve(
        self, pod: Mapping[str, Any], wanted: Demand, node: str, *, packed: bool
    ) -> tuple[Sequence[Gpu], tuple[Part, ...]]:
        """Promise memory of this node to a pod that is not bound yet, in place of its earlier reservation.

        Returns the node's GPUs and the pod's parts of them. Raises Refused.
        """
        uid = pod["metadata"]["uid"]
        with self._lock:
            held = self._promises.get(self._nodes.get(uid, ""), {}).get(uid)
            if held is not None and not held.reserved:
                raise Refused(Reason("bound", f"it is bound to {self._nodes[uid]} already"))
            self._drop(uid)
            book, own = self._books.get(node), priority(pod)
            if book is not None:
                book = beside_nominees(book, uid, own, packed=packed)
            fitting, choice = find(book, wanted, packed=packed)
            parts = place_parts(wanted, choice, fitting.gpus)
            promise = Promise(pod_name(pod), wanted.units, parts, reserved=True, priority=own)
            self._add(uid, node, promise)
            return fitting.gpus, parts

    def release(self, uid: str) -> None:
        """Drop a pod's reservation; a promise that the API server has stays."""
        with self._lock:
            held = self._promises.get(self._nodes.get(uid, ""), {}).get(uid)
            if held is not None and held.reserved:
                self._drop(uid)

    def _promise(self, pod: Mapping[str, Any], node: str) -> Promise | None:
        try:
            held = bound_demand(pod, self.resource)
        except Malformed:  # the API server accepts no such pod
            return None
        if not held.units:
            return None
        # Which units of an init container the others get from the kubelet is not known here.
        parts = () if held.init else placement_of(pod, node, held) or ()
        leaving = bool(pod["metadata"].get("deletionTimestamp"))
        return Promise(pod_name(pod), held.units, parts, priority=priority(pod), leaving=leaving)

    def _nominee(self, pod: Mapping[str, Any]) -> tuple[str, Nominee] | None:
        """The node that a pod is nominated to; None if it is not, is being deleted, or asks for no memory."""
        node = str((pod.get("status") or {}).get("nominatedNodeName") or "")
        if not node or pod["metadata"].get("deletionTimestamp"):
            return None
        try:
            wanted = demand_of(pod, self.resource)
        except Malformed:
            return None
        return (node, Nominee(str(pod["metadata"]["uid"]), wanted, priority(pod))) if wanted.asks else None

    def _nominate(self, uid: str, nomination: tuple[str, Nominee] | None) -> None:
        before = self._nominees.pop(uid, None)
        if nomination:
            self._nominees[uid] = nomination
        if nomination != before:
            for node, _ in filter(None, (before, nomination)):
                self._show(node)

    def _show(self, node: str) -> None:
        """Put the node's nominees into its book, except those whose binding is under way, which count there."""
        if node in self._books:
            shown = sorted(
                (
                    nominee
                    for uid, (where, nominee) in self._nominees.items()
                    if where == node and uid not in self._nodes
                ),
                key=lambda nominee: nominee.uid,
            )
            self._books[node] = replace(self._books[node], nominees=tuple(shown))

    def _move(self, node: str, moved: dict[str, tuple[Part, ...]]) -> None:
        """Record the units that pods of the node have on other GPUs than noted."""
        before = self._moved.pop(node, {})
        if moved:
            self._moved[node] = moved
        for uid in {uid for uid in {**before, **moved} if before.get(uid) != moved.get(uid)}:
            promise = self._promises.get(node, {}).get(uid)
            if promise is not None:
                self._drop(uid)
                self._add(uid, node, promise)

    def _add(self, uid: str, node: str, promise: Promise) -> None:
        has = () if promise.reserved else self._moved.get(node, {}).get(uid, ())
        if has != promise.has:
            promise = replace(promise, has=has)
        self._promises.setdefault(node, {})[uid] = promise
        self._nodes[uid] = node
        if uid in self._nominees:
            self._show(self._nominees[uid][0])
        if node in self._books:
            self._books[node] = self._books[node].plus((promise,))

    def _drop(self, uid: str) -> None:
        node = self._nodes.pop(uid, None)
        if node is None:
            return
        if uid in self._nominees:
            self._show(self._nominees[uid][0])
        promise = self._promises[node].pop(uid)
        if not self._promises[node]:
            del self._promises[node]
        if node in self._books:
            self._books[node] = self._books[node].plus((promise,), -1)


def priority(pod: Mapping[str, Any]) -> int:
    """A pod's priority, as admission wrote it."""
    return int((pod.get("spec") or {}).get("priority") or 0)


def kinds(ledger: Ledger) -> tuple[Kind, Kind]:
    """Nodes and pods. Pods of all nodes and of none: the end of one that was not bound frees what is reserved for it."""
    nodes = Kind(
        "/api/v1/nodes",
        lambda node: str(node["metadata"]["name"]),
        ledger.put_node,
        ledger.drop_node,
        lambda: set(ledger.books()),
    )
    return nodes, Kind(
        "/api/v1/pods", lambda pod: str(pod["metadata"]["uid"]), ledger.put_pod, ledger.drop_pod, ledger.pods
    )


class Home:
    """A node, followed. `ready`: Services lead to its pods. They do not once its kubelet is silent, though its containers go on
    and reach the API server: a leader there would get no requests."""

    def __init__(self, node: str) -> None:
        self.ready = True  # until more is known
        self._node = node

    @property
    def kind(self) -> Kind:
        """The kind that a Follower follows to keep this current."""
        path = f"/api/v1/nodes?fieldSelector=metadata.name%3D{quote(self._node, safe='')}"
        return Kind(
            path, lambda node: str(node["metadata"]["name"]), self._update, self._remove, lambda: {self._node}
        )

    def _update(self, node: Object) -> None:
        conditions = (node.get("status") or {}).get("conditions") or []
        self.ready = all(
            condition["status"] == "True" for condition in conditions if condition["type"] == "Ready"
        )

    def _remove(self, _name: str) -> None:
        self.ready = False
