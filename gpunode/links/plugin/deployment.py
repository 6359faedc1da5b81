"""Deploys the plugin: what would change, and a wait until it runs on every node."""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress, Patience, changes
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.errors import ClusterError
from gpunode.links import node as nodes
from gpunode.links.node import GPU_LABEL, Node
from gpunode.links.plugin import annotation, daemonset, overview, rolling_update
from gpunode.links.plugin.manifests import PLAIN, everything, manifests
from gpunode.links.plugin.overview import Row
from gpunode.model import PluginConfig, PluginImage, PluginPublish
from gpunode.wording import Advice, Command

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
    return (*would, *(() if spec.publish.annotation else _removed(annotation.left(api))))


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
    bare = rolling_update.without(every, daemonset.by_node(daemonset.plugins(before)))
    by_node, waiting = _waited(api, namespace, every, able, bare, seconds=seconds, tell=tell)
    # Last: the earlier plugin may need its rights to remove what it has published.
    differences += apply.prune(api, wanted, everything(namespace))
    differences += () if spec.publish.annotation else _removed(annotation.remove(api))
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
    longest = seconds * rolling_update.waves(len(able))
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
        rolling_update.advance(api, namespace, every, by_node, waiting, bare)
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
    return tuple(Difference(annotation.title(name), "removed", (f"-{text}",)) for name, text in texts.items())
