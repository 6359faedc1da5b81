"""The cluster's changes, shown before they are accepted, and by `gpunode plan`."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from gpunode.cluster import admission, pods
from gpunode.cluster.api import Api, refusal, side_by_side
from gpunode.cluster.api.kinds import Object, title
from gpunode.cluster.objects import apply, difference
from gpunode.cluster.objects.difference import Difference
from gpunode.engine import impact, nodes, work
from gpunode.engine.member import Member, Members
from gpunode.engine.reporter import Brief, Reporter, report_reason
from gpunode.errors import ClusterError, HttpError
from gpunode.inventory.starter import ranges
from gpunode.links import node as cluster_nodes
from gpunode.links import plugin
from gpunode.links.capacity import mig
from gpunode.links.node import labels, taint
from gpunode.links.node.identity import ANOTHER_MACHINE
from gpunode.links.plugin import configuration, daemonset, expected, marks, other_owners
from gpunode.links.plugin.features import PREFIX, STAMP, WRITER
from gpunode.links.plugin.link import nodes_without
from gpunode.links.pod.run_pod import PodRun, make_pod
from gpunode.model import Host, Inventory, PluginConfig, Title
from gpunode.wording import advise, few, page

FEW = 2  # objects that a note names
NAMED = 5  # nodes that it names
PROOF = "vectoradd"


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """Pending changes of the cluster: the number of objects, nodes and `replaced` pods included; and the members, excluded where
    a label conflicts or the GPUs have another owner."""

    objects: int
    members: Members
    obstructed: tuple[str, ...] = ()  # pods that the cluster would refuse
    replaced: int = 0
    imageless: tuple[str, ...] = ()  # nodes, the members' or others, without the plugin's image
    tainted: int = 0  # nodes until their proof
    changes: tuple[Difference, ...] = ()

    @property
    def conflicts(self) -> Members:
        """Members whose labels would be refused, whose node is another machine, or whose GPUs have another owner."""
        codes = (nodes.CONFLICT, ANOTHER_MACHINE, other_owners.OTHER_OWNER)
        return tuple(member for member in self.members if member.reason and member.reason.code in codes)


def plan(
    api: Api,
    inventory: Inventory,
    members: Sequence[Member],
    reporter: Reporter,
    *,
    diff: bool | None = None,
    strict: bool = True,
    order: Sequence[Collection[Host]] = (),
    tainted: bool = False,
    run: bool = True,
) -> ClusterPlan:
    """Show the cluster's changes, as `show` does, for hosts that will have the plugin's image; and which of them are no nodes
    yet. `order`: the batches, each proven at a time, with pods if `run`. `tainted`: all nodes until then."""
    located = nodes.locate(api, members, seconds=0, notify=lambda _: None)
    taints = [difference for member in located if (difference := _until_proven(member, tainted, run))]
    planned = show(
        api, inventory, located, reporter, diff=diff, strict=strict, loaded=True, order=order, taints=taints
    )
    _report_strangers(api, inventory, located, reporter)
    config = inventory.cluster.plugin_config
    ignored = [
        member.host.name
        for member in located
        if member.outcome
        and member.host.allocation == "plugin"
        and mig.is_ignored(
            config,
            member.outcome.desired,
            {**(member.node.labels if member.node else {}), **nodes.desired_labels(member.host)},
        )
    ]
    if ignored:
        file = "the plugin's configuration" if config else "a file, and name it in `cluster.plugin.config`"
        reporter.note(
            f"{few(ignored, NAMED)}: the inventory has `mig`, but pods get no MIG devices, as the plugin's migStrategy is none. "
            f"Write `flags: {{migStrategy: mixed}}` into {file} ({page('inventory#mig-layouts')})."
        )
    missing = [member for member in located if member.node is None and member.reason is not None]
    for member in missing:
        if member.reason and member.reason.code == ANOTHER_MACHINE:
            report_reason(reporter, member.host.name, member.reason)
    absent = [member for member in missing if member.reason and member.reason.code != ANOTHER_MACHINE]
    stopped = [member.host.name for member in absent if _kubelet_starts(member)]
    if stopped:
        starts = "This run" if strict else "`gpunode provision`"
        text = f"{few(ranges(stopped), NAMED)}: not in the cluster yet, as the kubelet is down. {starts} starts it, labels the node and deploys the device plugin."
        reporter.note(Brief(text) if strict else advise(text))
    strange = [member.host.name for member in absent if not _kubelet_starts(member)]
    if strange:
        reporter.note(
            advise(
                f"{few(strange, NAMED)}: not in the cluster yet. Labels and the device plugin follow with "
                "`gpunode provision` once it has joined; if its node has another name, set `node:` in the inventory."
            )
        )
    return planned


def _report_strangers(api: Api, inventory: Inventory, members: Members, reporter: Reporter) -> None:
    """Report nodes with gpunode's labels that are no host of the inventory; none where one of its hosts may be such a node under
    another name."""
    items = {item["metadata"]["name"]: item for item in api.find("Node", labels=cluster_nodes.GPU_LABEL)[0]}
    known = {member.node.name for member in members if member.node}
    strange = {name for name, item in items.items() if name not in known and marks.is_owned(item)}
    probed = {member.host.name for member in members}
    others = [host for host in inventory.hosts if strange and host.name not in probed]
    every = cluster_nodes.fetch(api) if others else ()
    for host in others:
        try:
            strange.discard(cluster_nodes.find(host, every).name)
        except ClusterError:
            return
    alike: dict[str, list[str]] = {}
    for name in sorted(strange):
        alike.setdefault(few(marks.find(items[name]), NAMED), []).append(name)
    for left, names in alike.items():
        be, have, them = ("is", "has", "the node") if len(names) == 1 else ("are", "have", "them")
        reporter.note(
            f"{few(names, NAMED)} {be} no longer in the inventory and still {have} {left}. If no other inventory has {them}, "
            f"`gpunode forget {' '.join(names)} -i {inventory.path}` removes that."
        )


def _until_proven(member: Member, asked: bool, run: bool) -> Difference | None:
    """The taint that the run sets on the member's node and removes after the proof, or that an earlier run left there; None without
    a proof (`run`)."""
    if member.node is None or member.reason is not None or not run:
        return None
    left = taint.run_of(member.node)
    if not left and not work.is_tainted_until_proven(member, asked):
        return None
    line = f"-{taint.text(left)}" if left else f"+{taint.text('RUN')} until its GPUs are verified"
    return Difference(Title("Node", member.node.name), "labelled", (line,))


def _features(member: Member, config: PluginConfig | None) -> Difference | None:
    """The labels as of GPU feature discovery that the run writes; their values are known once the driver lists the GPUs."""
    if not member.active or member.node is None:
        return None
    wanted = nodes.desired_features(member, config)
    if member.host.feature_labels and not member.gpus and STAMP not in member.node.labels:
        line = f"+{PREFIX}gpu.product and others of GPU feature discovery, once the driver lists the GPUs"
        return Difference(Title("Node", member.node.name), "labelled", (line,))
    if not wanted:
        return None
    old = {
        key: (member.node.labels.get(key), None)
        for key in member.node.applied.get(WRITER, ())
        if key not in wanted
    }
    changes = {**labels.missing(member.node, wanted), **old}
    return difference.labelling(member.node.name, changes) if changes else None


def _compare_taints(members: Sequence[Member]) -> tuple[Members, list[Difference]]:
    """The members, excluded where another client has set a taint of the inventory otherwise; and the inventory's taints that change."""
    after, differences = [], []
    for member in members:
        if member.node is not None and member.active:
            try:
                added, gone = taint.compare(member.node, member.host.taints)
            except ClusterError as error:
                after.append(member.exclude(replace(error.problem, code=nodes.CONFLICT)))
                continue
            lines = (*(f"+{text}" for text in added), *(f"-{text}" for text in gone))
            if lines:
                differences.append(Difference(Title("Node", member.node.name), "labelled", lines))
        after.append(member)
    return tuple(after), differences


