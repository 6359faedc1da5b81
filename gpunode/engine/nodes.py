"""Which nodes of the cluster the hosts are, and their labels."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from gpunode.cluster.api import AT_ONCE, Api
from gpunode.cluster.api import connect as api_of
from gpunode.cluster.api.kubeconfig import choose_context
from gpunode.engine import converge
from gpunode.engine.listener import Listener, problem
from gpunode.engine.member import Member, Members
from gpunode.engine.session import Session
from gpunode.errors import ApiConnectionLost, ClusterError, Problem
from gpunode.links.node import GPU_LABEL, RUNTIME_LABEL, Node, every, identity
from gpunode.links.node import labels as cluster_labels
from gpunode.links.node.identity import ANOTHER_MACHINE
from gpunode.links.plugin import daemonset, other_owners
from gpunode.links.plugin.configuration import warnings
from gpunode.links.plugin.deployment import Spec
from gpunode.links.plugin.link import floating
from gpunode.links.scheduler.deployment import second_serves
from gpunode.model import Cluster, Host, Inventory, PluginImage, Ssh
from gpunode.wording import Advice, Command, page, several

REGISTER_SECONDS = 90.0  # a kubelet that was just started registers its node
CONFLICT = "label-conflict"  # code: another's label is in the way

WITHOUT_PLUGIN = (
    "The cluster is left out, since the inventory names no `cluster.plugin`: no device plugin is deployed, no node is labelled "
    "and no pod is run. For the whole job add `cluster: {plugin: {archive: plugin.tar}}`; how to make that file: "
    f"{page('deviceplugin.md')}"
)


def connect(inventory: Inventory) -> Api:
    """The inventory's cluster, seen to answer. Raises ClusterError with the cause."""
    api = api_of(inventory.cluster)
    api.version()
    return api


def check_kubeconfig(inventory: Inventory) -> None:
    """Raise KubeconfigUnusable where no kubeconfig leads to the cluster that the inventory wants, before a host is asked."""
    if inventory.cluster.plugin is not None:
        choose_context(inventory.cluster)


def image_of(inventory: Inventory) -> PluginImage:
    """The plugin's image, or a refusal with the key to set."""
    if inventory.cluster.plugin is None:
        raise ClusterError(
            f"{inventory.path} names no image of the device plugin",
            hint="Set cluster.plugin.image, or cluster.plugin.archive to the file of `gpunode plugin image` that gpunode loads "
            f"onto the nodes. More: {page('deviceplugin.md')}",
        )
    return inventory.cluster.plugin


def schedulers(api: Api, inventory: Inventory) -> dict[str, str]:
    """By resource, the second scheduler that is to place pods with it, once it is there."""
    share = inventory.cluster.share
    if share is None or share.scheduler is None or not second_serves(api, inventory.cluster.namespace):
        return {}
    return {share.resource: share.scheduler.name}


def spec_of(inventory: Inventory) -> Spec:
    """The plugin as the inventory wants it, or a refusal with the key to sets image."""
    wish = inventory.cluster
    isolated = any(host.isolation for host in inventory.hosts)
    return Spec(wish.namespace, image_of(inventory), wish.plugin_config, wish.plugin_publish, isolated)


def desired_labels(host: Host) -> dict[str, str]:
    """The labels gpunode keeps on the node of a host it provisioned."""
    runtime = {RUNTIME_LABEL: "class"} if host.runtime == "class" else {}
    return {GPU_LABEL: "true", **runtime, **host.labels}


def locate(api: Api, members: Sequence[Member], *, seconds: float, notify: Callable[[str], None]) -> Members:
    """The members with their nodes, waiting for those that are not registered or not Ready yet; or with the reason why
    there is none. A member that was out before stays as it is."""
    end = time.monotonic() + seconds
    hoped = {member.host.name for member in members if member.reason is None}
    while True:
        there = every(api) if any(member.node is None and member.reason is None for member in members) else ()
        found = _distinct([_placed(member, there) for member in members])
        waiting = [one for one in found if one.host.name in hoped]
        late = [one for one in waiting if one.reason and one.reason.code != ANOTHER_MACHINE]
        late += [one for one in waiting if one.node and not one.node.ready]
        if not late or time.monotonic() >= end:
            return found
        notify(f"waiting for {', '.join(one.host.name for one in late[:5])} to be a Ready node")
        time.sleep(1)


def identify(api: Api, session: Session, notify: Callable[[str], None]) -> Members:
    """Every host with its node, for commands that need nothing else of the hosts: only those of which neither name nor
    address is a node's are asked for their own name, as `provision` asks all."""
    members = locate(api, [Member(host) for host in session.hosts], seconds=0, notify=notify)
    strangers = [member for member in members if member.node is None and not member.host.node]
    if not strangers:
        return members
    asked = {
        one.host.name: one for one in session.for_each_host(converge.probe_and_plan, strangers, plans=False)
    }
    again = [_asked(asked.get(member.host.name, member)) for member in members]
    return tuple(
        refused(member) if member.host.name in asked and member.facts else member
        for member in locate(api, again, seconds=0, notify=notify)
    )


