"""Manifests into the cluster and out of it: what would change, change it, take it back.

Server-side apply by the field manager `gpunode`. Only objects that carry the label
`app.kubernetes.io/managed-by: gpunode` are forced or removed; anything else of the same name is somebody else's.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import yaml

from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object, title
from gpunode.cluster.watch import Tell, follow
from gpunode.errors import ClusterError

OURS = "app.kubernetes.io/managed-by"
ORDER = (  # the reverse when removing
    "Namespace",
    "ServiceAccount",
    "ConfigMap",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "RuntimeClass",
    "DaemonSet",
)
BOOKKEEPING = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
GENERATION = "deprecated.daemonset.template.generation"  # counts changes of a DaemonSet's pod template
# What a namespace may hold of its own accord; anything else in it is somebody's work.
NATIVE = {"ConfigMap/kube-root-ca.crt"}


@dataclass(frozen=True, slots=True)
class Difference:
    """One object: what applying its manifest does, or did. `lines` is a unified diff, () when it is the same."""

    what: str
    action: Literal["created", "changed", "same", "foreign", "removed"]
    lines: tuple[str, ...] = ()


def diff(api: Api, manifests: Sequence[Object], surplus: Sequence[Object] = ()) -> tuple[Difference, ...]:
    """What `apply`, and `prune` after it, would do, asked from the API server itself (a dry run): defaults and admission
    included."""
    return (*_go(api, manifests, dry_run=True), *prune(api, manifests, surplus, dry_run=True))


def apply(api: Api, manifests: Sequence[Object]) -> tuple[Difference, ...]:
    """Make the cluster hold the manifests. Applying the same again changes nothing."""
    return _go(api, manifests, dry_run=False)


def prune(
    api: Api, manifests: Sequence[Object], surplus: Sequence[Object], *, dry_run: bool = False
) -> tuple[Difference, ...]:
    """Remove what `surplus` has beyond the manifests (by kind, namespace and name), if it is gpunode's: rights and
    settings that an earlier apply wanted."""
    wanted, done = {title(manifest) for manifest in manifests}, []
    for manifest in reversed(_ordered([one for one in surplus if title(one) not in wanted])):
        kind, meta = manifest["kind"], manifest["metadata"]
        live = api.get(kind, meta["name"], meta.get("namespace"))
        if live is None or not ours(live):
            continue
        if not dry_run:
            api.delete(kind, meta["name"], meta.get("namespace"), uid=live["metadata"]["uid"])
        lines = tuple(f"-{line}" for line in _yaml(_wished(live)))
        done.append(Difference(title(manifest), "removed", lines))
    return tuple(done)


def removable(api: Api, manifests: Sequence[Object]) -> tuple[str, ...]:
    """What `remove` would delete now, by title."""
    found = []
    for manifest in reversed(_ordered(manifests)):
        live = api.get(manifest["kind"], manifest["metadata"]["name"], manifest["metadata"].get("namespace"))
        if (
            live is not None
            and ours(live)
            and not (live["kind"] == "Namespace" and _guests(api, live["metadata"]["name"]))
        ):
            found.append(title(manifest))
    return tuple(found)


def remove(api: Api, manifests: Sequence[Object], *, seconds: float, tell: Tell) -> tuple[str, ...]:
    """Delete what `apply` made and wait until it is gone. Returns what was removed, by title.

    A namespace that holds anything gpunode did not put there stays, and `tell` says so.
    """
    removed = []
    for manifest in reversed(_ordered(manifests)):
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        namespace = manifest["metadata"].get("namespace")
        live = api.get(kind, name, namespace)
        if live is None:
            continue
        if not ours(live):
            tell(f"{title(manifest)} stays: it is not gpunode's")
            continue
        if kind == "Namespace" and (guests := _guests(api, name)):
            tell(f"{title(manifest)} stays: it also holds {', '.join(guests[:5])}")
            continue
        if api.delete(kind, name, namespace, uid=live["metadata"]["uid"]):
            removed.append(title(manifest))
        tell(f"waiting for {title(manifest)} to be gone")
        for left in follow(api, kind, namespace, seconds=seconds, fields=f"metadata.name={name}", tell=tell):
            if not left:
                break
        else:
            raise ClusterError(
                f"{title(manifest)} is still there {seconds:.0f} s after it was deleted",
                hint="Pods on a node that is not Ready go when it is back, or when its Node object is deleted;"
                f" see `kubectl get pods{f' -n {namespace}' if namespace else ''} -o wide`.",
            )
    return tuple(removed)


def ours(live: Object) -> bool:
    """Whether gpunode made this object."""
    return bool((live["metadata"].get("labels") or {}).get(OURS) == "gpunode")


def _go(api: Api, manifests: Sequence[Object], *, dry_run: bool) -> tuple[Difference, ...]:
    done: list[Difference] = []
    absent: set[str] = set()  # namespaces that a dry run did not really make
    for manifest in _ordered(manifests):
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        namespace = manifest["metadata"].get("namespace")
        if namespace in absent:
            done.append(_created(manifest))
            continue
        live = api.get(kind, name, namespace)
        if live is not None and not ours(live):
            done.append(_foreign(manifest, live))
            continue
        if live is None and kind == "Namespace" and dry_run:
            absent.add(name)
        result = api.apply(manifest, force=live is not None, dry_run=dry_run)
        done.append(_created(manifest) if live is None else _changed(manifest, live, result))
    return tuple(done)


def _foreign(manifest: Object, live: Object) -> Difference:
    """Somebody else's object of that name: good enough as it is, or a refusal."""
    if manifest["kind"] == "RuntimeClass" and live.get("handler") != manifest["handler"]:
        raise ClusterError(
            f"{title(manifest)} exists, is not gpunode's, and has the handler `{live.get('handler')}`"
            f" instead of `{manifest['handler']}`",
            hint="Remove it, or make it name that handler; pods that use it start with the handler it names.",
        )
    if manifest["kind"] not in {"Namespace", "RuntimeClass"}:
        raise ClusterError(
            f"{title(manifest)} exists and is not gpunode's",
            hint="Remove it, or choose another namespace with cluster.namespace in the inventory.",
        )
    return Difference(title(manifest), "foreign")


