"""The bundled device plugin in the cluster: deploy it, see how it is, take it away."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Collection, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from gpunode.cluster import annotation, apply, daemonset, expected, nodes, offer, plugin_status, pods, rollout
from gpunode.cluster.api import Api
from gpunode.cluster.difference import Difference
from gpunode.cluster.kinds import OURS, Object, title
from gpunode.cluster.manifests import rendered
from gpunode.cluster.nodes import GPU_LABEL, Node
from gpunode.cluster.plugin_status import CONTAINER
from gpunode.cluster.reason import Reason
from gpunode.cluster.watch import Patience, Tell, follow
from gpunode.deviceplugin.status import Status
from gpunode.errors import ClusterError
from gpunode.model import PluginConfig, PluginImage, PluginVoice

PLAIN = PluginVoice()
NO_POD = Reason("no-pod", "")
NAMED = 3  # nodes whose reasons one sentence holds


@dataclass(frozen=True, slots=True)
class Row:
    """The plugin on one node. `pod` is "" where there is none; `trouble` is "" where it runs, and `lacks` then says why
    the node offers not all of its GPUs, or not as the configuration wants it. `note` is what looks wrong and is not."""

    node: str
    pod: str
    phase: str
    restarts: int
    capacity: int
    allocatable: int
    trouble: str
    last_line: str = ""
    lacks: str = ""
    note: str = ""
    resource: str = ""  # that capacity and allocatable are of
    code: str = ""  # of `trouble`

    @property
    def wrong(self) -> str:
        """What is wrong with the plugin or with what the node offers."""
        return self.trouble or self.lacks


@dataclass(frozen=True, slots=True)
class Rollout:
    """What `deploy` did to the cluster's objects, and how the plugin then was on each node."""

    differences: tuple[Difference, ...]
    rows: tuple[Row, ...]

    @property
    def good(self) -> bool:
        return not any(row.trouble for row in self.rows)


