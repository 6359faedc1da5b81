"""Which nodes of the cluster the hosts are, and their labels."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from gpunode.acceptance.stamp import read_stamp
from gpunode.cluster import rights
from gpunode.cluster.api import Api, side_by_side
from gpunode.cluster.api import connect as api_of
from gpunode.cluster.api.kubeconfig import choose_context
from gpunode.cluster.api.refusal import FORBIDDEN, GRANT
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects.apply import fit
from gpunode.contract.condition import ACCEPTED
from gpunode.engine import converge
from gpunode.engine.member import Member, Members
from gpunode.engine.reporter import Reporter, report_reason
from gpunode.engine.session import Session
from gpunode.errors import NO_RIGHTS, ApiConnectionLost, ClusterError, HttpError, Problem
from gpunode.links.capacity import slices
from gpunode.links.node import GPU_LABEL, RUNTIME_LABEL, TAINTS, Node, drain, fetch, identity, taint
from gpunode.links.node import labels as cluster_labels
from gpunode.links.node.identity import ANOTHER_MACHINE
from gpunode.links.plugin import daemonset, expected, features, other_owners
from gpunode.links.plugin.configuration import warnings
from gpunode.links.plugin.deployment import Spec, all_objects
from gpunode.links.plugin.link import floating_warning
from gpunode.links.pod.run_pod import PodRun
from gpunode.links.scheduler.deployment import second_serves
from gpunode.model import Cluster, Host, Inventory, PluginConfig, PluginImage, Ssh
from gpunode.wording import advise, few, page, several

REGISTER_SECONDS = 90.0  # a kubelet that was just started registers its node
NAMED = 3
Note: TypeAlias = Callable[[str, str, Mapping[str, str], Mapping[str, str]], None]
CONFLICT = "label-conflict"  # code: another's label is in the way

WITHOUT_PLUGIN = (
    "The inventory has no `cluster.plugin`: gpunode changes only the hosts, and deploys, labels and tests nothing in the cluster. "
    "To include the cluster, add `cluster: {plugin: {archive: plugin.tar}}`; how to build that file: "
    f"{page('deviceplugin#run-it')}"
)


def connect(inventory: Inventory) -> Api:
    """The inventory's cluster, seen to answer. Raises ClusterError with the cause."""
    api = api_of(inventory.cluster)
    api.version()
    return api


def rights_to_deploy(api: Api, inventory: Inventory) -> tuple[rights.Right, ...]:
    """Rights to apply the plugin's objects. Raises ClusterError for an inventory without a plugin."""
    surplus = all_objects(inventory.cluster.namespace)
    owners = rights.of_owners() if api.served.has("ResourceSlice") else ()
    return (*rights.of_objects(fit(api, spec_of(inventory).manifests), fit(api, surplus)), *owners)


def rights_of_run(
    api: Api, inventory: Inventory, *, proves: bool, deploys: bool
) -> tuple[tuple[rights.Right, ...], tuple[rights.Right, ...]]:
    """The rights that a run needs at once; and those for later, with those of `verify` and `status` after it. `proves`: with pods;
    `deploys`: the plugin."""
    namespace = inventory.cluster.namespace
    later = rights_to_deploy(api, inventory) if deploys else ()
    return rights.of_run(namespace, proves=proves), (*later, *rights.of_reading(namespace))


def name_rights(inventory: Inventory, error: ClusterError) -> ClusterError:
    """The error; where a right to read is refused and others are missing, one with them all, the refused one first."""
    refused = FORBIDDEN.search(error.detail) if isinstance(error, HttpError) and error.status == 403 else None
    if refused is None:
        return error
    error.problem, error.exit_code = replace(error.problem, code=NO_RIGHTS), rights.EXIT
    reading = rights.of_reading(inventory.cluster.namespace)
    if first := rights.match_refused(reading, refused.groupdict()):
        return _with_all(partial(api_of, inventory.cluster), error, refused["user"], first, reading)
    return error


def name_rights_to_deploy(api: Api, inventory: Inventory, error: HttpError) -> ClusterError:
    """The error of the dry run of a deployment; where a right is refused, one with all that the deployment lacks."""
    refused = FORBIDDEN.search(error.detail) or GRANT.search(error.detail)
    if refused is None or error.status != 403:
        return error
    deploys = (*rights.of_rollout(inventory.cluster.namespace), *rights_to_deploy(api, inventory))
    grants = refused.re is GRANT
    first = () if grants else rights.match_refused(deploys, refused.groupdict())
    return error if not (grants or first) else _with_all(lambda: api, error, refused["user"], first, deploys)


