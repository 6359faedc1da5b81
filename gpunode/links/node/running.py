"""What a node's kubelet goes by, as it reports it itself: /configz, through the API server's node proxy."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import quote

from gpunode.cluster.api import Api
from gpunode.errors import ClusterError


def gates(api: Api, node: str) -> Mapping[str, bool] | str:
    """The feature gates that its arguments and its configuration set, wherever that is; else why they are not known:
    `get` on `nodes/proxy` is a right that few users have."""
    try:
        status, text = api.health(f"/api/v1/nodes/{quote(node)}/proxy/configz")
    except ClusterError as error:
        return error.message.partition("\n")[0]
    if status in (401, 403):
        return "this user may not `get` `nodes/proxy`, by which the kubelet is asked"
    try:
        answer = json.loads(text) if status == 200 else {}
        found = answer["kubeletconfig" if "kubeletconfig" in answer else "componentconfig"]
        return {str(name): state is True for name, state in (found.get("featureGates") or {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the kubelet answers /configz without its configuration (HTTP {status})"
