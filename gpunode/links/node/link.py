"""The node: the host is registered as it, Ready and schedulable; and the feature gates that its kubelet runs with."""

import json
from collections.abc import Mapping
from urllib.parse import quote

from gpunode.cluster.api import Api
from gpunode.errors import ClusterError, Problem
from gpunode.links.node import Node, taint
from gpunode.links.node.cordon import FOLLOW
from gpunode.links.node.identity import ANOTHER_MACHINE
from gpunode.model import Verdict
from gpunode.wording import advise, lines


def judge_node(node: Node, *, cordoned: bool = False, unproven: bool = False) -> Verdict:
    """The node is registered, Ready and schedulable. `cordoned`: it may be cordoned now. `unproven`: it may be tainted until its
    proof."""
    if not node.ready:
        return Verdict.broken(
            "node",
            f"{node.name} is not Ready",
            node.why_not_ready,
            f"kubectl describe node {node.name}",
        )
    if not node.schedulable and not cordoned:
        return Verdict.broken(
            "node",
            f"{node.name} is cordoned",
            f"{node.cordoned_by and f'by gpunode, {node.cordoned_by}: '}no pod is scheduled on it",
            FOLLOW if node.cordoned_by else f"kubectl uncordon {node.name}",
        )
    if (run := taint.run_of(node)) and not unproven:
        return Verdict.broken(
            "node",
            f"{node.name} is tainted until its GPUs are verified",
            f"{taint.text(run)} keeps pods away",
            advise("`gpunode provision` verifies them and removes the taint."),
            "unverified",
        )
    return Verdict.ok("node", f"{node.name} is Ready, kubelet {node.kubelet}, {node.runtime}")


def judge_missing(why: Problem) -> Verdict:
    """The host is not a node of the cluster, or its node is another machine."""
    if why.code == ANOTHER_MACHINE:
        return Verdict.broken("node", "its node is another machine's", why.what, why.fix, why.code)
    fix = lines((why.fix, "If the kubelet has not joined, see `journalctl -u kubelet` on the host."), " ")
    return Verdict.broken("node", "the cluster has no such node", why.what, fix, why.code)


def read_gates(api: Api, node: str) -> Mapping[str, bool] | str:
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
        config = answer["kubeletconfig" if "kubeletconfig" in answer else "componentconfig"]
        return {str(name): state is True for name, state in (config.get("featureGates") or {}).items()}
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"the kubelet answers /configz without its configuration (HTTP {status})"
