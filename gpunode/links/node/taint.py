"""Taints of nodes: gpunode's own until the GPUs are proven, which carries its run, and those of the inventory.

The API server knows one owner of all taints together. So an annotation has those of the inventory that gpunode has set.
"""

import re
from collections.abc import Mapping, Sequence

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.errors import ClusterError
from gpunode.links.kubelet.registration import JOINING, UNVERIFIED
from gpunode.links.node import TAINTS, Node, cordon, own_taints

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


def release(api: Api, name: str, run: str, earlier: str = "") -> None:
    """Remove the node's taint if it is this run's, or make it that of the `earlier` run again."""

    def change(node: Object) -> Object | None:
        taints = node.get("spec", {}).get("taints") or []
        left = [taint for taint in taints if not (_is_own(taint) and taint["value"] == run)]
        back = [{"key": UNVERIFIED, "value": earlier, "effect": EFFECT}] if earlier else []
        return {"spec": {"taints": [*left, *back]}} if len(left) < len(taints) else None

    cordon.change_node(api, name, change)


def compare(node: Node, desired: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The inventory's taints to add to the node, and those that gpunode set and that go. Raises ClusterError for a taint that
    another client has set to another value."""
    return _compare(node.name, [_text(taint) for taint in node.taints], node.own_taints, desired)


def write(api: Api, node: Node, desired: Sequence[str]) -> None:
    """Make these all the taints that gpunode keeps on the node by the inventory; others' stay. Raises ClusterError."""
    if not any(compare(node, desired)):
        return

    def change(live: Object) -> Object | None:
        taints = live.get("spec", {}).get("taints") or []
        own = own_taints(live)
        added, gone = _compare(node.name, [_text(taint) for taint in taints], own, desired)
        if not (added or gone):
            return None
        left = [taint for taint in taints if _text(taint) not in gone]
        noted = ",".join(dict.fromkeys([*(taint for taint in own if taint not in gone), *added]))
        return {
            "metadata": {"annotations": {TAINTS: noted or None}},
            "spec": {"taints": [*left, *map(_parse, added)]},
        }

    cordon.change_node(api, node.name, change)


def _compare(
    name: str, live: Sequence[str], own: Sequence[str], desired: Sequence[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    gone = tuple(taint for taint in own if taint not in desired)
    added = tuple(taint for taint in desired if taint not in live)
    others = {_place(taint): taint for taint in live if taint not in gone}
    for taint in added:
        if other := others.get(_place(taint)):
            raise ClusterError(
                f"another client set the taint {other}, the inventory has {taint}",
                subject=name,
                hint=f"Remove it (`kubectl taint node {name} {other}-`), or remove it from the inventory.",
            )
    return added, gone


def _place(taint: str) -> tuple[str, str]:
    """Key and effect, of which a node has one taint."""
    both, _, effect = taint.rpartition(":")
    return both.partition("=")[0], effect


def _text(taint: Mapping[str, str]) -> str:
    value = taint.get("value")
    return f"{taint['key']}{f'={value}' if value else ''}:{taint['effect']}"


def _parse(taint: str) -> Object:
    both, _, effect = taint.rpartition(":")
    key, _, value = both.partition("=")
    return {"key": key, **({"value": value} if value else {}), "effect": effect}


def _is_own(taint: Mapping[str, str]) -> bool:
    ours = taint["key"] == UNVERIFIED and taint["effect"] == EFFECT
    return ours and bool(OWN.fullmatch(taint.get("value", "")))
