"""Deploys the plugin: what would change, and a wait until it runs on every node."""

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from gpunode.cluster import pods, rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import OURS, Object, title
from gpunode.cluster.api.watch import OnProgress, Patience, changes
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.apply import Component
from gpunode.cluster.objects.difference import Difference
from gpunode.cluster.objects.manifests import render
from gpunode.errors import ClusterError, HttpError, UsageError
from gpunode.links import node as nodes
from gpunode.links.node import GPU_LABEL, RUNTIME_LABEL, Node, labels
from gpunode.links.plugin import condition, daemonset, published
from gpunode.links.plugin.daemonset import State
from gpunode.model import PluginConfig, PluginImage, PluginPublish, Title
from gpunode.wording import advise

PLAIN = PluginPublish()
NAMED = 3  # nodes whose reasons a message has


@dataclass(frozen=True, slots=True)
class Spec:
    """The plugin's desired state in the cluster."""

    namespace: str
    image: PluginImage
    config: PluginConfig | None = None
    publish: PluginPublish = PLAIN
    isolated: bool = False  # on some hosts the plugin's own variable counts for nothing
    kubelet_root: str = "/var/lib/kubelet"  # of the kubelets, where they say what pods have

    @property
    def manifests(self) -> list[Object]:
        """Namespace, service account with its RBAC, configuration, RuntimeClass and two DaemonSets (the template explains
        why two), and two more of MPS control daemons where GPUs are shared by MPS."""
        config = self.config or PluginConfig()
        alone = config.text if self.config and not config.files else None
        common = {
            "namespace": self.namespace,
            "image": self.image.reference,
            "image_id": self.image.image_id,
            "pull": self.image.pull,
            "configs": config.files,
            "mps_root": config.mps_root,
        }
        objects = render(
            "plugin.yaml.j2",
            **common,
            config=alone,
            config_id=None if alone is None else hashlib.sha256(alone.encode()).hexdigest()[:16],
            cdi_directory=config.cdi_directory,
            mig=config.mig,
            events=self.publish.events,
            annotation=self.publish.annotation,
            condition=self.publish.condition,
            promises=self.publish.promises,
            metrics=self.publish.metrics,
            isolated=self.isolated,
            kubelet_root=self.kubelet_root,
        )
        return [*objects, *render("mps.yaml.j2", **common)] if config.mps_root else objects

    @property
    def unpublished(self) -> list[str]:
        """The annotations that its plugin does not write."""
        written = (self.publish.annotation, self.publish.promises)
        return [key for key, own in zip(published.ANNOTATIONS, written, strict=True) if not own]


@dataclass(frozen=True, slots=True)
class Scope:
    """The nodes with the GPU label that a rollout covers: `only` these (None: all). Pods with a UID in `renew` are
    replaced: a container keeps the driver libraries it was started with. `hopeless` nodes are not waited for."""

    only: Collection[str] | None = None
    renew: Collection[str] = ()
    hopeless: Collection[str] = ()

    def targets(self, labelled: Sequence[Node]) -> Mapping[str, Node]:
        """These of the labelled nodes, by name. Raises ClusterError where there is none."""
        covered = {node.name: node for node in labelled if self.only is None or node.name in self.only}
        if not covered:
            these = f"of {', '.join(sorted(self.only))} " if self.only else ""
            raise ClusterError(
                f"no node matches: none {these}carries the label {GPU_LABEL}=true, so the plugin runs nowhere",
                hint=advise("`gpunode provision` puts it on the nodes of the inventory."),
            )
        return covered


EVERYWHERE = Scope()


@dataclass(frozen=True, slots=True)
class Rollout:
    """What `deploy` changed in the cluster, and the plugin's state on each node afterwards, by node."""

    differences: tuple[Difference, ...]
    states: Mapping[str, State]

    @property
    def good(self) -> bool:
        return not any(state.reason for state in self.states.values())


def plan(
    api: Api, spec: Spec, *, strict: bool = True, notify: OnProgress = lambda _: None
) -> tuple[Difference, ...]:
    """What `deploy` would change; not `strict`: also for a user without the rights to do it. `notify` gets what is not known."""
    spec = _fit(api, spec)
    would = component(spec, EVERYWHERE, seconds=0).plan(api, strict=strict, notify=notify)
    left = () if spec.publish.condition else condition.read_nodes(api)
    return (*would, *_removals(published.read_annotations(api, spec.unpublished), left))


def deploy(api: Api, spec: Spec, scope: Scope = EVERYWHERE, *, seconds: float, notify: OnProgress) -> Rollout:
    """Apply the plugin and wait until it is ready in this version on every node of the scope, so that pods can have
    its devices. A version rolls out to some nodes at a time: `seconds` is the longest wait without progress.

    A node where it does not run in time is a state with its reason, not an exception.
    """
    spec, before = _fit(api, spec), daemonset.every_pod(api, spec.namespace)
    differences, states = component(spec, scope, before, seconds=seconds).deploy(api, notify)
    texts = published.remove_annotations(api, spec.unpublished)
    gone = () if spec.publish.condition else condition.remove(api, notify)
    return Rollout(differences + _removals(texts, gone), states)


