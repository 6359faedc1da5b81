"""What would change in the cluster: shown before it is accepted, and by a drift check."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gpunode.cluster import admission as trial
from gpunode.cluster import pods
from gpunode.cluster.api import AT_ONCE, Api, refusal
from gpunode.cluster.api.kinds import Object, title
from gpunode.cluster.objects import apply, difference
from gpunode.cluster.objects.difference import Difference
from gpunode.engine import impact, nodes
from gpunode.engine.listener import Listener, problem
from gpunode.engine.member import Member, Members
from gpunode.errors import ClusterError
from gpunode.links import node as cluster_nodes
from gpunode.links import plugin
from gpunode.links.node import labels
from gpunode.links.node.identity import ANOTHER_MACHINE
from gpunode.links.plugin import configuration, daemonset, expected, other_owners
from gpunode.links.plugin.link import unloaded
from gpunode.links.pod.run_pod import on_node
from gpunode.model import Host, Inventory
from gpunode.wording import Advice, Command, few, page

FEW = 2  # objects that a note names
NAMED = 5  # nodes that it names
PROOF = "vectoradd"


@dataclass(frozen=True, slots=True)
class Planned:
    """What of the cluster waits: how many objects change, nodes and `replaced` pods among them; and the members, out where another's label
    is in the way, or another owner has the GPUs."""

    objects: int
    members: Members
    obstructed: tuple[str, ...] = ()  # pods that the cluster would refuse
    replaced: int = 0
    imageless: tuple[str, ...] = ()  # nodes, the members' or others, without the plugin's image

    @property
    def conflicts(self) -> Members:
        """Those whose labels would be refused, whose node is another machine, or whose GPUs have another owner."""
        codes = (nodes.CONFLICT, ANOTHER_MACHINE, other_owners.OTHER_OWNER)
        return tuple(member for member in self.members if member.reason and member.reason.code in codes)


def plan(
    api: Api,
    inventory: Inventory,
    members: Sequence[Member],
    listener: Listener,
    *,
    diff: bool | None = None,
    strict: bool = True,
    order: Sequence[Collection[Host]] = (),
) -> Planned:
    """Show what the cluster side would change, as `show` does, where the plugin's image will be on these hosts; and which
    of them are no nodes yet. `order`: the batches, each proven at a time."""
    found = nodes.locate(api, members, seconds=0, notify=lambda _: None)
    planned = show(api, inventory, found, listener, diff=diff, strict=strict, loaded=True, order=order)
    missing = [one for one in found if one.node is None and one.reason is not None]
    for member in missing:
        if member.reason and member.reason.code == ANOTHER_MACHINE:
            problem(listener, member.host.name, member.reason)
    absent = [one for one in missing if one.reason and one.reason.code != ANOTHER_MACHINE]
    stopped = [one.host.name for one in absent if _kubelet_starts(one)]
    if stopped:
        listener.note(
            f"{few(stopped, NAMED)}: no node of the cluster yet, since no kubelet runs there. The plan starts it; the same "
            "run then labels the node and brings the device plugin."
        )
    strange = [one.host.name for one in absent if not _kubelet_starts(one)]
    if strange:
        listener.note(
            Advice(
                f"{few(strange, NAMED)}: no node of the cluster yet. Labels and the device plugin come with `",
                Command("provision"),
                "` once it is; if it is one under another name, say so with `node:` in the inventory.",
            )
        )
    return planned


def _kubelet_starts(member: Member) -> bool:
    """Whether the host's kubelet does not run, and its plan starts it."""
    kubelet = member.facts.kubelet if member.facts else None
    plan = member.outcome.plan if member.outcome else None
    return bool(
        kubelet
        and not kubelet.arguments
        and plan
        and any(step.step == "kubelet" and step.changes for step in plan.steps)
    )


