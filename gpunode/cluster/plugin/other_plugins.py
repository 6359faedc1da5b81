"""Other device plugins for NVIDIA GPUs in the cluster: of two on a node, the kubelet uses the last one registered."""

from __future__ import annotations

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object, ours, title
from gpunode.errors import ClusterError

SOCKETS = "/var/lib/kubelet/device-plugins"


def every(api: Api) -> dict[str, int]:
    """Titles of their DaemonSets -> on how many nodes. Also empty where the user may not list DaemonSets."""
    try:
        found = api.find("DaemonSet")[0]
    except ClusterError:
        return {}  # only a warning depends on it
    nodes = {
        title({"kind": "DaemonSet", **one}): one.get("status", {}).get("desiredNumberScheduled", 0)
        for one in found
        if _is(one)
    }
    return {name: count for name, count in nodes.items() if count}


def _is(found: Object) -> bool:
    """Judged by the kubelet's directory, which gpu-feature-discovery and MPS daemons of the same image do not mount."""
    pod = found["spec"]["template"]["spec"]
    paths = [volume.get("hostPath", {}).get("path", "") for volume in pod.get("volumes") or []]
    names = [found["metadata"]["name"], *(container["image"] for container in pod["containers"])]
    return (
        not ours(found)
        and any(path.startswith(SOCKETS) for path in paths)
        and "nvidia" in " ".join(names).lower()
    )
