"""Whether a pod fits a node, why not, and how well. Pure.

The words say nothing of the node: kube-scheduler counts nodes by reason ("3 no single GPU has 6 …"), in one sentence.
"""

from __future__ import annotations

from gpunode.deviceplugin.status import Reason

from .book import Book
from .choice import TooHard, choose
from .demand import Demand
from .placement import Part, made

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


def place(book: Book | None, wanted: Demand, *, packed: bool) -> tuple[Part, ...]:
    """The pod's parts of the node's GPUs. Raises Refused."""
    if book is None:
        raise Refused(Reason("unknown-node", "the extender does not know the node"))
    if book.why is not None:
        raise Refused(book.why)
    if wanted.init:
        words = "its init container asks for GPU memory, which the extender does not place"
        raise Refused(Reason("init-container", words))
    each = max(ask.each for ask in wanted.asks)
    gpus = max(ask.gpus for ask in wanted.asks)
    if gpus > len(book.gpus):
        raise Refused(Reason("too-few-gpus", f"it has fewer than {gpus} GPUs"))
    if each > max(gpu.units for gpu in book.gpus):
        raise Refused(Reason("too-large", f"no GPU of it has {each} units of memory"))
    if wanted.units > sum(book.free):
        raise Refused(Reason("full", f"fewer than {wanted.units} units of GPU memory are free"))
    try:
        choice = choose(book.free, wanted.asks, packed=packed)
    except TooHard:
        words = "too many containers share GPUs to decide whether its GPUs have room for all"
        raise Refused(Reason("undecided", words)) from None
    if choice is None:
        if len(wanted.asks) > 1:
            what = f"{len(wanted.asks)} containers, of which one asks for {each} units each"
            words = f"no choice of its GPUs has room for {what}"
        elif gpus > 1:
            words = f"fewer than {gpus} GPUs have {each} units of memory free"
        else:
            words = f"no single GPU has {each} units of memory free"
        raise Refused(Reason("fragmented", words))
    return made(wanted, choice, book.gpus)


def score(book: Book | None, wanted: Demand, *, packed: bool) -> int:
    """0 to TOP: how full the node is with the pod, or how empty where pods are distributed; 0 if it does not fit."""
    try:
        place(book, wanted, packed=packed)
    except Refused:
        return 0
    assert book is not None
    left = (sum(book.free) - wanted.units) / sum(gpu.units for gpu in book.gpus)
    return round(TOP * (1 - left if packed else left))
