"""What the user of the kubeconfig needs to be allowed, asked of the API server before anything is changed."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from gpunode.cluster.api import AT_ONCE, Api
from gpunode.cluster.api.refusal import HttpError
from gpunode.cluster.lease import NAMESPACE
from gpunode.errors import ClusterError
from gpunode.wording import few

REVIEWS = "SelfSubjectAccessReview"
NAMED = 5


@dataclass(frozen=True, slots=True)
class Right:
    """A verb on a resource (`pods/eviction`, `leases.coordination.k8s.io`) of one namespace, or of the cluster."""

    verb: str
    resource: str
    namespace: str = ""

    @property
    def words(self) -> str:
        return f"{self.verb} {self.resource}" + (f" in namespace {self.namespace}" if self.namespace else "")


LEASES = "leases.coordination.k8s.io"
# What a run does beside deploying the plugin, which is dry-run before. docs/safety.md has all.
RUN = (
    *(Right(verb, LEASES, NAMESPACE) for verb in ("get", "create", "update")),
    *(Right(verb, "nodes") for verb in ("get", "list", "patch")),
    *(Right(verb, "pods") for verb in ("list", "watch")),
)
DRAIN = (Right("create", "pods/eviction"),)


def demanded(api: Api, rights: Sequence[Right]) -> None:
    """Raises ClusterError that names the rights which the user does not have."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        missing = [
            one
            for one, given in zip(rights, pool.map(lambda one: _given(api, one), rights), strict=True)
            if not given
        ]
    if missing:
        raise ClusterError(
            f"the Kubernetes API does not let this user {few([one.words for one in missing], NAMED)}: nothing was changed",
            hint="docs/safety.md has a ClusterRole with all that a run needs; "
            f"see `kubectl auth can-i {missing[0].verb} {missing[0].resource}`.",
        )


def _given(api: Api, one: Right) -> bool:
    whole, _, part = one.resource.partition("/")
    name, _, group = whole.partition(".")
    asked = {
        "verb": one.verb,
        "resource": name,
        "group": group,
        "subresource": part,
        "namespace": one.namespace,
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
        return True  # who may not ask is told when it is refused