def find_gpu_nodes(api: Api, session: Session, notify: Callable[[str], None]) -> list[Node]:
    """The nodes of the session's hosts. Hosts without one are reported, and so is that there is none at all."""
    members = identify(api, session, notify)
    for member in members:
        problem(session.listener, member.host.name, member.reason)
    found = [member.node for member in members if member.node]
    if not found:
        session.listener.note(Advice("No node has GPUs. `", Command("provision"), "` makes hosts GPU nodes."))
    return found


def refused(member: Member) -> Member:
    """The member with why its host is no node: one that is refused need not become one."""
    if (
        member.node is not None
        or member.outcome is None
        or member.outcome.problem is None
        or member.reason is None
    ):
        return member
    words = f"{member.outcome.why}; it is no node of the cluster either"
    return member.excluded(
        Problem(member.reason.code, words, fix=member.outcome.problem.fix, subject=member.host.name)
    )


def exclude_owned(found: other_owners.Owners, members: Sequence[Member]) -> Members:
    """The members; one is out where a DRA driver allocates its node's GPUs."""
    return tuple(
        member.excluded(found.reason(member.node)) if member.active and member.node else member
        for member in members
    )


def apply_labels(
    api: Api, members: Sequence[Member], owners: other_owners.Owners = other_owners.NONE
) -> Members:
    """gpunode's labels on the nodes, but those whose GPUs have another owner; a member is out where another's label is in the way."""

    def stage(member: Member) -> Member:
        if not member.active or member.node is None or owners.reason(member.node):
            return member
        wish = desired_labels(member.host)
        try:
            cluster_labels.write(api, member.node, wish)
        except ApiConnectionLost:
            raise
        except ClusterError as error:
            return member.excluded(replace(error.problem, code=CONFLICT))
        return replace(member, labels={**member.node.labels, **wish})

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return tuple(pool.map(stage, members))


def warn(
    api: Api, inventory: Inventory, members: Sequence[Member], listener: Listener, *, but: str = ""
) -> None:
    """Tell of other device plugins (`but` the one with this title), and of what the plugin's image and configuration would
    come to without a word."""
    for other in [one for one in other_owners.every(api) if one.title != but]:
        where = f"{other.title}, on {several(other.nodes, 'node')}"
        whose = f"It is {other.product.name}: {other.product.way}."
        if other.does == "configures":
            listener.note(
                f"{where}, writes the container runtime's configuration too, and writes it back after gpunode. {whose}"
            )
        elif other.does == "allocates":
            listener.note(
                f"{where}, is a DRA driver for NVIDIA GPUs. A node whose GPUs it allocates gets no device plugin of gpunode. {whose}"
            )
        else:
            listener.note(
                f"{where}, offers NVIDIA GPUs too. Where two device plugins run on a node, the one that started last wins: "
                f"remove that one first; running pods keep their GPUs. {whose}"
            )
    for node in filter(None, (member.node for member in members)):
        for label in other_owners.paused_labels(node.labels):
            listener.note(
                f"{node.name}: the GPU Operator's label {label}={other_owners.PAUSED} stays after a MIG change that failed. "
                f"`kubectl label node {node.name} {label}-` removes it."
            )
    places = [
        (member.host, member.node, {**member.node.labels, **desired_labels(member.host)})
        for member in members
        if member.node
    ]
    for words in warnings(inventory.cluster.plugin_config, places):
        listener.note(words)
    if words := floating(image_of(inventory)):
        listener.note(words)


def _placed(member: Member, there: Sequence[Node]) -> Member:
    """The member with its node among these, or with the reason why none is its."""
    if member.reason is not None or member.node is not None:
        return member
    try:
        node = identity.of(member.host, there, member.facts)
    except ClusterError as error:
        return member.excluded(replace(error.problem, code=error.problem.code or "no-node"))
    return replace(member, node=node, labels=node.labels)


def _distinct(members: Sequence[Member]) -> Members:
    """The members; hosts that claim the same node have none."""
    twice = identity.shared({member.host.name: member.node for member in members if member.node})
    return tuple(
        replace(member, node=None, reason=twice[member.host.name]) if member.host.name in twice else member
        for member in members
    )


def _asked(member: Member) -> Member:
    """A member that is to be found by its host's own name, where that could be had."""
    if member.outcome is None or member.reason is None:
        return member
    if member.facts is not None:
        return replace(member, reason=None)
    words = f"{member.reason.what}, and it could not be asked for its own name: {member.outcome.why}"
    return member.excluded(replace(member.reason, what=words))


def inventory_of_cluster(cluster: Cluster) -> Inventory:
    """An inventory for commands that ask the cluster alone. Its hosts are never dialled: each names its node.

    A cluster without a node that has gpunode's label has no hosts. Raises ClusterError where it does not answer.
    """
    asked = Inventory("", (), cluster)
    api = connect(asked)
    hosts = tuple(Host(node.name, Ssh(node.name), node=node.name) for node in every(api, labels=GPU_LABEL))
    wish = Cluster(
        cluster.kubeconfig,
        cluster.context,
        cluster.namespace,
        daemonset.image(api, cluster.namespace),
        daemonset.config(api, cluster.namespace),
    )
    return Inventory(f"cluster {api.access.context}", hosts, wish)
