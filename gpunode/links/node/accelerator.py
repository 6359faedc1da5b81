"""Which `accelerator` label a node gets, from what its GPUs are. The values are in machine/gpus.yaml."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from gpunode.links.machine.pci import driven, gpu
from gpunode.links.node import ACCELERATOR_LABEL
from gpunode.model import PciDevice


def accelerator(pci: Iterable[PciDevice]) -> dict[str, str]:
    """The accelerator label of a node with these PCI functions; {} without GPUs of its own.

    A node has one such label. With several models it names the most numerous, and of equally many the one in
    the first slot, so that the answer is the same at every run; the caller reports `others`.
    """
    models = _models(pci)
    return {ACCELERATOR_LABEL: models[0]} if models else {}


def others(pci: Iterable[PciDevice]) -> tuple[str, ...]:
    """The models that the one label does not name, most numerous first."""
    return tuple(_models(pci)[1:])


def _models(pci: Iterable[PciDevice]) -> list[str]:
    slugs = [gpu(one.device).accelerator for one in sorted(driven(pci), key=lambda one: one.address)]
    return [slug for slug, _ in Counter(slugs).most_common()]  # equal counts stay in the order first seen
