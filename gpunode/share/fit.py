"""Whether a pod fits a node, why not, and how well. Pure.

The words say nothing of the node: kube-scheduler counts nodes by reason ("3 no single GPU has 6 …"), in one sentence.
"""

from __future__ import annotations

from gpunode.contract.promises import Demand
from gpunode.contract.status import Reason

from .book import Book
from .choice import Choice, TooHard, choose

TOP = 10  # MaxExtenderPriority of the extender API
# Codes of reasons that no preemption of pods changes.
LASTING = frozenset(
    {"unknown-node", "not-shared", "gpus-unknown", "init-container", "too-large", "too-few-gpus"}
)


class Refused(Exception):
    """The node cannot be promised to the pod, for this reason."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason.words)
        self.reason = reason


def find(book: Book | None, wanted: Demand, *, packed: bool) -> tuple[Book, Choice]:
    """The node's book, and which of its GPUs the pod's containers get. Raises Refused."""
    if book is None:
        raise Refused(Reason("unknown-node", "the extender does not know the node"))
    if book.why is not None:
        raise Refused(book.why)
    if wanted.init:
        words = "its init container asks for GPU memory, which the extender does not place"
        raise Refused(Reason("init-container", words))
    if wanted.most_gpus > len(book.gpus):
        raise Refused(Reason("too-few-gpus", f"it has fewer than {wanted.most_gpus} GPUs"))
    if wanted.most_units > book.largest:
        raise Refused(Reason("too-large", f"no GPU of it has {wanted.most_units} units of memory"))
    if wanted.units > book.room:
        raise Refused(Reason("full", f"fewer than {wanted.units} units of GPU memory are free"))
    try:
        choice = choose(book.free, wanted.asks, packed=packed)
    except TooHard:
        words = "too many containers share GPUs to decide whether its GPUs have room for all"
        raise Refused(Reason("undecided", words)) from None
    if choice is None:
        raise Refused(Reason("fragmented", _fragmented(wanted)))
    return book, choice


def score(book: Book | None, wanted: Demand, *, packed: bool) -> int:
    """0 to TOP: how full the node is with the pod, or how empty where pods are distributed; 0 if it does not fit."""
    try:
        found, _ = find(book, wanted, packed=packed)
    except Refused:
        return 0
    left = (found.room - wanted.units) / sum(gpu.units for gpu in found.gpus)
    return round(TOP * (1 - left if packed else left))


def _fragmented(wanted: Demand) -> str:
    if len(wanted.asks) > 1:
        return (
            f"no choice of its GPUs has room for {len(wanted.asks)} containers, the largest of which asks for "
            f"{wanted.most_units} units of a GPU's memory"
        )
    if wanted.most_gpus > 1:
        return f"fewer than {wanted.most_gpus} GPUs have {wanted.most_units} units of memory free"
    return f"no single GPU has {wanted.most_units} units of memory free"
