"""What gpunode's own pods on a node say."""

from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

from .api import Lab
from .progress import wait

PLUGIN = "app.kubernetes.io/name=gpunode-device-plugin"
REGISTERED = "INFO registered with the kubelet"


def plugin_pods(lab: Lab, node: str, label: str = PLUGIN) -> list[dict[str, Any]]:
    """Without those that end."""
    query = urlencode({"labelSelector": label, "fieldSelector": f"spec.nodeName={node}"})
    pods = lab.request("GET", f"/api/v1/pods?{query}")["items"]
    return [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]


def plugin_log(lab: Lab, node: str, label: str = PLUGIN) -> str:
    """ "" while no pod runs, and while the kubelet, which restarts, answers nobody."""
    pods = [pod["metadata"] for pod in plugin_pods(lab, node, label)]
    if len(pods) != 1:
        return ""
    try:
        return str(
            lab.request("GET", f"/api/v1/namespaces/{pods[0]['namespace']}/pods/{pods[0]['name']}/log")
        )
    except HTTPError:
        return ""


def registered(lab: Lab, node: str, times: int = 1) -> None:
    """Wait until the plugin that runs now has registered so often: the node's status may still be of one before.

    A kubelet that has restarted admits no GPU pod before, though the API offers the GPUs all the time.
    """
    wait(f"the plugin on {node} to register", lambda: plugin_log(lab, node).count(REGISTERED) >= times, 60)
