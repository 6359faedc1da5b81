"""Removes the plugin from the cluster with everything that was created for it."""

from __future__ import annotations

from contextlib import suppress

from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import OURS, Object, title
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects import apply
from gpunode.errors import HttpError, UsageError
from gpunode.links import node as nodes
from gpunode.links.node import GPU_LABEL, RUNTIME_LABEL, Node, labels
from gpunode.links.plugin import daemonset, published
from gpunode.links.plugin.deployment import everything

DAEMONSETS = {f"{name}{suffix}" for name in daemonset.NAMES for suffix in ("", "-class")}
EXTENDER = "gpunode-share"  # has pods of its own

OWN_LABELS = (GPU_LABEL, RUNTIME_LABEL)  # that mean nothing without the plugin; the inventory's stay


def removable(api: Api, namespace: str, *, tell: OnProgress) -> tuple[str, ...]:
    """Titles of what `remove` would delete now; `tell` gets what would stay and why. Raises UsageError where the plugin is in
    other namespaces, and not in this one: what is the whole cluster's would be taken from under it."""
    if places := _elsewhere(api, namespace):
        raise UsageError(
            f"namespace {namespace} has no device plugin of gpunode's: it is in {', '.join(places)}",
            hint=f"Name it with `--namespace {places[0]}`, or with cluster.namespace in the inventory.",
        )
    left = tuple(title(pod) for pod in _leftovers(api, namespace))
    annotations = tuple(published.annotation_title(node) for node in published.read_annotations(api))
    objects = apply.removable(api, everything(namespace), tell=tell)
    return left + objects + annotations + tuple(_label(node) for node in _labelled(api))


def remove(api: Api, namespace: str, *, seconds: float, tell: OnProgress) -> tuple[str, ...]:
    """Delete all that `deploy` created, the plugin's annotations of nodes, pods left over from vectoradd, and the labels
    that brought the plugin to nodes, where gpunode set them. Returns the titles of what was deleted. Raises ClusterError,
    before anything is, where the user may not delete all."""
    left = _leftovers(api, namespace)
    there = [*left, *apply.present(api, everything(namespace))]
    rights.demand(api, (*rights.of_deletion(there), *rights.of_wait(there), *rights.LABELS))
    for pod in left:
        api.delete("Pod", pod["metadata"]["name"], namespace)
    removed = apply.remove(api, everything(namespace), seconds=seconds, tell=tell)
    annotations = tuple(published.annotation_title(node) for node in published.remove_annotations(api))
    marked = _labelled(api)  # last: a node that has lost its labels is not found by them
    for node in marked:
        kept = {
            key: node.labels[key]
            for key in node.applied[labels.PROVISION]
            if key not in OWN_LABELS and key in node.labels
        }
        labels.write(api, node, kept)
    titles = tuple(_label(node) for node in marked)
    return tuple(title(pod) for pod in left) + removed + annotations + titles


def _elsewhere(api: Api, namespace: str) -> list[str]:
    """The namespaces that have the plugin's DaemonSets, if this one has none."""
    with suppress(HttpError):  # who may see one namespace only names that one
        found = api.find("DaemonSet", labels=f"{OURS}=gpunode")[0]
        places = {one["metadata"]["namespace"] for one in found if one["metadata"]["name"] in DAEMONSETS}
        return [] if namespace in places else sorted(places)
    return []


def _labelled(api: Api) -> list[Node]:
    """The nodes on which gpunode itself set a label of its own."""
    return [
        node for node in nodes.every(api) if node.applied.get(labels.PROVISION, frozenset()) & set(OWN_LABELS)
    ]


def _label(node: Node) -> str:
    return f"Node {node.name} label {', '.join(sorted(node.applied[labels.PROVISION] & set(OWN_LABELS)))}"


def _leftovers(api: Api, namespace: str) -> list[Object]:
    """gpunode's pods that belong to no DaemonSet of the plugin."""
    others = ",".join(f"{daemonset.NAME_LABEL}!={name}" for name in (*daemonset.NAMES, EXTENDER))
    items = api.find("Pod", namespace, labels=f"{OURS}=gpunode,{others}")[0]
    return [{"kind": "Pod", **item} for item in items]  # items of a list have no kind
