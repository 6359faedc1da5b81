"""Deploys the plugin: what would change, and a wait until it runs on every node."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress, Patience, changes
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.cluster.objects.manifests import rendered
from gpunode.errors import ClusterError
from gpunode.links import node as nodes
from gpunode.links.node import GPU_LABEL, RUNTIME_LABEL, Node
from gpunode.links.plugin import daemonset, overview, published
from gpunode.links.plugin.overview import Row
from gpunode.model import PluginConfig, PluginImage, PluginPublish
from gpunode.wording import Advice, Command

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

    @property
    def manifests(self) -> list[Object]:
        return manifests(self.namespace, self.image, self.config, self.publish, isolated=self.isolated)


@dataclass(frozen=True, slots=True)
class Scope:
    """The nodes with the GPU label that a rollout covers: `only` these (None: all). Pods with a UID in `renew` are
    replaced: a container keeps the driver libraries it was started with. `hopeless` nodes are not waited for."""

    only: Collection[str] | None = None
    renew: Collection[str] = ()
    hopeless: Collection[str] = ()

    def targets(self, labelled: Sequence[Node]) -> Mapping[str, Node]:
        """These of the labelled nodes, by name. Raises ClusterError where there is none."""
        found = {node.name: node for node in labelled if self.only is None or node.name in self.only}
        if not found:
            these = f"of {', '.join(sorted(self.only))} " if self.only else ""
            raise ClusterError(
                f"no node matches: none {these}carries the label {GPU_LABEL}=true, so the plugin runs nowhere",
                hint=Advice("`", Command("provision"), "` puts it on the nodes of the inventory."),
            )
        return found


EVERYWHERE = Scope()


@dataclass(frozen=True, slots=True)
class Rollout:
    """What `deploy` changed in the cluster, and the plugin's state on each node afterwards."""

    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]

    @property
    def good(self) -> bool:
        return not any(row.problem for row in self.rows)


def plan(
    api: Api, spec: Spec, *, strict: bool = True, tell: OnProgress = lambda _: None
) -> tuple[Difference, ...]:
    """What `deploy` would change; not `strict`: also for a user without the rights to do it. `tell` gets what is not known."""
    would = apply.diff(api, spec.manifests, everything(spec.namespace), strict=strict, tell=tell)
    return (*would, *(() if spec.publish.annotation else _removed(published.read_annotations(api))))


def deploy(api: Api, spec: Spec, scope: Scope = EVERYWHERE, *, seconds: float, tell: OnProgress) -> Rollout:
    """Apply the plugin and wait until it is ready in this version on every node of the scope, so that pods can have
    its devices. A version rolls out to some nodes at a time: `seconds` is the longest wait without progress.

    A node where it does not run in time is a row with its reason, not an exception.
    """
    namespace, wanted = spec.namespace, spec.manifests
    before = daemonset.every_pod(api, namespace)
    differences = apply.apply(api, wanted)
    for (
        pod
    ) in before:  # its problem may just have been fixed: a new pod starts at once, not after the back-off
        if pod["metadata"]["uid"] in scope.renew or daemonset.in_back_off(pod):
            api.delete("Pod", pod["metadata"]["name"], namespace, uid=pod["metadata"]["uid"])
    every = nodes.every(api, labels=f"{GPU_LABEL}=true")
    targets = scope.targets(every)
    able = [name for name, node in targets.items() if node.ready and name not in scope.hopeless]
    bare = without(every, daemonset.by_node(daemonset.plugins(before)))
    by_node, waiting = _waited(api, namespace, every, able, bare, seconds=seconds, tell=tell)
    # Last: the earlier plugin may need its rights to remove what it has published.
    differences += apply.prune(api, wanted, everything(namespace))
    differences += () if spec.publish.annotation else _removed(published.remove_annotations(api))
    fresh = {node.name: node for node in nodes.every(api, labels=f"{GPU_LABEL}=true")}  # offers GPUs by now
    rows = tuple(
        overview.row(api, namespace, fresh.get(name, node), by_node.get(name), name in waiting)
        for name, node in targets.items()
    )
    return Rollout(differences, rows)