def show(
    api: Api,
    inventory: Inventory,
    members: Sequence[Member],
    listener: Listener,
    *,
    diff: bool | None = None,
    strict: bool = True,
    loaded: bool = False,
    order: Sequence[Collection[Host]] = (),
    other: Object | None = None,
) -> Planned:
    """Show what deploying the plugin on the members' nodes would change. `diff`: with what is new or removed whole, or
    (False) without any diff. Not `strict`: also for a user who may look, and not change anything. `loaded`: its image will
    be on these nodes. `other`: the DaemonSet that it replaces."""
    spec = nodes.spec_of(inventory)
    objects = plugin.plan(api, spec, strict=strict, notify=listener.note)
    nodes.warn(api, inventory, members, listener, but=title(other) if other else "")
    owners = other_owners.dra_owners(api)
    if owners.unknown:
        listener.note(
            f"Whether a DRA driver allocates the GPUs of these nodes is not known: {owners.unknown}."
        )
    members = nodes.exclude_owned(owners, members)
    _reconfigured(api, inventory, members, listener)
    imageless = _imageless(api, inventory, members, listener, loaded=loaded)
    tried = _tried(api, members, strict=strict)
    would = [
        *([difference.removed(other)] if other else []),
        *objects,
        *(change for _, change in tried if change is not None),
    ]
    outdated = _replaced(api, spec.namespace, members, order)
    would += outdated
    changes = [one for one in would if one.action not in ("same", "foreign")]
    listener.cluster(api.access.context, changes, diff=diff)
    _untried(would, listener)
    if words := apply.unguarded(api, spec.manifests, changes):
        listener.note(words)
    obstructed = _obstacles(api, spec, objects, members, listener)
    for one, _ in tried:
        if one.node is not None:
            problem(listener, one.host.name, one.reason)
    return Planned(len(changes), tuple(one for one, _ in tried), obstructed, len(outdated), imageless)


def _replaced(
    api: Api, namespace: str, members: Sequence[Member], order: Sequence[Collection[Host]]
) -> list[Difference]:
    """The plugin's pods that `bring_up` replaces, since the hosts' plans outdate their containers."""
    worked = {host.name for batch in order for host in batch}
    changed = [
        member.node.name
        for member in members
        if member.node and member.host.name in worked and impact.outdate(member.changes, member.facts)
    ]
    found = plugin.pods_on(api, namespace, changed) if changed else []
    return [difference.replaced(pod, daemonset.place(pod)) for pod in found]


def _reconfigured(api: Api, inventory: Inventory, members: Sequence[Member], listener: Listener) -> None:
    """Report what another sharing of GPUs means for the nodes, equal ones together. The configuration is the whole cluster's,
    so nodes beside the members' are named, too."""
    wish = inventory.cluster
    if daemonset.image(api, wish.namespace) is None:
        return
    before = daemonset.config(api, wish.namespace)
    wished = {member.node.name: nodes.desired_labels(member.host) for member in members if member.node}
    found: dict[str, list[str]] = {}
    outside: list[str] = []
    for node in _with_plugin(api, members).values():
        labels_of = {**node.labels, **wished.get(node.name, {})}
        words = configuration.meaning(before, wish.plugin_config, labels_of, node.capacity)
        found.setdefault(words, []).append(node.name)
        if node.name not in wished and configuration.differ(before, wish.plugin_config, labels_of):
            outside.append(node.name)
    for words, names in found.items():
        if words:
            each = ", each node" if len(names) > 1 else ""
            listener.note(f"{few(names, NAMED)}{each}: {words}. {configuration.GIVEN}")
    if outside:
        listener.note(
            "The plugin's configuration is one for the whole cluster. It reaches nodes that are not among this command's "
            f"hosts, whatever --limit names: {', '.join(outside)}. To change only some nodes, give them a configuration of "
            f"their own: `cluster.plugin.configs` in {page('sharing.md')}"
        )


