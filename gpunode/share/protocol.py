"""The scheduler's extender API, version 1 (k8s.io/kube-scheduler/extender/v1): bodies in, bodies out.

Its types have no JSON tags, so their keys begin with capitals. Schedulers before 1.10 or so wrote them small; Go reads
either, and so does this.
"""

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from gpunode.contract.promises import Demand, Malformed, demand_of
from gpunode.deviceplugin.cluster.apiserver import ApiServer

from .binding import NotBound, NotLeading, bind
from .book import Book
from .fit import LASTING, Refused, beside_nominees, find, score, victims
from .ledger import Ledger, priority
from .waiting import Waiting

Answer: TypeAlias = dict[str, Any]


class BadRequest(Exception):
    """The body does not follow the protocol; the message has the cause."""


class Extender:
    """Answers the scheduler out of the ledger, while it `leads`. `packed`: GPUs and nodes are filled one after the other."""

    def __init__(
        self, ledger: Ledger, api: ApiServer, *, packed: bool = True, leads: Callable[[], bool] = lambda: True
    ) -> None:
        self._ledger = ledger
        self._api = api
        self._packed = packed
        self._leads = leads
        self.waiting = Waiting(ledger, api, packed=packed)

    def filter(self, body: object) -> Answer:
        """ExtenderFilterResult of ExtenderArgs."""
        try:
            wanted, uid, names, nodes = self._read(body, waits=True)
        except (BadRequest, NotLeading) as error:
            return {"Nodes": None, "NodeNames": None, "FailedNodes": {}, "Error": str(error)}
        fit, failed, lasting = [], {}, {}
        own = priority(_fields(body)["pod"])
        for name in names:
            try:
                if wanted.units:
                    find(self._room(name, uid, own), wanted, packed=self._packed)
                fit.append(name)
            except Refused as refused:
                failed[name] = refused.reason.words
                if refused.reason.code in LASTING:
                    lasting[name] = refused.reason.words
        if fit:
            self.waiting.forget(uid)
        answer: Answer = {"Nodes": None, "NodeNames": fit, "FailedNodes": failed, "Error": ""}
        if nodes is not None:
            answer |= {"Nodes": {"items": [nodes[name] for name in fit]}, "NodeNames": None}
        # Those are in both: schedulers before 1.21 know only the first.
        return answer | {"FailedAndUnresolvableNodes": lasting}

    def prioritize(self, body: object) -> list[Answer]:
        """HostPriorityList of ExtenderArgs. Raises BadRequest or NotLeading: the protocol has no place for an error here."""
        wanted, uid, names, _ = self._read(body)
        if not wanted.units:
            return [{"Host": name, "Score": 0} for name in names]
        own, packed = priority(_fields(body)["pod"]), self._packed
        scores = {name: score(self._room(name, uid, own), wanted, packed=packed) for name in names}
        return [{"Host": name, "Score": each} for name, each in scores.items()]

    def preempt(self, body: object) -> Answer:
        """ExtenderPreemptionResult of ExtenderPreemptionArgs. Raises BadRequest or NotLeading, as `prioritize`.

        Nodes that the victims leave without room are dropped. Each victim that is added counts as one whose disruption
        budget is violated, since budgets are not known here: nodes without added ones are chosen first.
        """
        self._lead()
        fields = _fields(body)
        wanted, uid = self._demand(fields.get("pod"))
        own = priority(fields["pod"])
        answer: dict[str, Answer] = {}
        for node, (proposed, violations) in _victims_by_node(fields).items():
            book, promises = self._ledger.page(node, uid)
            book = book and beside_nominees(book, uid, own, packed=self._packed)
            chosen = (
                victims(book, promises, wanted, own, proposed, packed=self._packed)
                if wanted.units
                else proposed
            )
            if chosen:
                violated = violations + len(chosen) - len(proposed)
                answer[node] = {"Pods": [{"UID": victim} for victim in chosen], "NumPDBViolations": violated}
        return {"NodeNameToMetaVictims": answer}

    def bind(self, body: object) -> Answer:
        """ExtenderBindingResult of ExtenderBindingArgs."""
        try:
            fields = _fields(body)
            namespace, name, uid, node = (
                _text(fields, key) for key in ("PodNamespace", "PodName", "PodUID", "Node")
            )
            self._lead()
            bind(self._ledger, self._api, namespace, name, uid, node, packed=self._packed, leads=self._leads)
        except (BadRequest, NotBound, NotLeading) as error:
            return {"Error": str(error)}
        return {"Error": ""}

    def _lead(self) -> None:
        """A ledger that is followed no more promises a GPU twice."""
        if not self._leads():
            raise NotLeading

    def _room(self, node: str, uid: str, own: int) -> Book | None:
        return self._ledger.room(node, uid, own, packed=self._packed)

    def _read(
        self, body: object, *, waits: bool = False
    ) -> tuple[Demand, str, list[str], dict[str, Any] | None]:
        """The pod's demand and UID, the nodes' names, and the nodes if the scheduler sent them."""
        self._lead()
        fields = _fields(body)
        wanted, uid = self._demand(fields.get("pod"))
        if waits and wanted.units:
            self.waiting.note(fields["pod"], wanted)
        names, nodes = fields.get("nodenames"), fields.get("nodes")
        if isinstance(names, list) and all(isinstance(name, str) for name in names):
            return wanted, uid, names, None
        if not isinstance(nodes, Mapping):
            raise BadRequest("expected NodeNames or Nodes")
        try:
            by_name = {str(node["metadata"]["name"]): node for node in nodes.get("items") or []}
        except (LookupError, TypeError) as error:
            raise BadRequest(f"Nodes: expected a list of nodes: {error!r}") from None
        return wanted, uid, list(by_name), by_name

    def _demand(self, pod: object) -> tuple[Demand, str]:
        if not isinstance(pod, Mapping):
            raise BadRequest("Pod: expected a pod")
        try:
            return demand_of(pod, self._ledger.resource), str((pod.get("metadata") or {}).get("uid") or "")
        except Malformed as error:
            raise BadRequest(str(error)) from None


def _victims_by_node(fields: Mapping[str, Any]) -> dict[str, tuple[list[str], int]]:
    """By node: the victims' UIDs, and the number of budgets they violate. A scheduler without `nodeCacheCapable` sends whole pods."""
    victims = {}
    uids: tuple[tuple[str, Callable[[Any], str]], ...] = (
        ("nodenametometavictims", lambda pod: _text(_fields(pod), "UID")),
        ("nodenametovictims", lambda pod: str(pod["metadata"]["uid"])),
    )
    try:
        for key, uid_of in uids:
            for node, proposed in (fields.get(key) or {}).items():
                each = _fields(proposed)
                of_pods = [uid_of(pod) for pod in each.get("pods") or []]
                victims[str(node)] = of_pods, int(each.get("numpdbviolations") or 0)
    except (AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadRequest(f"expected victims by node: {error!r}") from None
    return victims


def _fields(body: object) -> dict[str, Any]:
    if not isinstance(body, Mapping):
        raise BadRequest("expected a JSON object")
    return {str(key).lower(): value for key, value in body.items()}


def _text(fields: Mapping[str, Any], key: str) -> str:
    value = fields.get(key.lower())
    if not isinstance(value, str) or not value:
        raise BadRequest(f"{key}: expected a text")
    return value