def _with_all(
    connect: Callable[[], Api],
    error: ClusterError,
    user: str,
    first: Sequence[rights.Right],
    every: Sequence[rights.Right],
) -> ClusterError:
    """An error with `first` and those of `every` right that the user lacks; the given one if that says no more."""
    with suppress(ClusterError):  # an API that is gone by now hides no refusal
        missing = rights.find_missing(connect(), every)
        if not set(missing) <= set(first):
            return rights.lacks(tuple(dict.fromkeys((*first, *missing))), user=user)
    return error


def check_kubeconfig(inventory: Inventory) -> None:
    """Raise KubeconfigUnusable if no kubeconfig leads to the inventory's cluster, before any host is asked."""
    if inventory.cluster.plugin is not None:
        choose_context(inventory.cluster)


def image_of(inventory: Inventory) -> PluginImage:
    """The plugin's image, or a refusal with the key to set."""
    if inventory.cluster.plugin is None:
        raise ClusterError(
            f"{inventory.path} names no image of the device plugin",
            hint="Set cluster.plugin.image, or cluster.plugin.archive to the file of `gpunode plugin image` that gpunode loads "
            f"onto the nodes. More: {page('deviceplugin#run-it')}",
        )
    return inventory.cluster.plugin


def schedulers(api: Api, inventory: Inventory) -> dict[str, str]:
    """The second scheduler for pods by resource, once it is deployed."""
    share = inventory.cluster.share
    if share is None or share.scheduler is None or not second_serves(api, inventory.cluster.namespace):
        return {}
    return {share.resource: share.scheduler.name}


def pod_run(
    api: Api,
    inventory: Inventory,
    seconds: float,
    notify: OnProgress,
    *,
    image: str | None = None,
    holder: str = "",
) -> PodRun:
    """For pods of the plugin's image, or of another. Raises ClusterError where the inventory names none."""
    cluster, run = inventory.cluster, PluginImage(image) if image else image_of(inventory)
    return PodRun(
        cluster.namespace, run, seconds, notify, cluster.plugin_config, holder, schedulers(api, inventory)
    )


def spec_of(inventory: Inventory) -> Spec:
    """The plugin as the inventory configures it, or a refusal with the key that sets its image."""
    cluster = inventory.cluster
    isolated = any(host.isolation for host in inventory.hosts)
    return Spec(
        cluster.namespace, image_of(inventory), cluster.plugin_config, cluster.plugin_publish, isolated
    )


def desired_labels(host: Host) -> dict[str, str]:
    if host.allocation == "dra":
        return dict(host.labels)
    runtime = {RUNTIME_LABEL: "class"} if host.runtime == "class" else {}
    return {GPU_LABEL: "true", **runtime, **host.labels}


def locate(api: Api, members: Sequence[Member], *, seconds: float, notify: Callable[[str], None]) -> Members:
    """The members with their nodes, waiting for those that are not registered or not Ready yet; or with the reason why
    there is none. A member that was out before stays as it is."""
    end = time.monotonic() + seconds
    hoped = {member.host.name for member in members if member.reason is None}
    while True:
        there = fetch(api) if any(member.node is None and member.reason is None for member in members) else ()
        located = _drop_shared([_find_node(member, there) for member in members])
        waiting = [member for member in located if member.host.name in hoped]
        late = [member for member in waiting if member.reason and member.reason.code != ANOTHER_MACHINE]
        late += [member for member in waiting if member.node and not member.node.ready]
        if not late or time.monotonic() >= end:
            return located
        notify(f"waiting for {', '.join(member.host.name for member in late[:5])} to be a Ready node")
        time.sleep(1)


def identify(api: Api, session: Session, notify: Callable[[str], None]) -> Members:
    """Every host with its node, for commands that need nothing else of the hosts. Only hosts without a node of their name or
    address are asked for their own name; `provision` asks all."""
    members = locate(api, [Member(host) for host in session.hosts], seconds=0, notify=notify)
    strangers = [member for member in members if member.node is None and not member.host.node]
    if not strangers:
        return members
    asked = {
        member.host.name: member
        for member in session.for_each_host(converge.probe_and_plan, strangers, plans=False)
    }
    again = [_clear_reason(asked.get(member.host.name, member)) for member in members]
    return tuple(
        explain_no_node(member) if member.host.name in asked and member.facts else member
        for member in locate(api, again, seconds=0, notify=notify)
    )