def _kubelet_starts(member: Member) -> bool:
    """True if the host's kubelet does not run and its plan starts it."""
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
    reporter: Reporter,
    *,
    diff: bool | None = None,
    strict: bool = True,
    loaded: bool = False,
    order: Sequence[Collection[Host]] = (),
    other: Object | None = None,
    taints: Sequence[Difference] = (),
) -> ClusterPlan:
    """Show the changes of a deployment of the plugin on the members' nodes. `diff`: True: new and removed objects in full, False: no
    diff. Not `strict`: also for a user who may read and not write. `loaded`: its image will be on these nodes. `other`: the
    DaemonSet that it replaces. `taints`: of nodes until their proof."""
    spec = nodes.spec_of(inventory)
    try:
        objects = plugin.plan(api, spec, strict=strict, notify=reporter.note)
    except HttpError as error:
        if not strict:
            raise
        raise nodes.name_rights_to_deploy(api, inventory, error) from error
    nodes.warn(api, inventory, members, reporter, but=title(other) if other else "")
    owners = other_owners.dra_owners(api)
    if owners.unknown:
        reporter.note(
            f"Whether a DRA driver allocates the GPUs of these nodes is not known: {owners.unknown}."
        )
    members = nodes.exclude_owned(api, owners, members)
    members, differences = _compare_taints(members)
    taints = [*taints, *differences]
    _report_sharing(api, inventory, members, reporter)
    imageless = _report_imageless(api, inventory, members, reporter, loaded=loaded)
    tried = _try_labels(api, members, strict=strict)
    would = [
        *([difference.removal(other)] if other else []),
        *objects,
        *(change for _, change in tried if change is not None),
    ]
    outdated = _pods_to_replace(api, spec.namespace, members, order)
    would += [*outdated, *taints]
    would += [change for member in members if (change := _features(member, inventory.cluster.plugin_config))]
    changes = [change for change in would if change.is_change]
    reporter.cluster(api.access.context, changes, diff=diff)
    _report_untried(would, reporter)
    if warning := apply.unguarded_note(api, spec.manifests, changes):
        reporter.note(warning)
    obstructed = _report_obstacles(api, spec, objects, members, reporter)
    for member, _ in tried:
        if member.node is not None:
            report_reason(reporter, member.host.name, member.reason)
    return ClusterPlan(
        len(changes),
        tuple(member for member, _ in tried),
        obstructed,
        len(outdated),
        imageless,
        len(taints) - len(differences),
        tuple(changes),
    )


