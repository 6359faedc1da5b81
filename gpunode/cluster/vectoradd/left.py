"""Pods of runs that were killed. They carry the name of the lease's holder that made them."""

from __future__ import annotations

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import OnProgress, follow
from gpunode.wording import few

HOLDER = "gpunode.dev/holder"  # annotation; the pods of `verify`, which holds no lease, have none
PODS = "app.kubernetes.io/name=gpunode-vectoradd"
NAMED = 3
GONE = 30.0  # seconds to wait until deleted pods are gone


def sweep(api: Api, namespace: str, tell: OnProgress) -> None:
    """Delete the pods of runs that were killed while they held the cluster's lease, and wait until they are gone: they would
    keep their GPUs for minutes. To be called by the lease's holder, before it makes its own."""
    found, _ = api.find("Pod", namespace, labels=PODS)
    left = {one["metadata"]["name"] for one in found if HOLDER in (one["metadata"].get("annotations") or {})}
    if not left:
        return
    tell(f"deleting pods of a run that was killed: {few(sorted(left), NAMED)}")
    for name in left:
        api.delete("Pod", name, namespace)
    for now in follow(api, "Pod", namespace, seconds=GONE, labels=PODS):
        if not left & now.keys():
            return
