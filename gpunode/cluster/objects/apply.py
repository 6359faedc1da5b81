"""Manifests applied to the cluster and removed from it, each with a dry run.

Applied by the field manager `gpunode`. Only objects with the label
`app.kubernetes.io/managed-by: gpunode` are forced or removed; others of the same name belong to other users.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from gpunode.cluster import rights
from gpunode.cluster.api import MANAGER, Api, notes, side_by_side
from gpunode.cluster.api.kinds import Object, is_ours, title
from gpunode.cluster.api.refusal import why_untried
from gpunode.cluster.api.watch import OnProgress, follow
from gpunode.cluster.objects import dependents, difference
from gpunode.cluster.objects.difference import Difference
from gpunode.errors import Claim, ClusterError, HttpError
from gpunode.model import Title
from gpunode.wording import page

Result = TypeVar("Result")
POLICY = "ValidatingAdmissionPolicy"
ORDER = (  # the reverse when removing
    "Namespace",
    "ServiceAccount",
    "ConfigMap",
    "Secret",
    "ValidatingAdmissionPolicy",  # before the rights that it holds in
    "ValidatingAdmissionPolicyBinding",
    "Role",
    "RoleBinding",
    "ClusterRole",
    "ClusterRoleBinding",
    "RuntimeClass",
    "DaemonSet",
    "Service",
    "Deployment",
)


@dataclass(frozen=True, slots=True)
class Component(Generic[Result]):
    """Objects of gpunode's that make one thing in the cluster: the plugin, the extender, a second scheduler.

    `manifests`: its desired state. `surplus`: objects that other settings may have left. `wait` returns once it works, with its state,
    and raises ClusterError with the reason if it does not.
    """

    manifests: Sequence[Object]
    surplus: Sequence[Object]
    wait: Callable[[Api, OnProgress], Result]

    def plan(
        self,
        api: Api,
        before: Sequence[Object] = (),
        *,
        strict: bool = True,
        notify: OnProgress = lambda _: None,
    ) -> tuple[Difference, ...]:
        """The changes of `deploy` after `before` (such as a namespace) is applied. `strict`, `notify`: as in `diff`."""
        return diff(api, [*before, *self.manifests], self.surplus, strict=strict, notify=notify)

    def deploy(self, api: Api, notify: OnProgress) -> tuple[tuple[Difference, ...], Result]:
        """Apply it, wait until it works, then remove the surplus: the component that worked before may need its rights to remove
        what it published."""
        done = apply(api, self.manifests)
        result = self.wait(api, notify)
        return done + prune(api, self.manifests, self.surplus), result


def diff(
    api: Api,
    manifests: Sequence[Object],
    surplus: Sequence[Object] = (),
    *,
    strict: bool = True,
    notify: OnProgress = lambda _: None,
) -> tuple[Difference, ...]:
    """The changes of `apply`, then `prune`, by a dry run of the API server, defaults and admission included.

    If the server cannot dry-run a change, the manifest is compared with the current object; unless `strict`, also if this
    user may read but not write.
    """
    manifests = fit(api, manifests)
    namespaces = [manifest for manifest in manifests if manifest["kind"] == "Namespace"]
    would = [_diff(api, namespace, frozenset(), strict=strict) for namespace in namespaces]
    # A dry run creates no namespace, so objects inside a new one cannot be dry-run.
    absent = {
        namespace["metadata"]["name"]
        for namespace, change in zip(namespaces, would, strict=True)
        if change.action == "created"
    }
    others = _sort([manifest for manifest in manifests if manifest["kind"] != "Namespace"])
    would += side_by_side(lambda manifest: _diff(api, manifest, absent, strict=strict), others)
    left = [manifest for manifest in surplus if manifest["metadata"].get("namespace") not in absent]
    return (*would, *prune(api, manifests, left, dry_run=True, strict=strict, notify=notify))


def apply(api: Api, manifests: Sequence[Object]) -> tuple[Difference, ...]:
    """Apply the manifests. A second apply of the same changes nothing."""
    done: list[Difference] = []
    for manifest in _sort(fit(api, manifests)):
        live = _live(api, manifest)
        if live is not None and not is_ours(live):
            done.append(_check_foreign(manifest, live))
            continue
        result = api.apply(manifest, force=live is not None, noted=_has_note(live))
        done.append(difference.creation(manifest) if live is None else difference.change(live, result))
    return tuple(done)


def prune(
    api: Api,
    manifests: Sequence[Object],
    surplus: Sequence[Object],
    *,
    dry_run: bool = False,
    strict: bool = False,
    notify: OnProgress = lambda _: None,
) -> tuple[Difference, ...]:
    """Remove gpunode's objects in `surplus` that are not in the manifests (by kind, namespace and name): rights and
    settings of an earlier apply. `strict`: raises ClusterError, before any removal, if the user lacks a right."""
    wanted = {title(manifest) for manifest in manifests}
    beyond = find_present(api, [manifest for manifest in surplus if title(manifest) not in wanted], notify)
    if strict:
        rights.demand(api, rights.of_deletion(beyond))
    if not dry_run:
        for live in beyond:
            meta = live["metadata"]
            api.delete(live["kind"], meta["name"], meta.get("namespace"), uid=meta["uid"])
    return tuple(difference.removal(live) for live in beyond)


def find_present(api: Api, manifests: Sequence[Object], notify: OnProgress = lambda _: None) -> list[Object]:
    """The objects of these manifests that exist and are gpunode's, in the order in which they are removed."""
    readable = reversed(_sort(_readable(api, manifests, notify)))
    lives = side_by_side(lambda each: _live(api, each), readable)
    return [live for live in lives if live is not None and is_ours(live)]


