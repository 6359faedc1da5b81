"""What would change in the cluster: shown before it is accepted, and by a drift check."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gpunode.cluster import difference, identity, images, plugin, refusal
from gpunode.cluster import nodes as cluster_nodes
from gpunode.cluster.api import Api
from gpunode.cluster.difference import Difference
from gpunode.cluster.nodes import Node
from gpunode.errors import ClusterError
from gpunode.model import Facts, Host, Inventory
from gpunode.rollout import nodes
from gpunode.rollout.listener import Listener
from gpunode.wording import few

FEW = 2  # objects that a note names
NAMED = 5  # nodes that it names


@dataclass(frozen=True, slots=True)
class Planned:
    """What of the cluster waits: how many objects change, nodes among them, and hosts whose labels would be refused."""

    objects: int
    conflicts: nodes.Troubles


def plan(
    api: Api,
    inventory: Inventory,
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    listener: Listener,
    *,
    diff: bool | None = None,
    strict: bool = True,
) -> Planned:
    """Show what the cluster side would change, as `show` does, where the plugin's image will be on these hosts; and which
    of them are no nodes yet."""
    found, missing = nodes.find(api, hosts, facts, seconds=0, tell=lambda _: None)
    planned = show(api, inventory, hosts, found, listener, diff=diff, strict=strict, loaded=True)
    mistaken = {host: error for host, error in missing.items() if isinstance(error, identity.Mistaken)}
    for host, error in mistaken.items():
        listener.problem(error, host)
    if absent := [host for host in missing if host not in mistaken]:
        listener.note(
            f"{few(absent, NAMED)}: no node of the cluster yet. Labels and the device plugin come with `gpunode provision` once "
            "it is; if it is one under another name, say so with `node:` in the inventory."
        )
    return Planned(planned.objects, {**planned.conflicts, **mistaken})


def show(
    api: Api,
    inventory: Inventory,
    hosts: Sequence[Host],
    found: Mapping[str, Node],
    listener: Listener,
    *,
    diff: bool | None = None,
    strict: bool = True,
    loaded: bool = False,
) -> Planned:
    """Show what deploying the plugin on the nodes would change. `diff`: with what is new or removed whole, or (False)
    without any diff. Not `strict`: also for a user who may look, and not change anything. `loaded`: its image will be on
    these nodes."""
    wish = inventory.cluster
    objects = plugin.plan(
        api, wish.namespace, nodes.image_of(inventory), wish.plugin_config, wish.plugin_voice, strict=strict
    )
    nodes.warn(api, inventory, hosts, found, listener)
    _imageless(api, inventory, found, listener, loaded=loaded)
    labels, conflicts = _labels(api, hosts, found, strict=strict)
    changes = [one for one in (*objects, *labels) if one.action not in ("same", "foreign")]
    listener.cluster(api.access.context, changes, diff=diff)
    _untried([*objects, *labels], listener)
    for host, error in conflicts.items():
        listener.problem(error, host)
    return Planned(len(changes), conflicts)


def _imageless(
    api: Api, inventory: Inventory, found: Mapping[str, Node], listener: Listener, *, loaded: bool
) -> None:
    """Tell of nodes on which the plugin would end: its DaemonSet is one for all nodes, those of other hosts too."""
    image, here = nodes.image_of(inventory), {node.name: node for node in found.values()}
    every = {
        node.name: node for node in cluster_nodes.every(api, labels=f"{cluster_nodes.GPU_LABEL}=true")
    } | here
    places = [node for name, node in every.items() if not (loaded and name in here)]
    without = images.unloaded(api, inventory.cluster.namespace, image, places)
    if without:
        listener.note(
            f"{few(without, NAMED)}: {image.reference} is not there, as far as the kubelet tells. The plugin's pods "
            "would be replaced by some that cannot start, and no GPU be offered. `gpunode provision` of these hosts loads it."
        )


def _labels(
    api: Api, hosts: Sequence[Host], found: Mapping[str, Node], *, strict: bool
) -> tuple[list[Difference], nodes.Troubles]:
    """What `label` would do, node by node; and host → why it would be refused."""
    would: list[Difference] = []
    conflicts: nodes.Troubles = {}
    untried = ""  # why no node can be asked about: what one may do to a node one may do to all
    for host in hosts:
        node, wish = found.get(host.name), nodes.wished(host)
        if node is None:
            continue
        if not untried or cluster_nodes.holds(node, wish):
            try:
                changes = cluster_nodes.label(api, node, wish, dry_run=True)
                would.append(difference.labelled(node.name, changes))
                continue
            except ClusterError as error:
                untried = refusal.excused(error, strict=strict)
                if not untried:
                    conflicts[host.name] = error
                    continue
        would.append(difference.labelled(node.name, cluster_nodes.lacking(node, wish), untried))
    return would, conflicts


def _untried(would: Sequence[Difference], listener: Listener) -> None:
    """Tell of which objects the API server could not say what would become of them."""
    reasons: dict[str, list[Difference]] = {}
    for one in would:
        if one.untried:
            reasons.setdefault(one.untried, []).append(one)
    for reason, these in reasons.items():
        what = ", ".join(one.what for one in these) if len(these) <= FEW else f"{len(these)} objects"
        there = any(one.action != "created" for one in these)
        rest = " What gpunode sets was compared with what is there; more is not known." if there else ""
        listener.note(f"The API server could not try {what}: {reason}.{rest}")
