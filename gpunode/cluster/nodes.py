"""Nodes: which one is a host, what GPUs it offers, and the labels that gpunode puts on it."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches

from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object
from gpunode.cluster.pods import GPU, MEMORY, SHARED, whole
from gpunode.cluster.refusal import HttpError
from gpunode.deviceplugin.status import ANNOTATION
from gpunode.errors import ClusterError
from gpunode.model import Host
from gpunode.wording import few

GPU_LABEL = "gpunode.dev/gpu"  # "true": the device plugin runs here
RUNTIME_LABEL = "gpunode.dev/runtime"  # "class": pods reach GPUs through RuntimeClass nvidia only
ACCELERATOR_LABEL = "accelerator"
OFFERED = ("nvidia.com/", MEMORY)
HOSTNAME = "kubernetes.io/hostname"
LISTED = 50  # images that a kubelet tells of, the largest first
# Each writer of labels has a name of its own for the API server: what it leaves out of its next
# wish is taken off, and what others set stays.
PROVISION = "gpunode"
ACCELERATOR = "gpunode-accelerator"


@dataclass(frozen=True, slots=True)
class Node:
    """A node as the API shows it. `capacity` and `allocatable` count nvidia.com/gpu and GPUs shared by memory (but one of
    the two of which nothing is allocatable while the other is offered: it is in `short`, being all ill, or left from
    another configuration, which the kubelet forgets after 5 minutes); `offers` names every resource of GPUs, shares and
    MIG devices too, of which pods can have some; memory under a name of its own is only in `units`."""

    name: str
    uid: str
    labels: Mapping[str, str]
    addresses: tuple[str, ...]
    ready: bool
    why_not_ready: str
    schedulable: bool
    taints: tuple[Mapping[str, str], ...]  # those that people set, not Kubernetes itself
    capacity: int
    allocatable: int
    shared: int  # how many of the allocatable are shared by memory
    memory: int  # units that they make together
    offers: tuple[str, ...]
    kubelet: str
    runtime: str
    units: Mapping[str, int]  # how much of each extended resource is allocatable
    # how much of each resource is counted, but not allocatable; of those in `capacity` where nothing of them is, but others are
    short: Mapping[str, int]
    counted: tuple[str, ...] = ()  # the resources that `capacity` is of
    capacities: Mapping[str, int] = field(default_factory=dict)  # of each extended resource
    applied: Mapping[str, frozenset[str]] = field(
        default_factory=dict
    )  # field manager → labels it has applied
    plugin_status: str = ""  # the annotation with the device plugin's status; "" where there is none
    images: tuple[
        str, ...
    ] = ()  # names of those that its runtime has; () where the kubelet may not tell of all
    machine_id: str = ""  # these three as the kubelet tells them, "" where it does not
    system_uuid: str = ""
    boot_id: str = ""

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

    def counting(self, resources: Collection[str]) -> Node:
        """The same, with `capacity` of these alone, where it is of any of them: more is left from another configuration."""
        counted = tuple(name for name in self.counted if name in resources)
        if not counted:
            return self
        return replace(self, counted=counted, capacity=sum(self.capacities[name] for name in counted))


def parse(item: Object) -> Node:
    """The node in a Node object."""
    meta, status = item["metadata"], item.get("status", {})
    condition: Object = next((one for one in status.get("conditions") or [] if one["type"] == "Ready"), {})
    info, images = status.get("nodeInfo") or {}, status.get("images") or []

    def count(which: str, *resources: str) -> int:
        return sum(whole((status.get(which) or {}).get(resource, 0)) for resource in resources)

    counted = [one for one in (GPU, SHARED) if count("allocatable", one)] or [GPU, SHARED]
    offers = tuple(
        name
        for name, amount in (status.get("allocatable") or {}).items()
        if name.startswith(OFFERED) and str(amount) != "0"
    )
    return Node(
        name=meta["name"],
        uid=meta["uid"],
        labels=meta.get("labels") or {},
        addresses=tuple(one["address"] for one in status.get("addresses") or []),
        ready=condition.get("status") == "True",
        why_not_ready=condition.get("message") or "its kubelet never reported",
        schedulable=not item.get("spec", {}).get("unschedulable", False),
        taints=tuple(
            one
            for one in item.get("spec", {}).get("taints") or []
            if not one["key"].startswith("node.kubernetes.io/")
        ),
        capacity=count("capacity", *counted),
        allocatable=count("allocatable", GPU, SHARED),
        shared=count("allocatable", SHARED),
        memory=count("allocatable", MEMORY),
        offers=offers,
        kubelet=info.get("kubeletVersion", ""),
        runtime=info.get("containerRuntimeVersion", ""),
        machine_id=info.get("machineID", ""),
        system_uuid=info.get("systemUUID", ""),
        boot_id=info.get("bootID", ""),
        units={
            name: whole(amount) for name, amount in (status.get("allocatable") or {}).items() if "/" in name
        },
        short={
            name: lost
            for name in status.get("capacity") or {}
            if (name.startswith("nvidia.com/") or name in (SHARED, MEMORY))
            and (name not in counted or (offers and not count("allocatable", *counted)))
            and (lost := count("capacity", name) - count("allocatable", name)) > 0
        },
        counted=tuple(one for one in counted if count("capacity", one)),
        capacities={name: count("capacity", name) for name in status.get("capacity") or {} if "/" in name},
        applied={
            entry["manager"]: frozenset(_labels(entry))
            for entry in meta.get("managedFields") or []
            if entry.get("operation") == "Apply"
        },
        plugin_status=(meta.get("annotations") or {}).get(ANNOTATION, ""),
        images=tuple(name for one in images for name in one.get("names") or [])
        if len(images) < LISTED
        else (),
    )


def _labels(entry: Object) -> list[str]:
    """The labels in an entry of managedFields."""
    fields = (entry.get("fieldsV1") or {}).get("f:metadata", {}).get("f:labels", {})
    return [name.removeprefix("f:") for name in fields if name != "."]


def every(api: Api, *, labels: str = "") -> tuple[Node, ...]:
    """All nodes of the cluster, or those with the labels."""
    return tuple(parse(item) for item in api.find("Node", labels=labels)[0])


def of(host: Host, nodes: Sequence[Node], hostname: str = "") -> Node:
    """The node that this host goes for: by `host.node`, else by its hostname (short or full; unknown: the host's name in the inventory), else by its address."""
    by_name = {node.name: node for node in nodes}
    if host.node:
        if host.node in by_name:
            return by_name[host.node]
        near = get_close_matches(host.node, by_name, 1)
        raise ClusterError(
            f"{host.name}: the cluster has no node `{host.node}`",
            hint=f"Did you mean `{near[0]}`?" if near else f"Its nodes: {_few(by_name)}.",
        )
    wanted = (hostname or host.name).lower()
    short = wanted.partition(".")[0]
    found = [
        node for node in nodes if wanted in {node.name, node.labels.get(HOSTNAME)} or node.name == short
    ] or [node for node in nodes if node.name.partition(".")[0] == wanted]
    if len(found) == 1:
        return found[0]
    found = [node for node in nodes if host.ssh.address in node.addresses]
    if len(found) == 1:
        return found[0]
    raise ClusterError(
        f"{host.name}: no node of the cluster has its hostname `{hostname or host.name}`"
        f" or its address {host.ssh.address}",
        hint="Join it to the cluster; or, if it is a node under another name, name that with `node:` in the inventory. "
        f"The nodes: {_few(by_name)}.",
    )


def label(
    api: Api,
    node: Node,
    labels: Mapping[str, str],
    *,
    writer: str = PROVISION,
    overwrite: bool = False,
    dry_run: bool = False,
) -> dict[str, tuple[str | None, str | None]]:
    """Make `labels` all that `writer` has set on the node: others' labels stay, its own earlier ones go.

    Returns label -> (before, after) of what changed. A label that somebody else holds with another value is a
    ClusterError unless `overwrite`. Of a node that has them all nothing is asked.
    """
    if holds(node, labels, writer=writer):
        return {}
    # The uid makes sure that a node deleted meanwhile is not born again as an empty object.
    wish = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": node.name, "uid": node.uid, "labels": dict(labels)},
    }
    try:
        result = api.apply(wish, manager=writer, force=overwrite, dry_run=dry_run)
    except HttpError as error:
        if error.code == 409 and "Apply failed" in error.message:
            held = [key for key in labels if node.labels.get(key, labels[key]) != labels[key]]
            said = ", ".join(f"{key}={node.labels[key]}" for key in held) or "these labels"
            off = " ".join(f"{key}-" for key in held or labels)
            other = "say --overwrite" if writer == ACCELERATOR else "take it out of the inventory"
            by = ", ".join(sorted({claim.manager for claim in error.claims}))
            raise ClusterError(
                f"{node.name}: somebody else set {said}{f' (field manager {by})' if by else ''}",
                hint=f"Take it off (`kubectl label node {node.name} {off}`), or {other}.",
            ) from error
        raise
    after = result["metadata"].get("labels") or {}
    keys = sorted({*node.labels, *after})
    return {
        key: (node.labels.get(key), after.get(key)) for key in keys if node.labels.get(key) != after.get(key)
    }


def holds(node: Node, labels: Mapping[str, str], *, writer: str = PROVISION) -> bool:
    """Whether these are all the labels that `writer` has set, and none has another value by now."""
    return node.applied.get(writer) == frozenset(labels) and labels.items() <= node.labels.items()


def lacking(node: Node, labels: Mapping[str, str]) -> dict[str, tuple[str | None, str | None]]:
    """The same for those of `labels` that the node has not, or with another value, whoever would be asked for it."""
    have = node.labels
    return {key: (have.get(key), value) for key, value in labels.items() if have.get(key) != value}


def _few(names: Collection[str]) -> str:
    return few(sorted(names), 8) or "none"