K0S = "/var/lib/k0s/kubelet"  # source: docs.k0sproject.io, storage: its kubelets' --root-dir


def _fit(api: Api, spec: Spec) -> Spec:
    """The plugin for this cluster's kubelets. Those of k0s have another root; sockets of device plugins are where all have them."""
    kubelets = [node.kubelet for node in nodes.fetch(api)]
    return replace(spec, kubelet_root=K0S) if kubelets and all("+k0s" in each for each in kubelets) else spec


def component(
    spec: Spec, scope: Scope, before: Sequence[Object] = (), *, seconds: float
) -> Component[Mapping[str, State]]:
    """The plugin, whose wait is that of `deploy`. `before`: its pods before."""
    namespace = spec.namespace

    def wait(api: Api, notify: OnProgress) -> Mapping[str, State]:
        # Their problem may just have been fixed: a new pod starts at once, not after the back-off.
        for pod in before:
            if pod["metadata"]["uid"] in scope.renew or daemonset.is_in_back_off(pod):
                api.delete("Pod", pod["metadata"]["name"], namespace, uid=pod["metadata"]["uid"])
        every = nodes.fetch(api, labels=f"{GPU_LABEL}=true")
        targets = scope.targets(every)
        able = [name for name, node in targets.items() if node.ready and name not in scope.hopeless]
        bare = nodes_without(every, daemonset.by_node(daemonset.plugins(before)))
        by_node, late = _wait(api, namespace, every, able, bare, seconds=seconds, notify=notify)
        # Offers GPUs by now
        fresh = {node.name: node for node in nodes.fetch(api, labels=f"{GPU_LABEL}=true")}
        return {
            name: daemonset.read_state(
                api, namespace, fresh.get(name, node), by_node.get(name), late=name in late
            )
            for name, node in targets.items()
        }

    return Component(spec.manifests, all_objects(namespace), wait)


def _wait(
    api: Api,
    namespace: str,
    every: Sequence[Node],
    able: Sequence[str],
    bare: Collection[str],
    *,
    seconds: float,
    notify: OnProgress,
) -> tuple[Mapping[str, Object], Collection[str]]:
    """The plugin's pods by node once it runs on all `able` nodes, or after `seconds` without progress; and the nodes
    where it does not. `every` node should have it; `bare` are those without it before."""
    known = {node.name: node for node in every}
    patience, progress, pulls = Patience(notify), time.monotonic(), pods.Pulls()
    by_node: Mapping[str, Object] = {}
    current: Mapping[str, str] = {}
    waiting = able
    longest = seconds * waves(len(able))
    for live, changed in changes(
        api, "Pod", namespace, seconds=longest, labels=daemonset.SELECTOR, notify=notify
    ):
        by_node = daemonset.by_node(live.values())
        if changed is None:
            # At first and now and then: others may change them; each event would be too often
            current = daemonset.generations(api, namespace)
        late = [name for name in able if not daemonset.is_up(by_node.get(name), current)]
        if len(late) < len(waiting):
            progress = time.monotonic()
        waiting = late
        if not waiting or time.monotonic() - progress > seconds:
            break
        if changed is None:
            hopeless = [name for name in waiting if name in by_node and pulls.is_hopeless(by_node[name])]
            if hopeless == list(waiting):
                break  # its state says why
        # where Kubernetes stops because of nodes that were without the plugin before
        for name in next_nodes(every, by_node, waiting, bare):
            meta = by_node[name]["metadata"]
            api.delete("Pod", meta["name"], namespace, uid=meta["uid"])
        patience.notify(
            f"waiting for the plugin on {len(waiting)} of {len(able)} Ready nodes",
            lambda late=waiting[:NAMED], seen=by_node: daemonset.why_on(  # type: ignore[misc]
                api, namespace, [known[name] for name in late], seen
            ),
        )
    return by_node, waiting


def pods_on(api: Api, namespace: str, on: Collection[str]) -> list[Object]:
    """The plugin's pods on these nodes, including those of MPS control daemons."""
    return [pod for pod in daemonset.every_pod(api, namespace) if daemonset.place(pod) in on]


def _removals(texts: Mapping[tuple[str, str], str], conditions: Iterable[str]) -> tuple[Difference, ...]:
    """Of what the plugin published: annotations by node and key, and nodes with the condition."""
    notes = [
        Difference(Title("Node", node, part=f"annotation {key}"), "removed", (f"-{text}",))
        for (node, key), text in texts.items()
    ]
    return (*notes, *(Difference(condition.title(node), "removed") for node in conditions))


def all_objects(namespace: str) -> list[Object]:
    """All objects that `deploy` may have applied, whatever the inventory."""
    publish = PluginPublish(events=True, annotation=True, condition=True, metrics=True, promises=True)
    config = PluginConfig(mps_root="/any", files={"any": ""})
    return Spec(namespace, PluginImage("any"), config, publish).manifests


