"""The pods of MPS control daemons, which run beside the plugin where its configuration asks for MPS."""

from __future__ import annotations

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.links.node import Node

NAME = "gpunode-mps"
CONTAINER = "mps"


def problem(api: Api, namespace: str, node: Node) -> str:
    """Why the node's pod of control daemons does not run; "" where it does, and where there is none."""
    of = f"app.kubernetes.io/name={NAME}"
    for pod in api.find("Pod", namespace, labels=of, fields=f"spec.nodeName={node.name}")[0]:
        if pods.ready(pod):
            continue
        why = pods.problem(pod, pods.events(api, pod)) or "it is starting"
        lines = pods.last_lines(api, pod, CONTAINER) if "CrashLoopBackOff" in pods.waiting(pod) else ""
        log = f"; its log: {' / '.join(lines.splitlines())}" if lines else ""
        return f"{pod['metadata']['name']}, the pod of the MPS control daemons, does not run: {why}{log}"
    return ""