def _obstacles(
    api: Api,
    spec: plugin.Spec,
    objects: Sequence[Difference],
    members: Sequence[Member],
    listener: Listener,
) -> tuple[str, ...]:
    """Tell what of the cluster's own would not admit the plugin's pods, or one that proves a GPU; the pods that it would not."""
    node = next((member.node for member in members if member.node), None)
    proofs = []
    if node:
        resource = expected.memory(spec.config, node.labels) or pods.GPU
        proofs = [
            on_node(
                "vectoradd.yaml.j2",
                PROOF,
                node,
                namespace=spec.namespace,
                image=spec.image,
                seconds=60.0,
                resource=resource,
                amount=1,
            )
        ]
    found = trial.try_pods(api, spec.manifests, objects, proofs)
    for one in found:
        if one.reason:
            words = f"{one.what} would not be admitted: {one.reason.what}"
            listener.problem(replace(one.reason, what=words))
        else:
            listener.note(
                f"The API server could not try {one.what}: {one.untried}. Whether they are admitted shows when they are made."
            )
    return tuple(one.what for one in found if one.reason)


def _with_plugin(api: Api, members: Sequence[Member]) -> dict[str, cluster_nodes.Node]:
    """The nodes on which the plugin is or will be, by name; those of the members first."""
    here = {member.node.name: member.node for member in members if member.node}
    every = cluster_nodes.every(api, labels=f"{cluster_nodes.GPU_LABEL}=true")
    return here | {node.name: node for node in every if node.name not in here}


def _imageless(
    api: Api, inventory: Inventory, members: Sequence[Member], listener: Listener, *, loaded: bool
) -> tuple[str, ...]:
    """Tell of nodes on which the plugin would end: its DaemonSet is one for all nodes, those of other hosts too."""
    image, here = nodes.image_of(inventory), {member.node.name for member in members if member.node}
    places = [node for name, node in _with_plugin(api, members).items() if not (loaded and name in here)]
    without = unloaded(api, inventory.cluster.namespace, image, places)
    if without:
        listener.note(
            Advice(
                f"{few(without, NAMED)}: {image.reference} is not there, as far as the kubelet reports. The plugin's pods "
                "would be replaced by some that cannot start, and no GPU be offered. `",
                Command("provision"),
                "` of these hosts loads it.",
            )
        )
    return tuple(without)


def _tried(api: Api, members: Sequence[Member], *, strict: bool) -> list[tuple[Member, Difference | None]]:
    """Each member with what `labelled` would do to its node; a member is out where it would be refused.

    The first that has to be asked about is asked alone: what a user may not try on a node, that user may try on none.
    """

    def tried(member: Member, untried: str = "") -> tuple[Member, Difference | None]:
        if not member.active or member.node is None:
            return member, None
        wish = nodes.desired_labels(member.host)
        if not untried or labels.holds(member.node, wish):
            try:
                changes = labels.write(api, member.node, wish, dry_run=True)
                return member, difference.labelled(member.node.name, changes)
            except ClusterError as error:
                untried = refusal.why_untried(error, strict=strict)
                if not untried:
                    return member.excluded(replace(error.problem, code=nodes.CONFLICT)), None
        return member, difference.labelled(member.node.name, labels.lacking(member.node, wish), untried)

    alone = 1 + next((number for number, one in enumerate(members) if _to_ask(one)), len(members))
    done = [tried(member) for member in members[:alone]]
    untried = next((change.untried for _, change in done if change and change.untried), "")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return [*done, *pool.map(lambda one: tried(one, untried), members[alone:])]


def _to_ask(member: Member) -> bool:
    """Whether the API server has to say what becomes of the node: one that has its labels needs no request."""
    return (
        member.active
        and member.node is not None
        and not labels.holds(member.node, nodes.desired_labels(member.host))
    )


def _untried(would: Sequence[Difference], listener: Listener) -> None:
    """Report the objects for which the API server rejected the dry run."""
    reasons: dict[str, list[Difference]] = {}
    for one in would:
        if one.untried:
            reasons.setdefault(one.untried, []).append(one)
    for reason, these in reasons.items():
        what = ", ".join(one.what for one in these) if len(these) <= FEW else f"{len(these)} objects"
        there = any(one.action != "created" for one in these)
        rest = " Only fields that gpunode sets were compared with the current ones." if there else ""
        listener.note(f"The API server could not try {what}: {reason}.{rest}")