def bound(count: int) -> int:
    """How many of `count` nodes may be without the plugin at a time: the template's 10 %, rounded up."""
    return max(1, -(-count // 10))


def waves(count: int) -> int:
    """In how many batches all of them are replaced."""
    return max(1, -(-count // bound(count)))


def nodes_without(nodes: Iterable[Node], by_node: Mapping[str, Object]) -> set[str]:
    ready = {name for name, pod in by_node.items() if not daemonset.is_ending(pod) and pods.is_ready(pod)}
    return {node.name for node in nodes if not node.ready or node.name not in ready}


def next_nodes(
    nodes: Sequence[Node],
    by_node: Mapping[str, Object],
    waiting: Collection[str],
    before: Collection[str],
) -> list[str]:
    turn: list[str] = []
    for mode in (True, False):  # a DaemonSet each
        these = [node for node in nodes if (node.labels.get(RUNTIME_LABEL) == "class") == mode]
        out, most = nodes_without(these, by_node), bound(len(these))
        if len(out) < most:
            continue  # Kubernetes continues on its own
        old = [node.name for node in these if node.name in waiting and node.name not in out]
        turn += old[: max(0, most - len(out - set(before)))]
    return turn


DAEMONSETS = {f"{name}{suffix}" for name in daemonset.NAMES for suffix in ("", "-class")}
EXTENDER = "gpunode-share"  # has pods of its own

OWN_LABELS = (GPU_LABEL, RUNTIME_LABEL)  # that mean nothing without the plugin; the inventory's stay


def find_removable(api: Api, namespace: str, *, notify: OnProgress) -> tuple[str, ...]:
    """Titles of what `remove` would delete now; `notify` gets what would stay and why. Raises UsageError where the plugin is in
    other namespaces, and not in this one: what is the whole cluster's would be taken from under it."""
    if places := _elsewhere(api, namespace):
        raise UsageError(
            f"namespace {namespace} has no device plugin of gpunode's: it is in {', '.join(places)}",
            hint=f"Name it with `--namespace {places[0]}`, or with cluster.namespace in the inventory.",
        )
    left = tuple(title(pod) for pod in _leftovers(api, namespace))
    notes = _removals(published.read_annotations(api), condition.read_nodes(api))
    objects = apply.find_removable(api, all_objects(namespace), notify=notify)
    return (
        left
        + objects
        + tuple(str(each.title) for each in notes)
        + tuple(_label(node) for node in _labelled_nodes(api))
    )


def remove(api: Api, namespace: str, *, seconds: float, notify: OnProgress) -> tuple[str, ...]:
    """Delete all that `deploy` created, the plugin's annotations of nodes, pods left over from vectoradd, and the labels
    that brought the plugin to nodes, where gpunode set them. Returns the titles of what was deleted. Raises ClusterError,
    before anything is, where the user may not delete all."""
    left = _leftovers(api, namespace)
    live_objects = [*left, *apply.find_present(api, all_objects(namespace))]
    rights.demand(api, (*rights.of_deletion(live_objects), *rights.of_wait(live_objects), *rights.LABELS))
    for pod in left:
        api.delete("Pod", pod["metadata"]["name"], namespace)
    removed = apply.remove(api, all_objects(namespace), seconds=seconds, notify=notify)
    notes = _removals(published.remove_annotations(api), condition.remove(api, notify))
    marked = _labelled_nodes(api)  # last: a node that has lost its labels is not found by them
    for node in marked:
        kept = {
            key: node.labels[key]
            for key in node.applied[labels.PROVISION]
            if key not in OWN_LABELS and key in node.labels
        }
        labels.write(api, node, kept)
    titles = tuple(_label(node) for node in marked)
    return (*(title(pod) for pod in left), *removed, *(str(each.title) for each in notes), *titles)


def _elsewhere(api: Api, namespace: str) -> list[str]:
    """The namespaces that have the plugin's DaemonSets, if this one has none."""
    with suppress(HttpError):  # who may see one namespace only names that one
        daemonsets = api.find("DaemonSet", labels=f"{OURS}=gpunode")[0]
        places = {
            live["metadata"]["namespace"] for live in daemonsets if live["metadata"]["name"] in DAEMONSETS
        }
        return [] if namespace in places else sorted(places)
    return []


def _labelled_nodes(api: Api) -> list[Node]:
    """The nodes on which gpunode itself set a label of its own."""
    return [
        node for node in nodes.fetch(api) if node.applied.get(labels.PROVISION, frozenset()) & set(OWN_LABELS)
    ]


def _label(node: Node) -> str:
    return f"Node {node.name} label {', '.join(sorted(node.applied[labels.PROVISION] & set(OWN_LABELS)))}"


def _leftovers(api: Api, namespace: str) -> list[Object]:
    """gpunode's pods that belong to no DaemonSet of the plugin."""
    others = ",".join(f"{daemonset.NAME_LABEL}!={name}" for name in (*daemonset.NAMES, EXTENDER))
    items = api.find("Pod", namespace, labels=f"{OURS}=gpunode,{others}")[0]
    return [{"kind": "Pod", **item} for item in items]  # items of a list have no kind