def find_gpu_nodes(api: Api, session: Session, notify: Callable[[str], None]) -> list[Node]:
    """The nodes of the session's hosts. Reports hosts without a node, and if no host has one."""
    members = identify(api, session, notify)
    for member in members:
        report_reason(session.reporter, member.host.name, member.reason)
    gpu_nodes = [member.node for member in members if member.node]
    if not gpu_nodes:
        session.reporter.note(advise("No node has GPUs. `gpunode provision` makes hosts GPU nodes."))
    return gpu_nodes


def explain_no_node(member: Member) -> Member:
    """The member with the reason why its host is no node: the host is refused."""
    if (
        member.node is not None
        or member.outcome is None
        or member.outcome.problem is None
        or member.reason is None
    ):
        return member
    what = f"{member.outcome.why}; it is not a node of the cluster"
    return member.exclude(
        Problem(member.reason.code, what, fix=member.outcome.problem.fix, subject=member.host.name)
    )


def exclude_owned(api: Api, owners: other_owners.Owners, members: Sequence[Member]) -> Members:
    """The members; excluded if their node's GPUs have another owner than their host's `allocation` says."""

    def exclude(member: Member) -> Member:
        if not member.active or member.node is None:
            return member
        dra = member.host.allocation == "dra"
        return member.exclude(_why_not_dra(api, member.node) if dra else owners.reason(member.node))

    return tuple(map(exclude, members))


def _why_not_dra(api: Api, node: Node) -> Problem | None:
    """Why a DRA driver cannot have the node yet. It would give GPUs that pods have of the plugin to others."""
    if reason := slices.unserved(api):
        return replace(reason, subject=node.name)
    if node.labels.get(GPU_LABEL) != "true":
        return None
    holders = tuple(
        work.name
        for work in drain.work_on(api, node.name)
        if not work.service and {*work.asks} - {drain.CLAIMS}
    )
    if not holders:
        return None
    what = f"the device plugin cannot be removed while pods use its GPUs: {few(holders, NAMED)}"
    fix = f"Wait until they end, or `kubectl drain {node.name} --ignore-daemonsets`; then run this again."
    return Problem("held", what, fix=fix, subject=node.name, holders=holders)


def own_marks(node: Node, writer: str) -> dict[str, str]:
    """What this writer of labels has set on the node, or for TAINTS the inventory. A plugin that is paused for a change counts as there."""
    if writer == TAINTS:
        return dict.fromkeys(node.own_taints, "")
    own = {key: node.labels[key] for key in sorted(node.applied.get(writer, ())) if key in node.labels}
    return {key: "true" if value == daemonset.PAUSED else value for key, value in own.items()}


def apply_labels(
    api: Api,
    members: Sequence[Member],
    owners: other_owners.Owners = other_owners.NONE,
    note: Note = lambda *_: None,
) -> Members:
    """Write gpunode's labels, and the inventory's taints and whether it requires an acceptance, to the nodes, except those whose GPUs
    have another owner; a member is excluded by a conflict. `note`: gets the node, the writer, and its marks before and after, before they are written."""

    def label(member: Member) -> Member:
        if not member.active or member.node is None:
            return member
        if member.host.allocation == "dra":
            if why := _why_not_dra(api, member.node):
                return member.exclude(why)
        elif owners.reason(member.node):
            return member
        desired, own = desired_labels(member.host), partial(own_marks, member.node)
        note(member.node.name, cluster_labels.PROVISION, own(cluster_labels.PROVISION), desired)
        note(member.node.name, TAINTS, own(TAINTS), dict.fromkeys(member.host.taints, ""))
        try:
            cluster_labels.write(api, member.node, desired)
            taint.write(api, member.node, member.host.taints)
            _write_required(api, member.node, member.host.accept_required)
        except ApiConnectionLost:
            raise
        except ClusterError as error:
            return member.exclude(replace(error.problem, code=CONFLICT))
        return replace(member, labels={**member.node.labels, **desired})

    return tuple(side_by_side(label, members))


def _write_required(api: Api, node: Node, required: bool) -> None:
    """The acceptance says whether the inventory requires one: what the plugin goes by. Raises ClusterError."""
    stamp = read_stamp(node.accepted)
    if stamp and stamp.required != required:
        text = replace(stamp, required=required).text()
        api.merge("Node", node.name, {"metadata": {"annotations": {ACCEPTED: text}}})


def desired_features(member: Member, config: PluginConfig | None) -> dict[str, str]:
    """The labels as of GPU feature discovery that the inventory asks for; {} where GPU feature discovery has written its own."""
    if not member.host.feature_labels or member.node is None or member.facts is None:
        return {}
    settings = expected.find_config(config, {**member.node.labels, **member.labels})
    wanted = features.feature_labels(member.facts, settings)
    return {} if features.other_owner(member.node, wanted) else wanted


