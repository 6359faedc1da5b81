"""What pods have to ask for, so that together they have every GPU of a node that is free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.cluster import expected, pods
from gpunode.cluster.kinds import Object
from gpunode.cluster.nodes import Node
from gpunode.model import PluginConfig

Ask = tuple[str, int]  # a resource, and how much of it


@dataclass(frozen=True, slots=True)
class Free:
    """`asks`: one for each pod. `users` are the pods that hold GPUs, with how many. `known`: the pods that ask will see
    every GPU that is not in use; not so where GPUs are `shared` by memory and it is not known which have room left."""

    asks: tuple[Ask, ...]
    users: tuple[str, ...]
    shared: bool
    known: bool


def free(node: Node, on_node: Sequence[Object], config: PluginConfig | None) -> Free:
    """What is free on a node that has these pods. `config` is the plugin's."""
    whole, memory = (_held(on_node, resource) for resource in (pods.GPU, pods.MEMORY))
    users = [f"{name} ({count} {pods.GPU})" for name, count in whole.items()]
    users += [f"{name} ({count} {pods.MEMORY})" for name, count in memory.items()]
    asks = [(pods.GPU, 1)] * (node.allocatable - node.shared - sum(whole.values()))
    shared, known = node.shared > 0, True
    if node.shared:
        pieces = _of_memory(node, sum(memory.values()))
        known = len(pieces) == node.shared
        asks += pieces
    if named := expected.memory(config, node.labels):
        held = _held(on_node, named)
        users += [f"{name} ({count} {named})" for name, count in held.items()]
        shared, known = True, False
        asks += [(named, 1)] if sum(held.values()) < node.units.get(named, 0) else []
    for resource, count in node.shares.items():
        held = _held(on_node, resource)
        users += [f"{name} ({amount} {resource})" for name, amount in held.items()]
        asks += [(resource, 1)] * (count - sum(held.values()))
    return Free(tuple(asks), tuple(users), shared, known)


def _of_memory(node: Node, held: int) -> list[Ask]:
    """On a node whose GPUs are shared by memory, of which pods hold `held` units already."""
    each, rest = divmod(node.memory, node.shared)
    if held == 0 and rest == 0:
        return [(pods.MEMORY, each)] * node.shared
    return [(pods.MEMORY, 1)] if held < node.memory else []


def _held(on_node: Sequence[Object], resource: str) -> dict[str, int]:
    """How much of a resource each pod holds, by namespace and name."""
    held = {
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pods.holds(pod, resource)
        for pod in on_node
        if not _leaving(pod)
    }
    return {name: count for name, count in held.items() if count}


def _leaving(pod: Object) -> bool:
    """Whether it is from an earlier run and about to give its GPU back; the scheduler waits for that."""
    ours = pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "gpunode-vectoradd"
    return ours and "deletionTimestamp" in pod["metadata"]
