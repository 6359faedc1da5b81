"""The rights that the kubeconfig's user needs, asked of the API server before any change."""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpunode.cluster import lease
from gpunode.cluster.api import AT_ONCE, Api
from gpunode.cluster.api.kinds import KINDS, Object
from gpunode.errors import ClusterError, HttpError
from gpunode.wording import few, page

REVIEWS = "SelfSubjectAccessReview"
NAMED = 5


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource (`pods/eviction`, `leases.coordination.k8s.io`) of one namespace, or of the cluster."""

    verb: str
    resource: str
    namespace: str = ""

    @property
    def text(self) -> str:
        return f"{self.verb} {self.resource}" + (f" in namespace {self.namespace}" if self.namespace else "")


LABELS = (Right("patch", "nodes"),)  # of nodes, and annotations
SCHEDULERS = (Right("get", "pods", "kube-system"),)  # that they are back


def of_run(namespace: str, *, drains: bool, proves: bool) -> tuple[Right, ...]:
    """Rights for a run, the plugin's deployment to this namespace included. `proves`: with vectoradd."""
    return (
        *_each("leases.coordination.k8s.io", "get", "create", "update", namespace=lease.NAMESPACE),
        *_each("nodes", "get", "list"),
        *LABELS,
        *of_rollout(namespace),
        *(_each("pods/eviction", "create") if drains else ()),
        *(of_proof(namespace) if proves else ()),
    )


def of_rollout(namespace: str) -> tuple[Right, ...]:
    """Rights for deploying the plugin, besides those for its objects, which a dry run checks."""
    return (*_each("nodes", "watch"), *_each("pods", "list", "watch"), *_events(namespace))


def of_proof(namespace: str) -> tuple[Right, ...]:
    """Rights for vectoradd's pods, in their namespace."""
    return (
        *_each("pods", "create", "delete", "list", "watch", namespace=namespace),
        *_each("pods/log", "get", namespace=namespace),
        *_events(namespace),
    )


def of_claims(namespace: str) -> tuple[Right, ...]:
    """Rights for vectoradd's pods that get their GPUs by DRA, besides those of `of_proof`."""
    return (
        *_each("resourceslices.resource.k8s.io", "list"),
        *_each("resourceclaims.resource.k8s.io", "list"),
        *_each("resourceclaimtemplates.resource.k8s.io", "create", "delete", "list", namespace=namespace),
    )


def of_notebook(namespace: str) -> tuple[Right, ...]:
    return (
        *_each("deployments.apps", "get", "create", "delete", namespace=namespace),
        *_each("services", "get", "create", "delete", namespace=namespace),
        *_each("pods", "list", "watch", namespace=namespace),
        *_events(namespace),
    )


def of_share(namespace: str) -> tuple[Right, ...]:
    """Rights for `share enable`, besides those for the extender's objects, which a dry run checks."""
    return (
        *of_rollout(namespace),
        *_each("secrets", "get", namespace=namespace),
        *_each("services", "get", namespace=namespace),
        *_each("deployments.apps", "get", namespace=namespace),
        *SCHEDULERS,
    )


def of_deletion(objects: Iterable[Object]) -> tuple[Right, ...]:
    return tuple(right for live in objects for right in _on(live, "delete"))


def of_wait(objects: Iterable[Object]) -> tuple[Right, ...]:
    """Rights to wait until these objects are gone."""
    return tuple(right for live in objects for right in _on(live, "list", "watch"))


def _on(live: Object, *verbs: str) -> tuple[Right, ...]:
    return _each(KINDS[live["kind"]].resource, *verbs, namespace=live["metadata"].get("namespace", ""))


def _each(resource: str, *verbs: str, namespace: str = "") -> tuple[Right, ...]:
    return tuple(Right(verb, resource, namespace) for verb in verbs)


def _events(namespace: str) -> tuple[Right, ...]:
    """Events have the reason why a pod does not start."""
    return _each("events", "list", namespace=namespace)


def demand(api: Api, rights: Iterable[Right]) -> None:
    """Raises ClusterError with the rights that the user lacks."""
    rights = tuple(dict.fromkeys(rights))
    with ThreadPoolExecutor(AT_ONCE) as pool:
        missing = [
            right
            for right, granted in zip(rights, pool.map(lambda right: _has(api, right), rights), strict=True)
            if not granted
        ]
    if missing:
        raise ClusterError(
            f"the Kubernetes API does not let this user {few([right.text for right in missing], NAMED)}: nothing was changed",
            hint=f"See `kubectl auth can-i {missing[0].verb} {missing[0].resource}`. "
            f"A ClusterRole with all that a run needs: {page('safety#rights')}",
        )


def _has(api: Api, right: Right) -> bool:
    whole, _, part = right.resource.partition("/")
    name, _, group = whole.partition(".")
    asked = {
        "verb": right.verb,
        "resource": name,
        "group": group,
        "subresource": part,
        "namespace": right.namespace,
    }
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": REVIEWS,
        "metadata": {},
        "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
    }
    try:
        return bool(api.create(review)["status"]["allowed"])
    except HttpError:
        return True  # a missing right shows at the request itself