def find_removable(api: Api, manifests: Sequence[Object], *, notify: OnProgress) -> tuple[str, ...]:
    """Titles of the objects that `remove` would delete now; `notify` gets the reason of each that would stay."""
    return tuple(map(title, _removable(api, manifests, notify)))


def remove(api: Api, manifests: Sequence[Object], *, seconds: float, notify: OnProgress) -> tuple[str, ...]:
    """Delete the objects of `apply` and wait until they are gone. Returns the titles of those removed.

    An object that others use stays, and so does one whose users are unknown; `notify` gets the reason.
    """
    return tuple(
        title(live)
        for live in _removable(api, manifests, notify)
        if delete(api, live, seconds=seconds, notify=notify)
    )


def _removable(api: Api, manifests: Sequence[Object], notify: OnProgress) -> Iterator[Object]:
    """The objects of these manifests that may be deleted, each read as it is asked for."""
    for manifest in reversed(_sort(_readable(api, manifests, notify))):
        live = _live(api, manifest)
        if live is not None and (why := _why_kept(api, live, manifests)):
            notify(f"{title(manifest)} stays: {why}")
        elif live is not None:
            yield live


def delete(api: Api, live: Object, *, seconds: float, notify: OnProgress) -> bool:
    """Delete an object with what it owns, and wait until it is gone; False where it was gone already. Raises ClusterError."""
    kind, name, namespace = live["kind"], live["metadata"]["name"], live["metadata"].get("namespace")
    deleted = api.delete(kind, name, namespace, uid=live["metadata"]["uid"])
    notify(f"waiting for the deletion of {title(live)}")
    for left in follow(api, kind, namespace, seconds=seconds, fields=f"metadata.name={name}", notify=notify):
        if not left:
            return deleted
    raise ClusterError(
        f"{title(live)} still exists {seconds:.0f} s after it was deleted",
        hint="Pods on a node that is not Ready end when it is Ready again, or when its Node object is deleted;"
        f" see `kubectl get pods{f' -n {namespace}' if namespace else ''} -o wide`.",
    )


def unguarded_note(api: Api, manifests: Sequence[Object], changes: Collection[Difference]) -> str:
    """Accounts that these changes give rights which no admission policy limits, since this API server has none; "" for none."""
    rights = {manifest["metadata"]["name"] for manifest in manifests if manifest["kind"] == POLICY}
    granted = [
        name for name in sorted(rights) if f"ClusterRole {name}" in {change.what for change in changes}
    ]
    if not granted or api.served.has(POLICY):
        return ""
    return (
        f"Kubernetes {api.served.version} has no admission policies (1.30 has): RBAC alone limits "
        f"{' and '.join(granted)}. Root on a node with its pod can use its token on other nodes and pods."
    )


