"""What is wrong between promises and what kubelets allocated, and which annotations would repair it. Pure."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import (
    ALLOCATION,
    INDEX,
    MEMORY_ANNOTATION,
    Demand,
    Malformed,
    Part,
    bound_demand,
    has_ended,
    placement_of,
)
from gpunode.errors import Problem
from gpunode.links.scheduler.extender.picture import Real, allocated, names
from gpunode.share.book import Book
from gpunode.share.fit import notes_of
from gpunode.share.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Mismatch:
    """A problem of a node, its subject. `pod`: "" where it is no single pod's. `repair`: annotations for the pod; {}: none."""

    problem: Problem
    pod: str = ""
    repair: Mapping[str, str] = field(default_factory=dict)


def findings(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    resource: str,
    real: Mapping[str, Real],
    scheduler: str = "",
) -> tuple[Mismatch, ...]:
    """By node. `scheduler`: the one that asks the extender, "" where all do. Of a node that is not in `real` only what the API server shows is judged. Units that a kubelet's record keeps
    for pods that are gone are none: it forgets them at its next allocation."""
    ledger = Ledger.of(resource, nodes, pods)
    bound: dict[str, list[Object]] = {}
    for pod in pods:
        node = (pod.get("spec") or {}).get("nodeName")
        if node and not has_ended(pod):
            bound.setdefault(str(node), []).append(pod)
    found: list[Mismatch] = []
    for node, book in sorted(ledger.books().items()):
        here, host = bound.get(node, []), real.get(node)
        if book.why is not None and book.why.code == "not-shared":
            continue
        if book.why is not None:
            found.append(_mismatch(node, "", book.why.code, book.why.words))
            continue
        entries = host.entries if host is not None else None
        given = None if entries is None else allocated(here, resource, entries)
        for pod in here:
            found += _of_pod(node, pod, book, resource, given, scheduler)
        for gpu, promised in zip(book.gpus, book.promised, strict=True):
            # Where units are reserved, their pods are counted twice, and maybe in another unit, until they end.
            if promised > gpu.units and not gpu.reserved:
                words = f"{promised} of {gpu.units} units of GPU {gpu.index} are promised"
                found.append(_mismatch(node, "", "overcommitted", words))
    return tuple(found)


def _of_pod(
    node: str,
    pod: Object,
    book: Book,
    resource: str,
    given: Mapping[tuple[str, str, str], int] | None,
    scheduler: str,
) -> list[Mismatch]:
    (name,) = names([pod]).values()
    try:
        held = bound_demand(pod, resource)
    except Malformed as error:
        return [_mismatch(node, name, "malformed", str(error))]
    if not held.asks:
        return []
    promised = placement_of(pod, node, held)
    actual = None if given is None else _actual(name, held, book, given)
    repair: Mapping[str, str] = {}
    if actual:
        repair = notes_of(node, held, actual, book.gpus, time.time_ns())
    if promised is None:
        annotations = (pod.get("metadata") or {}).get("annotations") or {}
        edited = any(key in annotations for key in (MEMORY_ANNOTATION, ALLOCATION, INDEX))
        words = "its annotations contradict its spec or its node" if edited else "its GPU is not noted"
        code = "unreadable" if edited else "not-noted"
        own = str(pod["spec"].get("schedulerName") or "default-scheduler")
        if scheduler and own != scheduler and not edited:
            words, code = f"its scheduler {own} does not ask the extender, {words}", "other-scheduler"
        return [
            _mismatch(node, name, code, f"{words}: its {held.units} units count against every GPU", repair)
        ]
    if given is None:
        return []
    if not any(key[0] == name for key in given):
        started = (pod.get("status") or {}).get("phase") == "Running"
        words = "it runs, and the kubelet gave it no units"
        return [_mismatch(node, name, "no-devices", words)] if started else []
    if actual and _by_gpu(actual, book) != _by_gpu(promised, book):
        words = f"it was promised GPU {_listed(promised)}, and got GPU {_listed(actual)}"
        return [_mismatch(node, name, "elsewhere", words, repair)]
    return []


def _actual(
    pod: str, held: Demand, book: Book, given: Mapping[tuple[str, str, str], int]
) -> tuple[Part, ...] | None:
    """Where the pod's containers are; None where not all have their units yet, or of a GPU that the node does not publish."""
    by_uuid = {gpu.uuid: gpu for gpu in book.gpus if gpu.uuid}
    parts = []
    for ask in held.asks:
        mine = {
            device: units
            for (name, box, device), units in given.items()
            if (name, box) == (pod, ask.container)
        }
        if sum(mine.values()) != ask.units or not set(mine) <= set(by_uuid):
            return None
        parts += [
            Part(ask.container, by_uuid[device].index, units, device)
            for device, units in sorted(mine.items())
        ]
    return tuple(parts)


def _by_gpu(parts: Sequence[Part], book: Book) -> set[tuple[str, str, int]]:
    index = {gpu.uuid: gpu.index for gpu in book.gpus if gpu.uuid}
    return {(part.container, index.get(part.uuid, part.index), part.units) for part in parts}


def _listed(parts: Sequence[Part]) -> str:
    return ", ".join(dict.fromkeys(part.index for part in parts))


def _mismatch(node: str, pod: str, code: str, what: str, repair: Mapping[str, str] | None = None) -> Mismatch:
    return Mismatch(Problem(code, what, subject=node), pod, repair or {})