def _created(manifest: Object) -> Difference:
    return Difference(title(manifest), "created", tuple(f"+{line}" for line in _yaml(manifest)))


def _changed(manifest: Object, live: Object, result: Object) -> Difference:
    before, after = _wished(live), _wished(result)
    if before == after:
        return Difference(title(manifest), "same")
    lines = difflib.unified_diff(_yaml(before), _yaml(after), "in the cluster", "wanted", lineterm="")
    return Difference(title(manifest), "changed", tuple(lines))


def _wished(found: Object) -> Object:
    """The object as a person wrote it or would: without status and the API server's bookkeeping."""
    meta = {key: value for key, value in found["metadata"].items() if key not in BOOKKEEPING}
    notes = {key: value for key, value in meta.pop("annotations", {}).items() if key != GENERATION}
    shown = {key: value for key, value in found.items() if key != "status"}
    return shown | {"metadata": meta | ({"annotations": notes} if notes else {})}


def _yaml(shown: Object) -> list[str]:
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    return str(yaml.dump(shown, Dumper=dumper, sort_keys=True, width=200)).splitlines()


def _ordered(manifests: Sequence[Object]) -> list[Object]:
    return sorted(manifests, key=lambda manifest: ORDER.index(manifest["kind"]))


def _guests(api: Api, namespace: str) -> list[str]:
    """What a namespace holds that is neither gpunode's nor there in every namespace."""
    found = []
    for kind in ("Pod", "ConfigMap", "Secret", "PersistentVolumeClaim"):
        for item in api.find(kind, namespace)[0]:
            name = f"{kind}/{item['metadata']['name']}"
            native = name in NATIVE or item.get("type") == "kubernetes.io/service-account-token"
            if not ours(item) and not native:
                found.append(name)
    return found
