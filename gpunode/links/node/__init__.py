"""Nodes: which one is a host, and what GPUs it offers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from gpunode.cluster.api import Api, notes
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.pods import GPU, MEMORY, SHARED
from gpunode.contract.condition import ACCEPTED, TYPE, Condition
from gpunode.contract.promises import parse_quantity
from gpunode.contract.status import ANNOTATION
from gpunode.errors import ClusterError
from gpunode.links.node import cordon
from gpunode.model import Host
from gpunode.wording import few

GPU_LABEL = "gpunode.dev/gpu"  # "true": the device plugin runs here
RUNTIME_LABEL = "gpunode.dev/runtime"  # "class": pods reach GPUs through RuntimeClass nvidia only
TAINTS = "gpunode.dev/taints"  # annotation: those of the inventory that gpunode has set
ACCELERATOR_LABEL = "accelerator"
OFFERED = ("nvidia.com/", MEMORY)
HOSTNAME = "kubernetes.io/hostname"
LISTED = 50  # images in a node's status, the largest first


@dataclass(frozen=True, slots=True)
class Resource:
    """How many units of a resource the kubelet counts, and how many of them pods can have."""

    capacity: int = 0
    allocatable: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A node as the API shows it. `capacity` and `allocatable` count nvidia.com/gpu and GPUs shared by memory (but one of
    the two of which nothing is allocatable while the other is offered: it is in `short`, being all unhealthy, or left from
    another configuration, which the kubelet forgets after 5 minutes)."""

    name: str
    uid: str
    labels: Mapping[str, str]
    addresses: tuple[str, ...]
    ready: bool
    why_not_ready: str
    schedulable: bool
    taints: tuple[Mapping[str, str], ...]  # that users set, and that of a cordon of gpunode
    resources: Mapping[str, Resource]  # each extended resource
    kubelet: str
    runtime: str
    # writer → labels it has applied, by the API server's books or by its own note
    applied: Mapping[str, frozenset[str]] = field(default_factory=dict)
    noted: frozenset[str] = frozenset()  # writers with a note in the node
    own_taints: tuple[str, ...] = ()  # of the inventory, as KEY=VALUE:EFFECT, that gpunode has set
    gpu_ready: Condition | None = None  # the plugin's condition
    plugin_status: str = ""  # the annotation with the device plugin's status; "" where there is none
    accepted: str = ""  # the annotation with its GPUs' acceptance; "" where there is none
    images: tuple[str, ...] = ()  # names of those of its runtime; () where the kubelet may not report all
    machine_id: str = ""  # these three as the kubelet reports them, "" where it does not
    system_uuid: str = ""
    boot_id: str = ""
    cordoned_by: str = ""  # the run of gpunode that has cordoned it
    configured: frozenset[str] = frozenset()  # resources of the configuration in force, as far as known

    @property
    def _gpus(self) -> list[str]:
        """The resources that count GPUs."""
        return [name for name in (GPU, SHARED) if self.units.get(name)] or [GPU, SHARED]

    @property
    def counted(self) -> tuple[str, ...]:
        """The resources that `capacity` is of."""
        offered = tuple(gpu for gpu in self._gpus if self._of(gpu).capacity)
        return tuple(gpu for gpu in offered if gpu in self.configured) or offered

    @property
    def capacity(self) -> int:
        return sum(self._of(name).capacity for name in self.counted)

    @property
    def allocatable(self) -> int:
        return sum(self._of(name).allocatable for name in self.counted)

    @property
    def shared(self) -> int:
        """How many of the allocatable are shared by memory."""
        return self._of(SHARED).allocatable

    @property
    def memory(self) -> int:
        """Units that they make together."""
        return self._of(MEMORY).allocatable

    @property
    def units(self) -> Mapping[str, int]:
        """How much of each extended resource is allocatable."""
        return {name: resource.allocatable for name, resource in self.resources.items()}

    @property
    def offers(self) -> tuple[str, ...]:
        """Every resource of GPUs, shares and MIG devices too, of which pods can have some; memory under a name of its own
        is only in `units`."""
        return tuple(name for name, count in self.units.items() if name.startswith(OFFERED) and count)

    @property
    def short(self) -> Mapping[str, int]:
        """How much of each resource is counted, but not allocatable; of those that count GPUs where nothing of them is, but
        others are."""
        gpus = self._gpus
        other = bool(self.offers) and not any(self.units.get(gpu) for gpu in gpus)
        return {
            name: resource.capacity - resource.allocatable
            for name, resource in self.resources.items()
            if (name.startswith("nvidia.com/") or name in (SHARED, MEMORY))
            and (name not in gpus or other)
            and resource.capacity > resource.allocatable
        }

    @property
    def offered(self) -> str:
        """How much of each resource that pods can have, for people."""
        return ", ".join(f"{self.units[name]} {name}" for name in self.offers if name != SHARED)

    @property
    def shares(self) -> Mapping[str, int]:
        """What is allocatable of MIG devices, and of resources that shares of GPUs have been renamed to."""
        return {
            name: count
            for name, count in self.units.items()
            if name.startswith("nvidia.com/") and name != GPU
        }

    def counting(self, resources: Collection[str]) -> "Node":
        """The same, with `capacity` of these alone, where it is of any of them: more is left from another configuration."""
        return replace(self, configured=frozenset(resources))

    def _of(self, resource: str) -> Resource:
        return self.resources.get(resource, Resource())


