"""Pods that ask for no GPU though their environment asks for all, as CUDA's images do: which GPUs they see all the same."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress, follow
from gpunode.errors import ClusterError
from gpunode.links.node import Node
from gpunode.links.pod.manifest import on_node
from gpunode.model import PluginImage

CONTAINER = "stranger"
SEEN = 3  # its exit status where it sees a GPU
PROGRAM = (
    "import glob, sys; found = sorted(glob.glob('/dev/nvidia[0-9]*')); print(', '.join(found)); "
    f"sys.exit({SEEN} if found else 0)"
)


def seen(
    api: Api,
    nodes: Sequence[Node],
    *,
    namespace: str,
    image: PluginImage,
    seconds: float,
    tell: OnProgress,
    holder: str = "",
) -> Mapping[str, str]:
    """What such a pod shows on each node, in words; "" where it sees no GPU. The pods are always deleted."""
    run = secrets.token_hex(4)
    selector = f"gpunode.dev/run={run}"
    of = {f"stranger-{run}-{number}": node for number, node in enumerate(nodes)}
    found: dict[str, Object] = {}
    try:
        for name, node in of.items():
            api.create(
                on_node(
                    "stranger.yaml.j2",
                    name,
                    node,
                    namespace=namespace,
                    image=image,
                    seconds=seconds,
                    args=("-c", PROGRAM),
                    run=run,
                    holder=holder,
                )
            )
        for found in follow(api, "Pod", namespace, seconds=seconds, labels=selector, tell=tell):
            if all(name in found and pods.ended(found[name], CONTAINER) for name in of):
                break
        return {node.name: _words(found.get(name)) for name, node in of.items()}
    except ClusterError as error:
        return {
            node.name: f"a pod that asks for no GPU could not be tried: {error.message}" for node in nodes
        }
    finally:
        for name in of:
            api.delete("Pod", name, namespace)


def _words(pod: Object | None) -> str:
    ended = pods.ended(pod, CONTAINER) if pod else None
    if pod is None or ended is None:
        return f"a pod that asks for no GPU did not end: {pods.problem(pod) if pod else 'it does not exist'}"
    if ended.get("exitCode") == 0:
        return ""
    reported = str(ended.get("message") or "").strip()
    if ended.get("exitCode") == SEEN:
        return f"a pod that asks for no GPU sees {reported or 'GPUs'}"
    return f"a pod that asks for no GPU failed: {reported or ended.get('reason', '')}"