def _pods_to_replace(
    api: Api, namespace: str, members: Sequence[Member], order: Sequence[Collection[Host]]
) -> list[Difference]:
    """The plugin's pods to replace, since the hosts' plans outdate their containers."""
    worked = {host.name for batch in order for host in batch}
    changed = [
        member.node.name
        for member in members
        if member.node and member.host.name in worked and impact.outdates_pods(member.changes, member.facts)
    ]
    replaced = plugin.pods_on(api, namespace, changed) if changed else []
    return [difference.replacement(pod, daemonset.place(pod)) for pod in replaced]


def _report_sharing(api: Api, inventory: Inventory, members: Sequence[Member], reporter: Reporter) -> None:
    """Report what a new sharing of GPUs means for the nodes, equal nodes together. The configuration is the whole cluster's, so
    it names nodes beside the members', too."""
    cluster = inventory.cluster
    if daemonset.image(api, cluster.namespace) is None:
        return
    before = daemonset.config(api, cluster.namespace)
    desired = {member.node.name: nodes.desired_labels(member.host) for member in members if member.node}
    nodes_by_text: dict[str, list[str]] = {}
    outside: list[str] = []
    for node in _with_plugin(api, members).values():
        labels_of = {**node.labels, **desired.get(node.name, {})}
        meaning = configuration.meaning(before, cluster.plugin_config, labels_of, node.capacity)
        nodes_by_text.setdefault(meaning, []).append(node.name)
        if node.name not in desired and configuration.differ(before, cluster.plugin_config, labels_of):
            outside.append(node.name)
    for meaning, names in nodes_by_text.items():
        if meaning:
            each = ", each node" if len(names) > 1 else ""
            reporter.note(f"{few(names, NAMED)}{each}: {meaning}. {configuration.GIVEN}")
    if outside:
        reporter.note(
            f"The plugin's configuration is cluster-wide. It also changes nodes outside this command's hosts: {', '.join(outside)}. To change only some nodes, give them a configuration of "
            f"their own: `cluster.plugin.configs` in {page('sharing#for-some-nodes-only')}"
        )


