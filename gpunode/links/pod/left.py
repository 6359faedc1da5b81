"""Pods of runs that were killed. They carry the name of the lease's holder that made them."""

from __future__ import annotations

from gpunode.cluster import lease
from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import OnProgress, follow
from gpunode.wording import few

HOLDER = "gpunode.dev/holder"  # annotation; the pods of `verify`, which holds no lease, have none
PODS = "app.kubernetes.io/name=gpunode-vectoradd"
NAMED = 3
GONE = 30.0  # seconds to wait until deleted pods are gone


def sweep(api: Api, namespace: str, tell: OnProgress, *, holder: str) -> None:
    """Delete the pods of earlier holders of the cluster's lease, and wait until they are gone: they would keep their GPUs for
    minutes. To be called by the `holder`, before it makes its own.

    The lease is read after the pods are listed. If it still names `holder`, whoever made the other pods in the list holds it no
    more. If not, as after a pause of this run, nothing is deleted: the pods may be of the run that holds it now.
    """
    found, _ = api.find("Pod", namespace, labels=PODS)
    made = {
        one["metadata"]["name"]: one["metadata"]["uid"]
        for one in found
        if (one["metadata"].get("annotations") or {}).get(HOLDER, holder) != holder
    }
    if not made or lease.holder(api) != holder:
        return
    tell(f"deleting pods of a run that was killed: {few(sorted(made), NAMED)}")
    for name, uid in made.items():
        api.delete("Pod", name, namespace, uid=uid)
    for now in follow(api, "Pod", namespace, seconds=GONE, labels=PODS):
        if not made.keys() & now.keys():
            return