def write_features(
    api: Api, member: Member, config: PluginConfig | None, note: Note = lambda *_: None
) -> None:
    """Write these labels. `note`: as of `apply_labels`. Raises ClusterError."""
    wanted = desired_features(member, config)
    if member.active and member.node is not None and wanted:
        note(member.node.name, features.WRITER, own_marks(member.node, features.WRITER), wanted)
        cluster_labels.write(api, member.node, wanted, writer=features.WRITER)


def warn(
    api: Api, inventory: Inventory, members: Sequence[Member], reporter: Reporter, *, but: str = ""
) -> None:
    """Warn of other device plugins (except the one with the title `but`), and of pitfalls in the plugin's image and configuration."""
    others = [owner for owner in other_owners.list_others(api) if owner.title != but]
    for other in others:
        where = f"{other.title}, on {several(other.nodes, 'node')}"
        whose = f"It is {other.product.name}: {other.product.way}."
        if other.does == "configures":
            reporter.note(
                f"{where}, writes the container runtime's configuration too, and writes it back after gpunode. {whose}"
            )
        elif other.does == "allocates":
            reporter.note(
                f"{where}, is a DRA driver for NVIDIA GPUs. A node whose GPUs it allocates gets no device plugin of gpunode. {whose}"
            )
        else:
            reporter.note(
                f"{where}, offers NVIDIA GPUs too. If a node has two device plugins, the last to start wins: remove the other first; running pods keep their GPUs. {whose}"
            )
    operated = [
        member.node.name
        for member in members
        if member.node and member.node.labels.get(other_owners.OPERATED) == "true"
    ]
    if operated and any(other.product.name == other_owners.GPU_OPERATOR for other in others):
        reporter.note(
            f"{few(operated, 5)}: managed by {other_owners.GPU_OPERATOR} (label {other_owners.OPERATED}=true). "
            f"Hand over one node at a time: {page('switching.md')}"
        )
    for node in filter(None, (member.node for member in members)):
        for label in other_owners.paused_labels(node.labels):
            reporter.note(
                f"{node.name}: the GPU Operator's label {label}={other_owners.PAUSED} stays after a MIG change that failed. "
                f"`kubectl label node {node.name} {label}-` removes it."
            )
    places = [
        (member.host, member.node, {**member.node.labels, **desired_labels(member.host)})
        for member in members
        if member.node
    ]
    for warning in warnings(inventory.cluster.plugin_config, places):
        reporter.note(warning)
    if warning := floating_warning(image_of(inventory)):
        reporter.note(warning)


def _find_node(member: Member, there: Sequence[Node]) -> Member:
    """The member with its node among these, or with the reason why it has none."""
    if member.reason is not None or member.node is not None:
        return member
    try:
        node = identity.find(member.host, there, member.facts)
    except ClusterError as error:
        return member.exclude(replace(error.problem, code=error.problem.code or "no-node"))
    return replace(member, node=node, labels=node.labels)


def _drop_shared(members: Sequence[Member]) -> Members:
    """The members; hosts that claim the same node have none."""
    twice = identity.find_shared({member.host.name: member.node for member in members if member.node})
    return tuple(
        replace(member, node=None, reason=twice[member.host.name]) if member.host.name in twice else member
        for member in members
    )


def _clear_reason(member: Member) -> Member:
    """The member for another search by its host's own name, if the host could be asked for it."""
    if member.outcome is None or member.reason is None:
        return member
    if member.facts is not None:
        return replace(member, reason=None)
    what = f"{member.reason.what}, and its own name could not be read: {member.outcome.why}"
    return member.exclude(replace(member.reason, what=what))


def inventory_of_cluster(cluster: Cluster) -> Inventory:
    """An inventory for commands that ask the cluster alone. Its hosts are never dialled: each names its node.

    A cluster without a node that has gpunode's label has no hosts. Raises ClusterError where it does not answer.
    """
    asked = Inventory("", (), cluster)
    api = connect(asked)
    hosts = tuple(Host(node.name, Ssh(node.name), node=node.name) for node in fetch(api, labels=GPU_LABEL))
    settings = Cluster(
        cluster.kubeconfig,
        cluster.context,
        cluster.namespace,
        daemonset.image(api, cluster.namespace),
        daemonset.config(api, cluster.namespace),
    )
    return Inventory(f"cluster {api.access.context}", hosts, settings)