def manifests(
    namespace: str,
    image: PluginImage,
    config: PluginConfig | None = None,
    voice: PluginVoice = PLAIN,
) -> list[Object]:
    """Namespace, service account and its rights, configuration, RuntimeClass and the two DaemonSets (the template says
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
        events=voice.events,
        annotation=voice.annotation,
        metrics=voice.metrics,
        config_id=hashlib.sha256(config.text.encode()).hexdigest()[:16] if config and not files else None,
    )
    return [*made, *rendered("mps.yaml.j2", **common, mps_root=mps_root)] if mps_root else made


def everything(namespace: str) -> list[Object]:
    """All that any inventory can make `deploy` apply."""
    voice = PluginVoice(events=True, annotation=True, metrics=True)
    return manifests(namespace, PluginImage("any"), PluginConfig("any", mps_root="/any"), voice)


def plan(
    api: Api,
    namespace: str,
    image: PluginImage,
    config: PluginConfig | None = None,
    voice: PluginVoice = PLAIN,
    *,
    strict: bool = True,
) -> tuple[Difference, ...]:
    """What `deploy` would change; not `strict`: also for a user who could not do it."""
    wanted = manifests(namespace, image, config, voice)
    would = apply.diff(api, wanted, everything(namespace), strict=strict)
    return (*would, *(() if voice.annotation else _unsaid(annotation.left(api))))


def deploy(
    api: Api,
    namespace: str,
    image: PluginImage,
    config: PluginConfig | None = None,
    voice: PluginVoice = PLAIN,
    *,
    seconds: float,
    tell: Tell,
    only: Collection[str] | None = None,
    renew: Collection[str] = (),
    hopeless: Collection[str] = (),
) -> Rollout:
    """Apply the plugin and wait until it is ready, in the version wished, on every node with the GPU label (of `only`):
    from then on the kubelet gives pods what it offers. Nodes that are `hopeless` are not waited for. A version comes to
    some nodes at a time: `seconds` are how long none may come.

    Pods whose uid is in `renew` are replaced: a container keeps the driver's libraries it was started with.
    A node where it does not run in time is a row with its trouble, not an exception.
    """
    there = daemonset.every_pod(api, namespace)
    stuck = [pod for pod in there if pod["metadata"]["uid"] in renew or daemonset.in_back_off(pod)]
    wanted = manifests(namespace, image, config, voice)
    differences = apply.apply(api, wanted)
    for pod in stuck:  # what it failed on may just have been mended: a new pod tries at once, not in minutes
        api.delete("Pod", pod["metadata"]["name"], namespace, uid=pod["metadata"]["uid"])
    every = nodes.every(api, labels=f"{GPU_LABEL}=true")
    targets = {node.name: node for node in every if only is None or node.name in only}
    if not targets:
        raise ClusterError(
            f"no node matches: none {'of ' + ', '.join(sorted(only)) + ' ' if only else ''}carries the label {GPU_LABEL}=true, so the plugin runs nowhere",
            hint="`gpunode provision` puts it on the nodes of the inventory.",
        )
    patience, progress = Patience(tell), time.monotonic()
    bare = rollout.without(every, daemonset.by_node(daemonset.plugins(there)))
    by_node: dict[str, Object] = {}
    waiting = able = [name for name, node in targets.items() if node.ready and name not in hopeless]
    longest = seconds * rollout.waves(len(able))
    for found in follow(api, "Pod", namespace, seconds=longest, labels=daemonset.SELECTOR, tell=tell):
        by_node = daemonset.by_node(found.values())
        current = daemonset.generations(api, namespace)
        late = [name for name in able if not daemonset.up(by_node.get(name), current)]
        if len(late) < len(waiting):
            progress = time.monotonic()
        waiting = late
        if not waiting or time.monotonic() - progress > seconds:
            break
        rollout.go_on(api, namespace, every, by_node, waiting, bare)
        patience.tell(
            f"the plugin runs on {len(able) - len(waiting)} of {len(able)} Ready nodes",
            lambda late=waiting[:NAMED], seen=by_node: daemonset.why_on(  # type: ignore[misc]
                api, namespace, [targets[name] for name in late], seen
            ),
        )
    # Last, as the plugin of before may need its rights to take back what it has written.
    differences += apply.prune(api, wanted, everything(namespace))
    differences += () if voice.annotation else _unsaid(annotation.remove(api))
    fresh = {node.name: node for node in nodes.every(api, labels=f"{GPU_LABEL}=true")}  # GPUs came meanwhile
    rows = tuple(
        _row(api, namespace, fresh.get(name, node), by_node.get(name), name in waiting)
        for name, node in targets.items()
    )
    return Rollout(differences, rows)


def uids(api: Api, namespace: str, on: Collection[str]) -> set[str]:
    """The uids of the plugin's pods on these nodes, those of MPS control daemons among them."""
    return {
        pod["metadata"]["uid"] for pod in daemonset.every_pod(api, namespace) if daemonset.place(pod) in on
    }


def status(api: Api, namespace: str, config: PluginConfig | None = None) -> tuple[Row, ...]:
    """One row per node that has the GPU label or a plugin pod, with the last line the pod logged.

    A node that offers no GPU, or not all that its kubelet counts, lacks some.
    """
    by_node = daemonset.by_node(api.find("Pod", namespace, labels=daemonset.SELECTOR)[0])
    known = [
        node for node in nodes.every(api) if node.labels.get(GPU_LABEL) == "true" or node.name in by_node
    ]

    def row(node: Node) -> Row:
        pod = by_node.get(node.name)
        waiting = pod is None or daemonset.ending(pod) or not pods.ready(pod)
        published = plugin_status.read(api, node, pod) if pod else NO_POD
        node = offer.current(api, node, pod, published)
        found = _row(api, namespace, node, pod, waiting, log=True)
        misnamed = expected.misnamed(config, node.labels)
        if not found.trouble and misnamed:
            return replace(found, lacks=misnamed)
        named = expected.memory(config, node.labels)
        offers = node.offers or node.units.get(named)
        if not found.trouble and (not offers or 0 < node.allocatable < node.capacity):
            return replace(found, lacks=offer.lacking(api, node, named or None, namespace).words)
        old = _old(node, published, config)
        found = _counted(found, node, old)
        lost = ", ".join(f"{count} of {name}" for name, count in node.short.items() if name not in old)
        if not found.trouble and lost:
            return replace(found, lacks=f"{lost} not offered: {offer.why_not(api, node, None, namespace)}")
        lacks = "" if found.trouble or waiting else plugin_status.unseen(published)
        return replace(found, lacks=lacks, note=_forgotten({name: node.short[name] for name in old}))

    with ThreadPoolExecutor(8) as pool:
        return tuple(pool.map(row, known))


