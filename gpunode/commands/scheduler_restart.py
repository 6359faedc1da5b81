"""A scheduler's static pod that starts again with another manifest."""

from __future__ import annotations

import time

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.engine.listener import Listener, progress
from gpunode.errors import GpunodeError
from gpunode.links.scheduler import plan as schedulers

BACK = 180.0  # seconds for it to be Ready
LOOK = 1.0


def awaited(api: Api, node: str, volume: str, listener: Listener) -> str:
    """Why the node's scheduler is not Ready with this volume (without gpunode's, for ""); "" once it is."""
    end, tell = time.monotonic() + BACK, progress(listener)
    while True:
        why = _not_back(api, node, volume)
        if not why or time.monotonic() > end:
            return why
        tell(f"waiting for the scheduler of {node}: {why}")
        time.sleep(LOOK)


def _not_back(api: Api, node: str, volume: str) -> str:
    try:
        pod = api.get("Pod", f"kube-scheduler-{node}", "kube-system")
    except GpunodeError as error:
        return error.message
    if pod is None:
        return "it has no pod"
    names = [one["name"] for one in pod["spec"].get("volumes") or []]
    own = [name for name in names if name.startswith(schedulers.VOLUME)]
    if own != ([volume] if volume else []):
        return "the kubelet has not started it again yet"
    return "" if pods.ready(pod) else pods.problem(pod, []) or "it is not Ready yet"
