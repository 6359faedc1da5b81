"""Labels of nodes: applied, each writer's own; and the label that names a host's GPU model."""

from collections import Counter
from collections.abc import Iterable, Mapping

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.errors import ClusterError, HttpError
from gpunode.links.machine.pci import accelerator_of, driven
from gpunode.links.node import ACCELERATOR_LABEL, Node
from gpunode.model import PciDevice
from gpunode.planning import writers

# Each writer of labels has a name of its own for the API server: what it leaves out of its next
# wish is taken off, and what others set stays.
PROVISION = "gpunode"
ACCELERATOR = "gpunode-accelerator"
NONE: Mapping[str, str] = {}


def write(
    api: Api,
    node: Node,
    labels: Mapping[str, str],
    *,
    writer: str = PROVISION,
    overwrite: bool = False,
    dry_run: bool = False,
    annotations: Mapping[str, str] = NONE,
) -> dict[str, tuple[str | None, str | None]]:
    """Make `labels`, and `annotations`, all that `writer` has set on the node: others' stay, its own earlier ones go.

    Returns label -> (before, after) of what changed. A label that another field manager set to another value is a
    ClusterError unless `overwrite`. Of a node that has them all nothing is asked.
    """
    if holds(node, labels, writer=writer):
        return {}
    # The uid makes sure that a node deleted meanwhile is not born again as an empty object.
    body: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "uid": node.uid, "labels": dict(labels)},
    }
    if annotations:
        body["metadata"]["annotations"] = dict(annotations)
    try:
        result = api.apply(body, manager=writer, force=overwrite, dry_run=dry_run, noted=writer in node.noted)
    except HttpError as error:
        if error.status == 409 and error.claims:
            held = [key for key in labels if node.labels.get(key, labels[key]) != labels[key]]
            held_labels = ", ".join(f"{key}={node.labels[key]}" for key in held) or "these labels"
            off = " ".join(f"{key}-" for key in held or labels)
            other = "say --overwrite" if writer == ACCELERATOR else "remove it from the inventory"
            by = ", ".join(
                sorted({writers.name_manager(claim.manager) for claim in error.claims if claim.manager})
            )
            raise ClusterError(
                f"another client set {held_labels}{f' (field manager {by})' if by else ''}",
                subject=node.name,
                hint=f"Take it off (`kubectl label node {node.name} {off}`), or {other}.",
            ) from error
        raise
    after = result["metadata"].get("labels") or {}
    keys = sorted({*node.labels, *after})
    return {
        key: (node.labels.get(key), after.get(key)) for key in keys if node.labels.get(key) != after.get(key)
    }


def holds(node: Node, labels: Mapping[str, str], *, writer: str = PROVISION) -> bool:
    """Whether these are all the labels that `writer` has set, and none has another value by now."""
    return node.applied.get(writer) == frozenset(labels) and labels.items() <= node.labels.items()


def missing(node: Node, labels: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """Labels that the node lacks or has with another value: (its value, the desired one) by key, whoever set it."""
    have = node.labels
    return {key: (have.get(key), value) for key, value in labels.items() if have.get(key) != value}


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
    slugs = [accelerator_of(device) for device in sorted(driven(pci), key=lambda d: d.address)]
    return [slug for slug, _ in Counter(slugs).most_common()]  # equal counts stay in the order first seen
