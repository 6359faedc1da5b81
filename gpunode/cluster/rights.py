"""The rights that the kubeconfig's user needs, asked of the API server before any change."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpunode.cluster import lease
from gpunode.cluster.api import Api, side_by_side
from gpunode.cluster.api.kinds import KINDS, Object
from gpunode.errors import ClusterError, HttpError
from gpunode.wording import page

REVIEWS = "SelfSubjectAccessReview"
ROLE = "gpunode-missing"
CODE = "no-rights"  # of what a user may not do


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
OBJECTS = (
    "namespaces",
    "serviceaccounts",
    "configmaps",
    "daemonsets.apps",
    "runtimeclasses.node.k8s.io",
    *(
        f"{name}.rbac.authorization.k8s.io"
        for name in ("roles", "rolebindings", "clusterroles", "clusterrolebindings")
    ),
)
EVICTION = (Right("create", "pods/eviction"),)
SCHEDULERS = (Right("get", "pods", "kube-system"),)  # that they are back


def of_run(namespace: str, *, proves: bool) -> tuple[Right, ...]:
    """Rights for a run, the plugin's deployment to this namespace included. `proves`: with vectoradd."""
    return (
        *_each("leases.coordination.k8s.io", "get", "create", "update", namespace=lease.NAMESPACE),
        *_each("nodes", "get", "list"),
        *LABELS,
        *of_rollout(namespace),
        *(of_proof(namespace) if proves else ()),
    )


def of_rollout(namespace: str) -> tuple[Right, ...]:
    """Rights for deploying the plugin, besides those for its objects, which a dry run checks."""
    return (*_each("nodes", "watch"), *_each("pods", "list", "watch"), *_events(namespace))


def of_objects() -> tuple[Right, ...]:
    """Rights for the plugin's objects, which their dry run checks, one after the other."""
    return tuple(right for resource in OBJECTS for right in _each(resource, "get", "patch", "create"))


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


def of_reading(namespace: str) -> tuple[Right, ...]:
    """Rights for commands that only look: `plan` (without its dry run), `verify --no-run`, `status`, `why`."""
    return (
        *_each("nodes", "get", "list"),
        *_each("pods", "list"),
        *_each("daemonsets.apps", "list"),
        *_each("pods/log", "get", namespace=namespace),
        *_each("pods/proxy", "get", namespace=namespace),
        *_events(""),
    )


def demand(api: Api, rights: Iterable[Right], later: Iterable[Right] = ()) -> None:
    """Raises ClusterError with the rights that the user lacks; with those of `later`, too, which are asked of nobody who has the others."""
    if missing := find_missing(api, rights):
        raise lacks((*missing, *find_missing(api, later)), ": nothing was changed")


def name_all(missing: Iterable[Right]) -> str:
    """`get/list nodes, list pods in namespace x`."""
    verbs: dict[Right, list[str]] = {}
    for right in missing:
        verbs.setdefault(replace(right, verb=""), []).append(right.verb)
    return ", ".join(replace(right, verb="/".join(some)).text for right, some in verbs.items())


def match_refused(rights: Iterable[Right], refused: Mapping[str, str | None]) -> tuple[Right, ...]:
    """Those of the rights without which a request is refused in these words."""
    name, mark, part = (refused["resource"] or "").partition("/")
    group = f".{refused['group']}" if refused["group"] else ""
    asked = (refused["verb"], f"{name}{group}{mark}{part}")
    return tuple(
        right
        for right in rights
        if (right.verb, right.resource) == asked and right.namespace in ("", refused["namespace"])
    )


def find_missing(api: Api, rights: Iterable[Right]) -> tuple[Right, ...]:
    """Those of the rights that the user lacks."""
    rights = tuple(dict.fromkeys(rights))
    granted = side_by_side(lambda right: _has(api, right), rights)
    return tuple(right for right, has in zip(rights, granted, strict=True) if not has)


def lacks(missing: Sequence[Right], outcome: str = "", user: str = "USER") -> ClusterError:
    """The error that names these rights, with roles that have them and no more. `outcome`: of the command."""
    scopes = tuple(dict.fromkeys(right.namespace for right in missing))
    roles = "\n---\n".join("\n".join(_role(missing, scope)) for scope in scopes)
    binds = "\n".join(f"{_bind(scope)} --user={shlex.quote(user)}" for scope in scopes)
    return ClusterError(
        f"the Kubernetes API does not let this user {name_all(missing)}{outcome}",
        hint=f"An administrator of the cluster grants this:\nkubectl apply -f - <<'END'\n{roles}\nEND\n{binds}\n"
        f"All that gpunode may need: {page('safety#rights')}",
        code=CODE,
    )


def _bind(namespace: str) -> str:
    if namespace:
        return f"kubectl create rolebinding {ROLE} -n {namespace} --role={ROLE}"
    return f"kubectl create clusterrolebinding {ROLE} --clusterrole={ROLE}"


def _role(missing: Iterable[Right], namespace: str) -> Iterator[str]:
    """Those of the rights that are of this namespace, or of the cluster (""), as a role in lines of YAML."""
    verbs: dict[str, list[str]] = {}
    for right in missing:
        if right.namespace == namespace:
            verbs.setdefault(right.resource, []).append(right.verb)
    if namespace and namespace != lease.NAMESPACE:  # it may not be there before the first run
        yield f'apiVersion: v1\nkind: Namespace\nmetadata: {{name: "{namespace}"}}\n---'
    kind, within = ("Role", f', namespace: "{namespace}"') if namespace else ("ClusterRole", "")
    yield f"apiVersion: rbac.authorization.k8s.io/v1\nkind: {kind}\nmetadata: {{name: {ROLE}{within}}}\nrules:"
    for resource, some in verbs.items():
        whole, _, part = resource.partition("/")
        name, _, group = whole.partition(".")
        named = f"{name}/{part}" if part else name
        yield f'- {{apiGroups: ["{group}"], resources: [{named}], verbs: [{", ".join(dict.fromkeys(some))}]}}'


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
