"""What pods have to ask for, so that together they see every GPU of a node that has room, and share one."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpunode.cluster import expected, pods
from gpunode.cluster.kinds import Object
from gpunode.cluster.nodes import Node
from gpunode.cluster.results import Target
from gpunode.model import PluginConfig

Ask = tuple[str, int]  # a resource, and how much of it


@dataclass(frozen=True, slots=True)
class Free:
    """`waves`: the asks of pods that go together, each wave once all pods before it have what they asked for, and keep it.
    Besides them `rest` of shares is free, of which one pod may ask for several where `several`; where they are `packed`, the
    plugin gives all of one GPU before those of the next.

    `offered` is what the node offers, in use or not, and `devices` how many GPUs and MIG devices pods can see of it; None
    where that is not known. `users`: the pods that hold some, with how many. `divided`: several pods can have a part of one
    GPU. `memory`: the resource by which GPUs are shared by memory, "" where they are not, of which a unit is `chunk` MiB (0:
    not known). There, `known`: the pods that ask will see every GPU; not so where it is not known which have room left.
    `parts`: the resources of which several processes are to use one GPU at the same time, each by itself.
    """

    waves: tuple[tuple[Ask, ...], ...]
    rest: Mapping[str, int]
    several: bool
    packed: bool
    offered: int
    devices: int | None
    users: tuple[str, ...]
    divided: bool
    memory: str
    chunk: int
    known: bool
    parts: Collection[str]

    def share(self, ask: Ask) -> int | None:
        """The MiB of a GPU's memory that a pod asks for by this; 0 where that is not known, None where it asks for none."""
        resource, amount = ask
        return amount * self.chunk if resource == self.memory else None


def free(node: Node, on_node: Sequence[Object], config: PluginConfig | None, target: Target) -> Free:
    """What is free on a node that has these pods. `config` is the plugin's; `target` what is known of the node's GPUs."""
    settings = expected.in_force(config, node.labels)
    users: list[str] = []
    asks: list[Ask] = []
    rest: dict[str, int] = {}
    devices: int | None = 0
    divided, parts = False, set()

    def held(resource: str) -> int:
        found = _held(on_node, resource)
        users.extend(f"{name} ({count} {resource})" for name, count in found.items())
        return sum(found.values())

    for resource, count in {pods.GPU: node.allocatable - node.shared, **node.shares}.items():
        left = count - held(resource)
        each = expected.each(config, node.labels, resource)
        there = -(-count // each) if each else None
        divided |= count > 0 and each != 1
        if each and each > 1 and settings and not settings.mps:
            parts.add(resource)
        # The plugin gives a share of another GPU to each pod unless it is told to pack them: these will see all, and by
        # one more than there are GPUs two share one.
        first = left if each == 1 else min(left, (there or len(target.uuids) or count) + 1)
        asks += [(resource, 1)] * first
        if each and there and left == count:
            # So many cannot all be of fewer GPUs.
            left = min(left, (max(there, len(target.uuids)) - 1) * each + 1)
        rest[resource] = max(0, left - first)
        devices = None if devices is None or there is None else devices + there
    memory = expected.memory(config, node.labels) or (pods.MEMORY if node.shared else "")
    known, waves = True, [tuple(asks)]
    if memory:
        parts.add(memory)
        units = node.units.get(memory, 0)
        waves, known = _with_memory(asks, memory, _pieces(node, units, target), units, held(memory))
        devices = devices + node.shared if devices is not None and node.shared else None
    return Free(
        tuple(wave for wave in waves if wave),
        rest,
        settings is not None and not settings.fail_requests_greater_than_one,
        settings is not None and settings.packs(pods.GPU),
        node.allocatable + sum(node.shares.values()),
        devices,
        tuple(users),
        divided or bool(memory),
        memory,
        settings.memory.chunk if settings and settings.memory else 0,
        known,
        parts,
    )


def more(
    free: Free, left: Mapping[str, int], seen: Collection[str], wanted: Collection[str], pods: int
) -> list[Ask]:
    """What to ask for after the waves, of the shares that are `left`, when `pods` have `seen` these; [] if that is all.

    Where shares are packed, or what others hold is not spread evenly, some GPUs are not seen at first. So one pod asks for
    all that is left. Where it may have one share only, there are as many pods as there are already, or one for each.
    """
    some = {resource: count for resource, count in left.items() if count}
    if "" in seen:  # by an image that does not tell which GPU it had, and may try but one of several
        return [(resource, 1) for resource, count in some.items() for _ in range(count)]
    if set(wanted) <= set(seen) if wanted else free.devices is not None and len(seen) >= free.devices:
        return []
    if free.several:
        return list(some.items())
    return [
        (resource, 1)
        for resource, count in some.items()
        for _ in range(count if free.packed else min(count, pods))
    ]


def _pieces(node: Node, units: int, target: Target) -> list[int]:
    """Units of each GPU that is shared by memory; [] where they are not known."""
    if sum(target.pieces) == units:
        return sorted(target.pieces, reverse=True)
    each, odd = divmod(units, node.shared) if node.shared else (0, 1)
    return [] if odd else [each] * node.shared


def _with_memory(
    asks: Sequence[Ask], resource: str, pieces: Sequence[int], units: int, held: int
) -> tuple[list[tuple[Ask, ...]], bool]:
    """The waves of pods for whole GPUs, shares (`asks`) and memory, and whether they will see every GPU shared by it.

    Where nobody has any, each pod asks for as much as one GPU has, so that no two fit on one; the largest GPUs first,
    so that no pod takes a larger one than it needs. The last leaves one unit, which a pod more gets: those two share it.
    """
    if held or not pieces:
        return [(*asks, *([(resource, 1)] if held < units else []))], False
    sizes = list(pieces)
    if sizes[-1] > 1:
        sizes[-1] -= 1
    waves = [
        tuple((resource, size) for size, piece in zip(sizes, pieces, strict=True) if piece == same)
        for same in dict.fromkeys(pieces)
    ]
    waves[0] = (*asks, *waves[0])
    return [*waves, ((resource, 1),)] if sizes[-1] < pieces[-1] else waves, True


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
