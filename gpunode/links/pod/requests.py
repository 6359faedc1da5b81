"""The requests of pods that together see every free GPU of a node, two of them on one where GPUs are shared."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpunode.cluster import pods
from gpunode.cluster.api.kinds import Object
from gpunode.links.capacity.slices import CLASSES, Published
from gpunode.links.node import Node
from gpunode.links.plugin import expected
from gpunode.model import Gpu, PluginConfig

Request = tuple[str, int]  # a resource and its count


@dataclass(frozen=True, slots=True)
class Memory:
    """GPUs shared by memory: the `resource`, whose unit is `chunk` MiB (0: unknown). `known`: pods that request it will
    see every such GPU; False where it is unknown which have free memory."""

    resource: str
    chunk: int = 0
    known: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Free:
    """A node's free GPUs as requests. `waves`: requests of pods that are created together; the next wave follows once
    all earlier pods have their devices, which they keep. `rest`: further free shares by resource; a pod may request
    `several`. `packed`: the plugin allocates all shares of one GPU before those of the next.

    `offered`: units that the node offers, in use or not. `devices`: GPUs and MIG devices among them that pods can see;
    None where unknown. `users`: the pods that have some, with the count. `divided`: several pods can have parts of one
    GPU. `memory`: None where no GPU is shared by it. `parts`: resources whose GPUs several processes use at the same
    time without MPS.
    """

    waves: tuple[tuple[Request, ...], ...]
    rest: Mapping[str, int]
    several: bool
    packed: bool
    offered: int
    devices: int | None
    users: tuple[str, ...]
    divided: bool
    memory: Memory | None
    parts: Collection[str]

    @property
    def known(self) -> bool:
        """Whether the pods will see every GPU."""
        return self.memory is None or self.memory.known

    def share(self, request: Request) -> int | None:
        """MiB of a GPU's memory in this request; 0 where unknown, None where it is for another resource."""
        resource, amount = request
        return amount * self.memory.chunk if self.memory and resource == self.memory.resource else None