def removable(api: Api, namespace: str, *, tell: Tell) -> tuple[str, ...]:
    """What `remove` would delete now, by title; `tell` hears what would stay and why."""
    left = tuple(title(pod) for pod in _leftovers(api, namespace))
    said = tuple(annotation.title(node) for node in annotation.left(api))
    return left + apply.removable(api, everything(namespace), tell=tell) + said


def remove(api: Api, namespace: str, *, seconds: float, tell: Tell) -> tuple[str, ...]:
    """Delete all that `deploy` made, what the plugin said on nodes, and pods left over from vectoradd. Labels of nodes
    stay. Returns titles."""
    left = _leftovers(api, namespace)
    for pod in left:
        api.delete("Pod", pod["metadata"]["name"], namespace)
    removed = apply.remove(api, everything(namespace), seconds=seconds, tell=tell)
    said = tuple(annotation.title(node) for node in annotation.remove(api))
    return tuple(title(pod) for pod in left) + removed + said


def _old(node: Node, status: Status | Reason, config: PluginConfig | None) -> tuple[str, ...]:
    """Resources that the kubelet counts still, and that nobody offers any more: by this configuration none can be, or the
    plugin that runs does not."""
    none = [name for name in node.short if not node.units.get(name)]
    offers = plugin_status.offered(status)
    return tuple(
        name
        for name in none
        if not expected.makes(config, node.labels, name) or (offers is not None and name not in offers)
    )


def _counted(row: Row, node: Node, old: Collection[str]) -> Row:
    """The same of what pods can have: GPUs; where they are offered as something else alone, that."""
    others = [name for name in node.offers if name.startswith("nvidia.com/")]
    names = [name for name in node.counted if name not in old] or others
    if not names:
        return row
    capacity, allocatable = (
        sum(some.get(name, 0) for name in names) for some in (node.capacities, node.units)
    )
    return replace(row, resource=", ".join(names), capacity=capacity, allocatable=allocatable)


def _forgotten(counts: Mapping[str, int]) -> str:
    """That the kubelet still counts what is offered no more: of device plugins that have gone it tells so for a while."""
    if not counts:
        return ""
    names = ", ".join(f"{name} ({count})" for name, count in counts.items())
    several = len(counts) > 1
    return (
        f"{names} {'are' if several else 'is'} of the earlier configuration; "
        f"the kubelet forgets {'them' if several else 'it'} within 5 minutes"
    )


def _unsaid(said: Mapping[str, str]) -> tuple[Difference, ...]:
    return tuple(Difference(annotation.title(name), "removed", (f"-{text}",)) for name, text in said.items())


def _leftovers(api: Api, namespace: str) -> list[Object]:
    """gpunode's own pods that no DaemonSet of the plugin has made."""
    others = ",".join(f"{daemonset.NAME_LABEL}!={name}" for name in daemonset.NAMES)
    items = api.find("Pod", namespace, labels=f"{OURS}=gpunode,{others}")[0]
    return [{"kind": "Pod", **item} for item in items]  # items of a list come without their kind


def _row(
    api: Api, namespace: str, node: Node, pod: Object | None, waiting: bool, *, log: bool = False
) -> Row:
    trouble = None if node.ready else Reason("node-not-ready", f"the node is not Ready: {node.why_not_ready}")
    if node.ready and waiting:
        trouble = daemonset.why(api, namespace, node, pod)
    line = plugin_status.log_line(pods.last_words(api, pod, CONTAINER, lines=20)) if pod and log else ""
    return Row(
        node=node.name,
        pod=pod["metadata"]["name"] if pod else "",
        phase=pod.get("status", {}).get("phase", "") if pod else "",
        restarts=pods.restarts(pod) if pod else 0,
        capacity=node.capacity,
        allocatable=node.allocatable,
        trouble=trouble.words if trouble else "",
        code=trouble.code if trouble else "",
        last_line=line,
        resource=", ".join(node.counted),
    )
