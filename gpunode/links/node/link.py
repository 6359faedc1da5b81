"""The node: the host is registered as it, Ready and schedulable."""

from __future__ import annotations

from gpunode.errors import Problem
from gpunode.links.node import Node
from gpunode.links.node.identity import ANOTHER_MACHINE
from gpunode.model import Verdict
from gpunode.wording import lines


def judge_node(node: Node) -> Verdict:
    """The node is registered, Ready and schedulable."""
    if not node.ready:
        return Verdict(
            "node",
            "broken",
            f"{node.name} is not Ready",
            node.why_not_ready,
            f"kubectl describe node {node.name}",
        )
    if not node.schedulable:
        return Verdict(
            "node",
            "broken",
            f"{node.name} is cordoned",
            "no pod is scheduled on it",
            f"kubectl uncordon {node.name}",
        )
    return Verdict("node", "ok", f"{node.name} is Ready, kubelet {node.kubelet}, {node.runtime}")


def judge_missing(why: Problem) -> Verdict:
    """The host is not a node of the cluster, or its node is another machine."""
    if why.code == ANOTHER_MACHINE:
        return Verdict("node", "broken", "its node is another machine's", why.what, why.fix)
    fix = lines((why.fix, "If the kubelet has not joined, see `journalctl -u kubelet` on the host."), " ")
    return Verdict("node", "broken", "the cluster has no such node", why.what, fix)