def _waited(
    api: Api,
    namespace: str,
    every: Sequence[Node],
    able: Sequence[str],
    bare: Collection[str],
    *,
    seconds: float,
    tell: OnProgress,
) -> tuple[Mapping[str, Object], Collection[str]]:
    """The plugin's pods by node once it runs on all `able` nodes, or after `seconds` without progress; and the nodes
    where it does not. `every` node should have it; `bare` are those without it before."""
    known = {node.name: node for node in every}
    patience, progress, pulls = Patience(tell), time.monotonic(), pods.Pulls()
    by_node: Mapping[str, Object] = {}
    current: Mapping[str, str] = {}
    waiting = able
    longest = seconds * waves(len(able))
    for found, changed in changes(
        api, "Pod", namespace, seconds=longest, labels=daemonset.SELECTOR, tell=tell
    ):
        by_node = daemonset.by_node(found.values())
        if (
            changed is None
        ):  # at first and periodically, as others may change them; each event would be too often
            current = daemonset.generations(api, namespace)
        late = [name for name in able if not daemonset.up(by_node.get(name), current)]
        if len(late) < len(waiting):
            progress = time.monotonic()
        waiting = late
        if not waiting or time.monotonic() - progress > seconds:
            break
        if changed is None:
            hopeless = [name for name in waiting if name in by_node and pulls.hopeless(by_node[name])]
            if hopeless == list(waiting):
                break  # `row` says why
        advance(api, namespace, every, by_node, waiting, bare)
        patience.tell(
            f"the plugin runs on {len(able) - len(waiting)} of {len(able)} Ready nodes",
            lambda late=waiting[:NAMED], seen=by_node: daemonset.why_on(  # type: ignore[misc]
                api, namespace, [known[name] for name in late], seen
            ),
        )
    return by_node, waiting


def pods_on(api: Api, namespace: str, on: Collection[str]) -> list[Object]:
    """The plugin's pods on these nodes, including those of MPS control daemons."""
    return [pod for pod in daemonset.every_pod(api, namespace) if daemonset.place(pod) in on]


def _removed(texts: Mapping[str, str]) -> tuple[Difference, ...]:
    return tuple(
        Difference(published.annotation_title(name), "removed", (f"-{text}",)) for name, text in texts.items()
    )


def manifests(
    namespace: str,
    image: PluginImage,
    config: PluginConfig | None = None,
    publish: PluginPublish = PLAIN,
    *,
    isolated: bool = False,
) -> list[Object]:
    """Namespace, service account with its RBAC, configuration, RuntimeClass and two DaemonSets (the template explains
    why two), and two more of MPS control daemons where GPUs are shared by MPS."""
    files = config.files if config else {}
    common = {
        "namespace": namespace,
        "image": image.reference,
        "image_id": image.image_id,
        "pull": image.pull,
        "configs": files,
    }
    mps_root = config.mps_root if config else ""
    made = rendered(
        "plugin.yaml.j2",
        **common,
        mps_root=mps_root,
        config=config.text if config and not files else None,
        cdi_directory=config.cdi_directory if config else None,
        mig=bool(config and config.mig),
        events=publish.events,
        annotation=publish.annotation,
        promises=publish.promises,
        metrics=publish.metrics,
        isolated=isolated,
        config_id=hashlib.sha256(config.text.encode()).hexdigest()[:16] if config and not files else None,
    )
    return [*made, *rendered("mps.yaml.j2", **common, mps_root=mps_root)] if mps_root else made


def everything(namespace: str) -> list[Object]:
    """All objects that `deploy` may have applied, whatever the inventory."""
    publish = PluginPublish(events=True, annotation=True, metrics=True, promises=True)
    return manifests(namespace, PluginImage("any"), PluginConfig(mps_root="/any", files={"any": ""}), publish)


def bound(count: int) -> int:
    """How many of `count` nodes may be without the plugin at a time: the template's 10 %, rounded up."""
    return max(1, -(-count // 10))


def waves(count: int) -> int:
    """In how many batches all of them are replaced."""
    return max(1, -(-count // bound(count)))


def without(nodes: Iterable[Node], found: Mapping[str, Object]) -> set[str]:
    """Nodes without a ready pod."""
    return {node.name for node in nodes if not _serves(node, found.get(node.name))}


def advance(
    api: Api,
    namespace: str,
    nodes: Sequence[Node],
    found: Mapping[str, Object],
    waiting: Collection[str],
    before: Collection[str],
) -> None:
    """Delete pods of the earlier version where Kubernetes stops because of nodes that were without the plugin `before`.
    `nodes` are all that should have it, `waiting` those that have not the new version."""
    for name in due(nodes, found, waiting, before):
        api.delete("Pod", found[name]["metadata"]["name"], namespace, uid=found[name]["metadata"]["uid"])


def due(
    nodes: Sequence[Node], found: Mapping[str, Object], waiting: Collection[str], before: Collection[str]
) -> list[str]:
    """The nodes whose pods are replaced next."""
    turn: list[str] = []
    for mode in (True, False):  # a DaemonSet each
        these = [node for node in nodes if (node.labels.get(RUNTIME_LABEL) == "class") == mode]
        out, most = without(these, found), bound(len(these))
        if len(out) < most:
            continue  # Kubernetes continues on its own
        old = [node.name for node in these if node.name in waiting and node.name not in out]
        turn += old[: max(0, most - len(out - set(before)))]
    return turn


def _serves(node: Node, pod: Object | None) -> bool:
    return node.ready and pod is not None and not daemonset.ending(pod) and pods.ready(pod)
