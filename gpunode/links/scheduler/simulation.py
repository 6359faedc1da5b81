"""Where pods would go, on a copy of the cluster's books. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import Ask, Demand
from gpunode.share.book import Promise
from gpunode.share.fit import Refused, find, place_parts, score
from gpunode.share.ledger import Ledger


@dataclass(frozen=True, slots=True)
class Placed:
    """One pod of the simulation: its node and the GPU of each container, or why no node has room (each with its count)."""

    pod: int
    node: str = ""
    gpus: tuple[str, ...] = ()
    why: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Free:
    """Units that are free on a node: in sum, on its emptiest GPU, and where the GPUs are not all alike any more."""

    node: str
    free: int
    largest: int
    by_gpu: tuple[int, ...]


def place(
    nodes: Sequence[Object],
    pods: Sequence[Object],
    resource: str,
    units: Sequence[int],
    count: int,
    *,
    packed: bool,
) -> tuple[tuple[Placed, ...], tuple[Free, ...]]:
    """`count` pods with a container for each of `units`, one after the other, each onto the node that the extender scores
    best (of equal ones the first by name; the scheduler's other scores do not count here); and what is free then."""
    books = Ledger.of(resource, nodes, pods).books()
    usable = {
        str(node["metadata"]["name"]) for node in nodes if not (node.get("spec") or {}).get("unschedulable")
    }
    books = {name: book for name, book in sorted(books.items()) if name in usable}
    demand = Demand(tuple(Ask(f"c{number}", number, each) for number, each in enumerate(units)))
    placed = []
    for number in range(1, count + 1):
        why: dict[str, int] = {}
        fits = []
        for name, book in books.items():
            try:
                find(book, demand, packed=packed)
                fits.append(name)
            except Refused as refused:
                why[refused.reason.words] = why.get(refused.reason.words, 0) + 1
        if not fits:
            placed.append(Placed(number, why=why))
            continue
        best = max(fits, key=lambda name: score(books[name], demand, packed=packed))
        book, choice = find(books[best], demand, packed=packed)
        parts = place_parts(demand, choice, book.gpus)
        books[best] = book.plus([Promise("simulated", demand.units, parts)])
        placed.append(Placed(number, best, tuple(part.index for part in parts)))
    free = tuple(
        Free(name, book.room, max(book.free, default=0), book.free)
        for name, book in books.items()
        if book.why is None
    )
    return tuple(placed), free
