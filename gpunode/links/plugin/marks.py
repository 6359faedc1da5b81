"""gpunode's marks on a node: labels, taints, cordon, annotations and the plugin's condition; and how they are taken off."""

from collections.abc import Collection, Iterator

from gpunode.cluster.api import Api, notes
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.contract.condition import TYPE
from gpunode.links.node import GPU_LABEL, RUNTIME_LABEL, TAINTS, Node, cordon, labels, parse, taint
from gpunode.links.plugin import condition, features
from gpunode.links.plugin.daemonset import OWNER as PAUSER
from gpunode.links.plugin.published import ANNOTATIONS

DOMAIN = "gpunode.dev/"
WRITERS = (labels.PROVISION, labels.ACCELERATOR, features.WRITER)
PLUGIN = (GPU_LABEL, RUNTIME_LABEL)  # by which a node has the plugin
APPLY = "Apply"


def is_owned(item: Object) -> bool:
    """True if gpunode set labels on the node that are there."""
    node = parse(item)
    return bool(node.applied.get(labels.PROVISION, frozenset()) & node.labels.keys())


def find(item: Object, *, keep_software: bool = False) -> tuple[str, ...]:
    """What `take_off` would remove from the node, as `label NAME`, `taint KEY=VALUE:EFFECT` …, or whose mark it would end."""
    node, annotations = parse(item), item["metadata"].get("annotations") or {}
    stays = " (stays without an owner)"
    texts = [
        f"label {key}{stays if keep_software and key in PLUGIN else ''}"
        for key in _labels(node, keep_software)
    ]
    run = taint.run_of(node)
    texts += [f"taint {text}" for text in (*node.own_taints, *((taint.text(run),) if run else ()))]
    texts += ["cordon"] if cordon.owner_of(item) else []
    named = (TAINTS, cordon.OWNER)  # by what they are about
    texts += [
        f"annotation {key}"
        for key in _annotations(annotations, keep_software)
        if not key.startswith((notes.PREFIX, *named))
    ]
    texts += [f"condition {TYPE}"] if not keep_software and condition.is_own(item) else []
    return tuple(texts)


def _labels(node: Node, keep_software: bool) -> Iterator[str]:
    """The labels that go; those of the plugin whoever set them, as it would stay by them."""
    own = {key for writer in WRITERS for key in node.applied.get(writer, ())}
    own |= set() if keep_software else set(PLUGIN)
    return (key for key in sorted(own) if key in node.labels)


def _annotations(annotations: Object, keep_software: bool) -> list[str]:
    """What the plugin publishes stays with a plugin that stays: it would write it again."""
    own = [key for key in annotations if key.startswith(DOMAIN)]
    return [key for key in own if not (keep_software and key in ANNOTATIONS)]


def take_off(api: Api, name: str, *, keep_software: bool, notify: OnProgress) -> None:
    """Remove the marks from the node, the cordon last. With `keep_software` the plugin's labels stay, and are nobody's. Raises
    ClusterError."""
    item = api.get("Node", name)
    if item is None:
        return
    node = parse(item)
    kept = {key: node.labels[key] for key in PLUGIN if keep_software and key in node.labels}
    for writer in WRITERS:
        if writer in node.applied:
            labels.write(api, node, kept if writer == labels.PROVISION else {}, writer=writer)
    taint.write(api, node, ())
    taint.release(api, name, taint.run_of(node))
    cordon.change_node(api, name, lambda live: _clear(live, keep_software))
    if not keep_software:
        condition.remove(api, notify, [name])
    cordon.uncordon(api, name)


def remove_plugin(api: Api, name: str, *, notify: OnProgress) -> None:
    """Remove the plugin's labels, its annotations and its condition: nothing that is of other runs. Raises ClusterError."""
    cordon.change_node(api, name, lambda live: _clear(live, False, (*ANNOTATIONS, PAUSER)))
    condition.remove(api, notify, [name])


def _clear(live: Object, keep_software: bool, only: Collection[str] | None = None) -> Object | None:
    """The patch that removes gpunode's annotations but the cordon's (`only`: these), and the plugin's labels, or gpunode's hold on them."""
    meta = live["metadata"]
    own = _annotations(meta.get("annotations") or {}, keep_software)
    gone = {key: None for key in own if (key != cordon.OWNER if only is None else key in only)}
    fields: Object = {"annotations": gone} if gone else {}
    if keep_software:
        entries = meta.get("managedFields") or []
        others = [
            entry for entry in entries if (entry["manager"], entry["operation"]) != (labels.PROVISION, APPLY)
        ]
        fields |= {"managedFields": others} if others != entries else {}
    elif here := [key for key in PLUGIN if key in (meta.get("labels") or {})]:
        fields["labels"] = dict.fromkeys(here)
    return {"metadata": fields} if fields else None
