"""Manifests into the cluster and out of it: what would change, change it, take it back.

Server-side apply by the field manager `gpunode`. Only objects that carry the label
`app.kubernetes.io/managed-by: gpunode` are forced or removed; anything else of the same name is somebody else's.
"""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.cluster import difference, guests
from gpunode.cluster.api import Api
from gpunode.cluster.difference import Difference
from gpunode.cluster.kinds import Object, ours, title
from gpunode.cluster.refusal import Claim, HttpError, excused
from gpunode.cluster.watch import Tell, follow
from gpunode.errors import ClusterError

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


def diff(
    api: Api, manifests: Sequence[Object], surplus: Sequence[Object] = (), *, strict: bool = True
) -> tuple[Difference, ...]:
    """What `apply`, and `prune` after it, would do, asked from the API server itself (a dry run): defaults and admission
    included.

    Where it cannot be asked, what is wished is compared with what is there. Unless `strict`, so it is where this user
    may read and not write.
    """
    would: list[Difference] = []
    absent: set[str] = set()  # namespaces that a dry run did not really make
    for manifest in _ordered(manifests):
        namespace = manifest["metadata"].get("namespace")
        if namespace in absent:
            would.append(difference.created(manifest, f"namespace {namespace} is not there yet"))
            continue
        live = _live(api, manifest)
        if live is None and manifest["kind"] == "Namespace":
            absent.add(manifest["metadata"]["name"])
        if live is not None and not ours(live):
            would.append(_foreign(manifest, live))
            continue
        try:
            would.append(_tried(api, manifest, live))
        except HttpError as error:
            if not (untried := excused(error, strict=strict)):
                raise
            would.append(difference.compared(live, manifest, untried))
    left = [one for one in surplus if one["metadata"].get("namespace") not in absent]
    return (*would, *prune(api, manifests, left, dry_run=True))


def apply(api: Api, manifests: Sequence[Object]) -> tuple[Difference, ...]:
    """Make the cluster hold the manifests. Applying the same again changes nothing."""
    done: list[Difference] = []
    for manifest in _ordered(manifests):
        live = _live(api, manifest)
        if live is not None and not ours(live):
            done.append(_foreign(manifest, live))
            continue
        result = api.apply(manifest, force=live is not None)
        done.append(difference.created(manifest) if live is None else difference.changed(live, result))
    return tuple(done)


def prune(
    api: Api, manifests: Sequence[Object], surplus: Sequence[Object], *, dry_run: bool = False
) -> tuple[Difference, ...]:
    """Remove what `surplus` has beyond the manifests (by kind, namespace and name), if it is gpunode's: rights and
    settings that an earlier apply wanted."""
    wanted, done = {title(manifest) for manifest in manifests}, []
    for manifest in reversed(_ordered([one for one in surplus if title(one) not in wanted])):
        kind, meta = manifest["kind"], manifest["metadata"]
        live = _live(api, manifest)
        if live is None or not ours(live):
            continue
        if not dry_run:
            api.delete(kind, meta["name"], meta.get("namespace"), uid=live["metadata"]["uid"])
        done.append(difference.removed(live))
    return tuple(done)


def removable(api: Api, manifests: Sequence[Object], *, tell: Tell) -> tuple[str, ...]:
    """What `remove` would delete now, by title; `tell` hears what would stay and why."""
    found = []
    for manifest in reversed(_ordered(manifests)):
        live = _live(api, manifest)
        if live is None:
            continue
        if why := _stays(api, live, manifests):
            tell(f"{title(manifest)} stays: {why}")
        else:
            found.append(title(manifest))
    return tuple(found)


def remove(api: Api, manifests: Sequence[Object], *, seconds: float, tell: Tell) -> tuple[str, ...]:
    """Delete what `apply` made and wait until it is gone. Returns what was removed, by title.

    What others hold or name stays, and so does that of which it cannot be told; `tell` hears why.
    """
    removed = []
    for manifest in reversed(_ordered(manifests)):
        kind, name = manifest["kind"], manifest["metadata"]["name"]
        namespace = manifest["metadata"].get("namespace")
        live = _live(api, manifest)
        if live is None:
            continue
        if why := _stays(api, live, manifests):
            tell(f"{title(manifest)} stays: {why}")
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


def _live(api: Api, manifest: Object) -> Object | None:
    return api.get(manifest["kind"], manifest["metadata"]["name"], manifest["metadata"].get("namespace"))


def _tried(api: Api, manifest: Object, live: Object | None) -> Difference:
    """What the API server says that applying would do. Fields that others have set since are named with them."""
    if live is None:
        api.apply(manifest, dry_run=True)
        return difference.created(manifest)
    claims: tuple[Claim, ...] = ()
    try:
        result = api.apply(manifest, dry_run=True)
    except HttpError as error:
        if error.reason != "Conflict":
            raise
        claims = error.claims
        result = api.apply(manifest, force=True, dry_run=True)
    return difference.changed(live, result, claims)


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


def _ordered(manifests: Sequence[Object]) -> list[Object]:
    return sorted(manifests, key=lambda manifest: ORDER.index(manifest["kind"]))


def _stays(api: Api, live: Object, manifests: Sequence[Object]) -> str:
    """Why an object is not to be removed; "" where it may be."""
    if not ours(live):
        return "it is not gpunode's"
    known, name = [title(manifest) for manifest in manifests], live["metadata"]["name"]
    if live["kind"] == "Namespace":
        return guests.in_namespace(api, name, known)
    return guests.of_runtime_class(api, name, known) if live["kind"] == "RuntimeClass" else ""