def _report_obstacles(
    api: Api,
    spec: plugin.Spec,
    objects: Sequence[Difference],
    members: Sequence[Member],
    reporter: Reporter,
) -> tuple[str, ...]:
    """Report why the cluster would not admit the plugin's pods or a pod that proves a GPU; returns those pods."""
    node = next((member.node for member in members if member.node), None)
    proofs = []
    if node:
        resource = expected.memory(spec.config, node.labels) or pods.GPU
        proofs = [
            make_pod(
                "vectoradd.yaml.j2",
                PROOF,
                node,
                PodRun(spec.namespace, spec.image, 60.0),
                resource=resource,
                amount=1,
            )
        ]
    trials = admission.try_pods(api, spec.manifests, objects, proofs)
    for attempt in trials:
        if attempt.reason:
            what = f"{attempt.what} would not be admitted: {attempt.reason.what}"
            reporter.problem(replace(attempt.reason, what=what))
        else:
            reporter.note(
                f"The API server could not dry-run {attempt.what}: {attempt.untried}. It checks them when they are created."
            )
    return tuple(attempt.what for attempt in trials if attempt.reason)


def _with_plugin(api: Api, members: Sequence[Member]) -> dict[str, cluster_nodes.Node]:
    """The nodes on which the plugin is or will be, by name; those of the members first."""
    here = {member.node.name: member.node for member in members if member.node}
    every = cluster_nodes.fetch(api, labels=f"{cluster_nodes.GPU_LABEL}=true")
    return here | {node.name: node for node in every if node.name not in here}


def _report_imageless(
    api: Api, inventory: Inventory, members: Sequence[Member], reporter: Reporter, *, loaded: bool
) -> tuple[str, ...]:
    """Report nodes on which the plugin would stop, since they lack its image: one DaemonSet serves all nodes, other hosts' too."""
    image, here = nodes.image_of(inventory), {member.node.name for member in members if member.node}
    places = [node for name, node in _with_plugin(api, members).items() if not (loaded and name in here)]
    without = nodes_without(api, inventory.cluster.namespace, image, places)
    if without:
        reporter.note(
            advise(
                f"{few(without, NAMED)}: the kubelet reports no image {image.reference}. New pods of the plugin could not "
                "start there, and the nodes would offer no GPU. `gpunode provision` loads the image on these hosts."
            )
        )
    return tuple(without)


def _try_labels(
    api: Api, members: Sequence[Member], *, strict: bool
) -> list[tuple[Member, Difference | None]]:
    """Each member with its node's change of labels; excluded if the API server would refuse it.

    The first dry run is made alone: a user who may not try it on one node may try it on none.
    """

    def try_label(member: Member, untried: str = "") -> tuple[Member, Difference | None]:
        if not member.active or member.node is None:
            return member, None
        desired = nodes.desired_labels(member.host)
        if not untried or labels.holds(member.node, desired):
            try:
                changes = labels.write(api, member.node, desired, dry_run=True)
                return member, difference.labelling(member.node.name, changes)
            except ClusterError as error:
                untried = refusal.why_untried(error, strict=strict)
                if not untried:
                    return member.exclude(replace(error.problem, code=nodes.CONFLICT)), None
        return member, difference.labelling(member.node.name, labels.missing(member.node, desired), untried)

    alone = 1 + next((number for number, member in enumerate(members) if _to_ask(member)), len(members))
    done = [try_label(member) for member in members[:alone]]
    untried = next((change.untried for _, change in done if change and change.untried), "")
    return [*done, *side_by_side(lambda member: try_label(member, untried), members[alone:])]


def _to_ask(member: Member) -> bool:
    """True if the node needs a dry run: a node that has its labels needs no request."""
    return (
        member.active
        and member.node is not None
        and not labels.holds(member.node, nodes.desired_labels(member.host))
    )


def _report_untried(would: Sequence[Difference], reporter: Reporter) -> None:
    """Report the objects that the API server did not dry-run, except in a namespace that the plan creates."""
    new = {
        change.title.name
        for change in would
        if (change.title.kind, change.action) == ("Namespace", "created")
    }
    reasons: dict[str, list[Difference]] = {}
    for change in would:
        if change.untried and change.title.namespace not in new:
            reasons.setdefault(change.untried, []).append(change)
    for reason, these in reasons.items():
        what = ", ".join(change.what for change in these) if len(these) <= FEW else f"{len(these)} objects"
        there = any(change.action != "created" for change in these)
        rest = " Only fields that gpunode sets were compared with the current ones." if there else ""
        reporter.note(f"The API server could not dry-run {what}: {reason}.{rest}")