def free(
    node: Node,
    on_node: Sequence[Object],
    config: PluginConfig | None,
    target: "Target",
    *,
    alone: bool = False,
) -> Free:
    """What is free on a node with these pods. `config` is the plugin's; `target` has the node's GPUs. `alone`: one pod requests all
    whole GPUs, and no two pods are to share one."""
    if target.published is not None:
        return _published(target.published)
    settings = expected.find_config(config, node.labels)
    users: list[str] = []
    requests: list[Request] = []
    rest: dict[str, int] = {}
    devices: int | None = 0
    divided, parts = False, set()

    def held(resource: str) -> int:
        by_pod = _units_by_pod(on_node, resource)
        users.extend(f"{name} ({count} {resource})" for name, count in by_pod.items())
        return sum(by_pod.values())

    for resource, count in {pods.GPU: node.allocatable - node.shared, **node.shares}.items():
        left = count - held(resource)
        each = expected.each(config, node.labels, resource)
        gpus = -(-count // each) if each else None
        divided |= count > 0 and each != 1
        if each and each > 1 and settings and not settings.mps:
            parts.add(resource)
        # Unless it packs, the plugin spreads pods over GPUs: as many pods as GPUs see all, and one more shares one.
        first = left if each == 1 else min(left, (gpus or len(target.uuids) or count) + (not alone))
        whole = alone and each == 1 and first
        requests += [(resource, first)] if whole else [(resource, 1)] * first
        if each and gpus and left == count:
            # Fewer GPUs do not have so many shares.
            left = min(left, (max(gpus, len(target.uuids)) - 1) * each + 1)
        rest[resource] = max(0, left - first)
        devices = None if devices is None or gpus is None else devices + gpus
    waves, memory = [tuple(requests)], None
    if name := expected.memory(config, node.labels) or (pods.MEMORY if node.shared else ""):
        parts.add(name)
        units = node.units.get(name, 0)
        pieces = _pieces(node, units, target)
        waves, known = _with_memory(requests, name, pieces, units, held(name), alone=alone)
        memory = Memory(name, settings.memory.chunk if settings and settings.memory else 0, known)
        devices = devices + node.shared if devices is not None and node.shared else None
    return Free(
        waves=tuple(wave for wave in waves if wave),
        rest=rest,
        several=settings is not None and not settings.fail_requests_greater_than_one,
        packed=settings is not None and settings.packs(pods.GPU),
        offered=node.allocatable + sum(node.shares.values()),
        devices=devices,
        users=tuple(users),
        divided=divided or memory is not None,
        memory=memory,
        parts=parts,
    )


def _published(devices: Sequence[Published]) -> Free:
    """The same of devices that a DRA driver publishes: a request is for one of a DeviceClass."""
    left = [device for device in devices if device.kind in CLASSES and not device.users]
    return Free(
        waves=(tuple((CLASSES[device.kind], 1) for device in left),) if left else (),
        rest={},
        several=False,
        packed=False,
        offered=len(devices),
        devices=len(devices),
        users=tuple(f"{user} ({device.name})" for device in devices for user in device.users),
        divided=False,
        memory=None,
        parts=(),
    )


def next_requests(
    free: Free, left: Mapping[str, int], seen: Collection[str], uuids: Collection[str], pods: int
) -> list[Request]:
    """Requests after the waves, of the shares `left`, when `pods` have `seen` these UUIDs; [] for none.

    Where shares are packed or unevenly in use, the waves do not see all GPUs. Then one pod requests all that is left.
    Where a pod may request one share only, the number of pods doubles, or is one for each share.
    """
    some = {resource: count for resource, count in left.items() if count}
    if "" in seen:  # an image that reports no UUID, and may test only one of several
        return [(resource, 1) for resource, count in some.items() for _ in range(count)]
    if set(uuids) <= set(seen) if uuids else free.devices is not None and len(seen) >= free.devices:
        return []
    if free.several:
        return list(some.items())
    return [
        (resource, 1)
        for resource, count in some.items()
        for _ in range(count if free.packed else min(count, pods))
    ]


def _pieces(node: Node, units: int, target: "Target") -> list[int]:
    """Units of each GPU that is shared by memory; [] where unknown."""
    if sum(target.pieces) == units:
        return sorted(target.pieces, reverse=True)
    each, odd = divmod(units, node.shared) if node.shared else (0, 1)
    return [] if odd else [each] * node.shared


def _with_memory(
    requests: Sequence[Request], resource: str, pieces: Sequence[int], units: int, held: int, *, alone: bool
) -> tuple[list[tuple[Request, ...]], bool]:
    """The waves for whole GPUs, shares (`requests`) and memory, and whether they will see every GPU shared by memory.

    Where no memory is in use, each pod requests all units of one GPU, so that no two fit on one; the largest GPUs first,
    so that no pod gets a larger one than it needs. The last pod leaves one unit to one more pod: those two share a GPU, unless `alone`.
    """
    if held or not pieces:
        return [(*requests, *([(resource, 1)] if held < units else []))], False
    sizes = list(pieces)
    if sizes[-1] > 1 and not alone:
        sizes[-1] -= 1
    waves = [
        tuple((resource, size) for size, piece in zip(sizes, pieces, strict=True) if piece == same)
        for same in dict.fromkeys(pieces)
    ]
    waves[0] = (*requests, *waves[0])
    return [*waves, ((resource, 1),)] if sizes[-1] < pieces[-1] else waves, True


def _units_by_pod(on_node: Sequence[Object], resource: str) -> dict[str, int]:
    """Units of a resource by namespace and name of the pod that has them."""
    held = {
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}": pods.holds(pod, resource)
        for pod in on_node
        if not _is_leaving(pod)
    }
    return {name: count for name, count in held.items() if count}


def _is_leaving(pod: Object) -> bool:
    """Whether it is a pod of an earlier run that is being deleted: the scheduler waits for its GPU."""
    ours = pod["metadata"].get("labels", {}).get("app.kubernetes.io/name") == "gpunode-vectoradd"
    return ours and "deletionTimestamp" in pod["metadata"]


@dataclass(frozen=True, slots=True)
class Target:
    """A node and the UUIDs that its pods should see; () where unknown.

    `pieces`: units of memory of each GPU that is shared by memory; () where unknown. `published`: by a DRA driver, whose pods have
    claims; None where a device plugin serves the node.
    """

    node: str
    uuids: tuple[str, ...] = ()
    pieces: tuple[int, ...] = ()
    published: tuple[Published, ...] | None = None


def target(config: PluginConfig | None, node: str, gpus: Sequence[Gpu], labels: Mapping[str, str]) -> Target:
    """The target of a node with these labels, whose host has these GPUs."""
    return Target(node, expected.uuids(config, gpus, labels), expected.pieces(config, gpus, labels))


def published_target(node: str, devices: Sequence[Published]) -> Target:
    """The target of a node that a DRA driver serves with these devices."""
    return Target(node, tuple(device.uuid for device in devices), published=tuple(devices))