def _live(api: Api, manifest: Object) -> Object | None:
    if not api.served.has(manifest["kind"]):
        return None
    return api.get(manifest["kind"], manifest["metadata"]["name"], manifest["metadata"].get("namespace"))


def _readable(api: Api, manifests: Sequence[Object], notify: OnProgress) -> list[Object]:
    """The manifests to remove, without admission policies if this user may not read them (a ClusterRole older than gpunode's
    policies); `notify` is told so."""
    policies = {manifest["kind"]: manifest for manifest in manifests if manifest["kind"].startswith(POLICY)}
    try:
        for policy in policies.values():
            _live(api, policy)
    except HttpError as error:
        if error.status != 403:
            raise
        why = error.untried or error.message
        notify(f"Remaining admission policies are unknown: {why}. Rights: {page('rights')}")
        return [manifest for manifest in manifests if manifest["kind"] not in policies]
    return list(manifests)


def _diff(api: Api, manifest: Object, absent: Collection[str], *, strict: bool) -> Difference:
    """The change by applying this manifest; `absent`: namespaces that do not exist."""
    namespace = manifest["metadata"].get("namespace")
    if namespace in absent:
        return difference.creation(manifest, f"namespace {namespace} does not exist yet")
    live = _live(api, manifest)
    if live is not None and not is_ours(live):
        return _check_foreign(manifest, live)
    try:
        return _dry_run(api, manifest, live)
    except HttpError as error:
        untried = why_untried(error, strict=strict)
        if "roleRef" in manifest and error.reason == "NotFound":  # a dry run creates no role either
            untried = f"its {manifest['roleRef']['kind']} does not exist yet"
        if not untried:
            raise
        return difference.comparison(live, manifest, untried)


def _dry_run(api: Api, manifest: Object, live: Object | None) -> Difference:
    """The change by a dry run, with the fields that other managers have set since."""
    untried = api.served.untried
    if live is None:
        api.apply(manifest, dry_run=True)
        return difference.creation(manifest, untried)
    claims: tuple[Claim, ...] = ()
    try:
        result = api.apply(manifest, dry_run=True, noted=_has_note(live))
    except HttpError as error:
        if error.reason != "Conflict":
            raise
        claims = error.claims
        result = api.apply(manifest, force=True, dry_run=True, noted=_has_note(live))
    change = difference.change(live, result, claims, untried)
    return replace(change, before=difference.as_manifest(live), manifest=manifest)


def _check_foreign(manifest: Object, live: Object) -> Difference:
    """An object of that name that is not gpunode's: usable as it is, or an error."""
    if manifest["kind"] == "RuntimeClass" and live.get("handler") != manifest["handler"]:
        raise ClusterError(
            f"{title(manifest)} exists, is not gpunode's, and has the handler `{live.get('handler')}`"
            f" instead of `{manifest['handler']}`",
            hint="Remove it, or set its handler to gpunode's; until then pods that use it start with its own handler.",
        )
    if manifest["kind"] not in {"Namespace", "RuntimeClass"}:
        raise ClusterError(
            f"{title(manifest)} exists and is not gpunode's",
            hint="Remove it, or choose another namespace with cluster.namespace in the inventory.",
        )
    return Difference(Title.of(manifest), "foreign")


def fit(api: Api, manifests: Sequence[Object]) -> list[Object]:
    """The manifests as this API server can keep them, without kinds that it does not have."""
    every = (api.served.fit(manifest) for manifest in manifests)
    return [fitting for fitting in every if fitting is not None]


def _has_note(live: Object | None) -> bool:
    return live is not None and MANAGER in notes.read(live)


def _sort(manifests: Sequence[Object]) -> list[Object]:
    return sorted(manifests, key=lambda manifest: ORDER.index(manifest["kind"]))


def _why_kept(api: Api, live: Object, manifests: Sequence[Object]) -> str:
    """Why an object must not be removed; "" if it may be."""
    if not is_ours(live):
        return "it is not gpunode's"
    known, name = [title(manifest) for manifest in manifests], live["metadata"]["name"]
    if live["kind"] == "Namespace":
        return dependents.in_namespace(api, name, known)
    return dependents.of_runtime_class(api, name, known) if live["kind"] == "RuntimeClass" else ""