def parse(item: Object) -> Node:
    meta, status = item["metadata"], item.get("status", {})
    condition: Object = next(
        (condition for condition in status.get("conditions") or [] if condition["type"] == "Ready"), {}
    )
    stored = notes.read(item)
    info, images = status.get("nodeInfo") or {}, status.get("images") or []
    return Node(
        name=meta["name"],
        uid=meta["uid"],
        labels=meta.get("labels") or {},
        addresses=tuple(address["address"] for address in status.get("addresses") or []),
        ready=condition.get("status") == "True",
        why_not_ready=condition.get("message") or "its kubelet never reported",
        schedulable=not item.get("spec", {}).get("unschedulable", False),
        cordoned_by=cordon.owner_of(item),
        taints=tuple(
            taint
            for taint in item.get("spec", {}).get("taints") or []
            if not taint["key"].startswith("node.kubernetes.io/")
        )
        + ((cordon.TAINT,) if cordon.owner_of(item) else ()),
        resources=_resources(status.get("capacity") or {}, status.get("allocatable") or {}),
        kubelet=info.get("kubeletVersion", ""),
        runtime=info.get("containerRuntimeVersion", ""),
        machine_id=info.get("machineID", ""),
        system_uuid=info.get("systemUUID", ""),
        boot_id=info.get("bootID", ""),
        applied={
            entry["manager"]: frozenset(_labels(entry))
            for entry in meta.get("managedFields") or []
            if entry.get("operation") == "Apply"
        }
        | {
            writer: frozenset(note.get("metadata", {}).get("labels") or {}) for writer, note in stored.items()
        },
        noted=frozenset(stored),
        own_taints=own_taints(item),
        gpu_ready=next(
            (
                Condition(entry["status"], entry.get("reason", ""), entry.get("message", ""))
                for entry in status.get("conditions") or []
                if entry["type"] == TYPE
            ),
            None,
        ),
        plugin_status=(meta.get("annotations") or {}).get(ANNOTATION, ""),
        accepted=(meta.get("annotations") or {}).get(ACCEPTED, ""),
        images=tuple(name for image in images for name in image.get("names") or [])
        if len(images) < LISTED
        else (),
    )


def own_taints(item: Object) -> tuple[str, ...]:
    """The taints of the inventory that gpunode has set, by its annotation."""
    text = (item["metadata"].get("annotations") or {}).get(TAINTS, "")
    return tuple(text.split(",")) if text else ()


def _resources(capacity: Object, allocatable: Object) -> dict[str, Resource]:
    names = [name for name in dict.fromkeys([*allocatable, *capacity]) if "/" in name]
    return {
        name: Resource(parse_quantity(capacity.get(name, 0)), parse_quantity(allocatable.get(name, 0)))
        for name in names
    }


def _labels(entry: Object) -> list[str]:
    fields = (entry.get("fieldsV1") or {}).get("f:metadata", {}).get("f:labels", {})
    return [name.removeprefix("f:") for name in fields if name != "."]


def fetch(api: Api, *, labels: str = "") -> tuple[Node, ...]:
    """All nodes of the cluster, or those with the labels."""
    return tuple(parse(item) for item in api.find("Node", labels=labels)[0])


def find(host: Host, nodes: Sequence[Node], hostname: str = "") -> Node:
    """The host's node: by `host.node`, else by its hostname (short or full; unknown: the host's name in the inventory), else by its address."""
    by_name = {node.name: node for node in nodes}
    if host.node:
        if host.node in by_name:
            return by_name[host.node]
        near = get_close_matches(host.node, by_name, 1)
        raise ClusterError(
            f"the cluster has no node `{host.node}`",
            subject=host.name,
            hint=f"Did you mean `{near[0]}`?" if near else f"Its nodes: {_few(by_name)}.",
        )
    matches = find_named(host, nodes, hostname)
    if len(matches) == 1:
        return matches[0]
    matches = [node for node in nodes if host.ssh.address in node.addresses]
    if len(matches) == 1:
        return matches[0]
    raise ClusterError(
        f"no node of the cluster has its hostname `{hostname or host.name}` or its address {host.ssh.address}",
        subject=host.name,
        hint=join(nodes),
    )


def find_named(host: Host, nodes: Sequence[Node], hostname: str = "") -> list[Node]:
    """The nodes that have the host's name, as `of` reads it."""
    full = (hostname or host.name).lower()
    short = full.partition(".")[0]
    return [
        node for node in nodes if full in {node.name, node.labels.get(HOSTNAME)} or node.name == short
    ] or [node for node in nodes if node.name.partition(".")[0] == full]


def join(nodes: Sequence[Node]) -> str:
    """What to do with a host that is none of these nodes."""
    names = _few([node.name for node in nodes])
    return (
        "Join it to the cluster; or, if it is a node under another name, name that with `node:` in the inventory. "
        f"The nodes: {names}."
    )


def _few(names: Collection[str]) -> str:
    return few(sorted(names), 8) or "none"
