"""The taint of nodes whose GPUs are not proven: pods that do not tolerate it are not scheduled there. Each carries its run."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.links.kubelet.registration import JOINING, UNVERIFIED
from gpunode.links.node import Node, cordon

EFFECT = "NoSchedule"
OWN = re.compile(rf"{JOINING}|\d{{8}}T\d{{6}}Z-[0-9a-f]{{4}}")  # or a run's; another value is a user's


def run_of(node: Node) -> str:
    """The value of gpunode's taint on this node: a run, or JOINING; "" if there is none."""
    return next((taint["value"] for taint in node.taints if _is_own(taint)), "")


def text(value: str) -> str:
    """The taint as kubectl and kubelets write it."""
    return f"{UNVERIFIED}={value}:{EFFECT}"


def hold(api: Api, name: str, run: str) -> Object | None:
    """Taint the node for this run, or take over the taint of an earlier run or of the kubelet; the node afterwards.

    None if the run has it already, or a user has set the taint. Raises ClusterError if the node is gone.
    """

    def change(node: Object) -> Object | None:
        taints = node.get("spec", {}).get("taints") or []
        present = [taint for taint in taints if taint["key"] == UNVERIFIED and taint["effect"] == EFFECT]
        if any(taint.get("value") == run or not _is_own(taint) for taint in present):
            return None
        others = [taint for taint in taints if taint not in present]
        return {"spec": {"taints": [*others, {"key": UNVERIFIED, "value": run, "effect": EFFECT}]}}

    return cordon.change_node(api, name, change)


def release(api: Api, name: str, run: str) -> None:
    """Remove the node's taint if it is this run's."""

    def change(node: Object) -> Object | None:
        taints = node.get("spec", {}).get("taints") or []
        left = [taint for taint in taints if not (_is_own(taint) and taint["value"] == run)]
        return {"spec": {"taints": left}} if len(left) < len(taints) else None

    cordon.change_node(api, name, change)


def _is_own(taint: Mapping[str, str]) -> bool:
    ours = taint["key"] == UNVERIFIED and taint["effect"] == EFFECT
    return ours and bool(OWN.fullmatch(taint.get("value", "")))
