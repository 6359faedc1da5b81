"""Removes the plugin from the cluster with everything that was created for it."""

from __future__ import annotations

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import OURS, Object, title
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects import apply
from gpunode.cluster.plugin import annotation, daemonset
from gpunode.cluster.plugin.manifests import everything


def removable(api: Api, namespace: str, *, tell: OnProgress) -> tuple[str, ...]:
    """Titles of what `remove` would delete now; `tell` gets what would stay and why."""
    left = tuple(title(pod) for pod in _leftovers(api, namespace))
    annotations = tuple(annotation.title(node) for node in annotation.left(api))
    return left + apply.removable(api, everything(namespace), tell=tell) + annotations


def remove(api: Api, namespace: str, *, seconds: float, tell: OnProgress) -> tuple[str, ...]:
    """Delete all that `deploy` created, the plugin's annotations of nodes, and pods left over from vectoradd. Node labels
    stay. Returns the titles of what was deleted."""
    left = _leftovers(api, namespace)
    for pod in left:
        api.delete("Pod", pod["metadata"]["name"], namespace)
    removed = apply.remove(api, everything(namespace), seconds=seconds, tell=tell)
    annotations = tuple(annotation.title(node) for node in annotation.remove(api))
    return tuple(title(pod) for pod in left) + removed + annotations


def _leftovers(api: Api, namespace: str) -> list[Object]:
    """gpunode's pods that belong to no DaemonSet of the plugin."""
    others = ",".join(f"{daemonset.NAME_LABEL}!={name}" for name in daemonset.NAMES)
    items = api.find("Pod", namespace, labels=f"{OURS}=gpunode,{others}")[0]
    return [{"kind": "Pod", **item} for item in items]  # items of a list have no kind
