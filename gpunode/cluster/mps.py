"""The pods of MPS control daemons, which the plugin's configuration may bring beside the plugin."""

from __future__ import annotations

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.nodes import Node

NAME = "gpunode-mps"
CONTAINER = "mps"


def trouble(api: Api, namespace: str, node: Node) -> str:
    """Why no control daemons run on a node that has a pod for them; "" where they run, and where there is no pod."""
    of = f"app.kubernetes.io/name={NAME}"
    for pod in api.find("Pod", namespace, labels=of, fields=f"spec.nodeName={node.name}")[0]:
        if pods.ready(pod):
            continue
        why = pods.trouble(pod, pods.events(api, pod)) or "it is starting"
        lines = pods.last_words(api, pod, CONTAINER) if "keeps ending" in why else ""
        log = f"; its log: {' / '.join(lines.splitlines())}" if lines else ""
        return f"{pod['metadata']['name']}, which keeps MPS control daemons, does not run: {why}{log}"
    return ""
