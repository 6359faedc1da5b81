"""The rights that the kubeconfig's user needs, asked of the API server before any change."""

import json
import re
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpunode.cluster import lease
from gpunode.cluster.api import Api, side_by_side
from gpunode.cluster.api.kinds import KINDS, Object
from gpunode.errors import NO_RIGHTS, ClusterError, HttpError
from gpunode.wording import Folded, page, several

REVIEWS, WHO = "SelfSubjectAccessReview", "SelfSubjectReview"
UNKNOWN = "USER"  # a name to replace
ROLE = "gpunode-missing"
RBAC = "rbac.authorization.k8s.io"
EXISTING = ("default", lease.NAMESPACE)  # others may not be there before the first run
NAMED = 4  # resources of missing rights; of more, the number
EXIT = 4  # of a command that is refused for it: nothing was changed


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
EVICTION = (Right("create", "pods/eviction"),)
SCHEDULERS = (Right("get", "pods", "kube-system"),)  # that they are back
LEASE = tuple(
    Right(verb, "leases.coordination.k8s.io", lease.NAMESPACE) for verb in ("get", "create", "update")
)


def of_run(namespace: str, *, proves: bool) -> tuple[Right, ...]:
    """Rights for a run, the plugin's deployment to this namespace included. `proves`: with vectoradd."""
    return (
        *LEASE,
        *_each("nodes", "get", "list"),
        *LABELS,
        *of_rollout(namespace),
        *(of_proof(namespace) if proves else ()),
    )


def of_rollout(namespace: str) -> tuple[Right, ...]:
    """Rights for deploying the plugin, besides those for its objects, which a dry run checks."""
    return (
        *_each("nodes", "watch"),
        *_each("pods", "list", "watch"),
        *_each("daemonsets.apps", "list", namespace=namespace),
        *_events(namespace),
    )


def of_objects(manifests: Sequence[Object], surplus: Sequence[Object] = ()) -> tuple[Right, ...]:
    """Rights to apply these objects, to look for the `surplus`, and those that the manifests' roles grant: no user grants rights that
    he does not have."""
    granted = (
        Right(
            verb, f"{name}{f'.{group}' if group else ''}{mark}{part}", role["metadata"].get("namespace", "")
        )
        for role in manifests
        for rule in role.get("rules") or ()
        for group in rule["apiGroups"]
        for name, mark, part in (resource.partition("/") for resource in rule["resources"])
        for verb in rule["verbs"]
    )
    applied = (right for manifest in manifests for right in _on(manifest, "get", "patch", "create"))
    read = (right for manifest in surplus for right in _on(manifest, "get"))
    return tuple(dict.fromkeys((*applied, *read, *granted)))


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


def of_owners() -> tuple[Right, ...]:
    """Rights to see whose GPUs a DRA driver allocates."""
    return (*_each("resourceslices.resource.k8s.io", "list"), *_each("deviceclasses.resource.k8s.io", "list"))


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
    """Raises ClusterError with the rights that the user lacks; with those of `later`, too. A user who lacks these alone is not refused:
    the dry run decides, as who may escalate needs fewer."""
    if missing := find_missing(api, rights):
        every = dict.fromkeys((*missing, *find_missing(api, later)))
        raise lacks(tuple(every), ": nothing was changed", _user(api))


def _user(api: Api) -> str:
    """The name of the kubeconfig's user; USER where the API server does not tell it, as before Kubernetes 1.28."""
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": WHO, "metadata": {}}
    try:
        return str(api.create(review)["status"]["userInfo"]["username"])
    except (ClusterError, KeyError):  # also of a connection that is lost: it hides no refusal
        return UNKNOWN


def name_all(missing: Iterable[Right]) -> list[str]:
    """`get/list nodes`, `list pods in namespace x`."""
    verbs: dict[Right, list[str]] = {}
    for right in missing:
        verbs.setdefault(replace(right, verb=""), []).append(right.verb)
    return [replace(right, verb="/".join(some)).text for right, some in verbs.items()]


def sum_up(missing: Sequence[Right]) -> Iterator[str]:
    """The rights, a line each namespace, without API groups: `cluster: get/list nodes; create pods/eviction`."""
    for scope in sorted({right.namespace for right in missing}):
        groups: dict[str, list[str]] = {}
        for text in name_all(replace(right, namespace="") for right in missing if right.namespace == scope):
            verbs, _, resource = text.partition(" ")
            groups.setdefault(verbs, []).append(re.sub(r"\.[^/]*", "", resource))
        some = "; ".join(f"{verbs} {', '.join(names)}" for verbs, names in groups.items())
        yield f"{f'namespace {scope}' if scope else 'cluster'}: {some}"


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


def lacks(missing: Sequence[Right], outcome: str = "", user: str = UNKNOWN) -> ClusterError:
    """The error that names these rights, with roles that have them and no more, bound to the user. `outcome`: of the command."""
    name = f"{ROLE}-{secrets.token_hex(3)}"  # no other grant has it, which applying this one would replace
    scopes = dict.fromkeys(right.namespace for right in missing)
    objects = "\n---\n".join("\n".join(_role(missing, scope, name, user)) for scope in scopes)
    whose = "this user" if user == UNKNOWN else f"user {user}"
    whom = "" if user != UNKNOWN else ", with the user's name for USER"
    absent = [scope for scope in scopes if scope and scope not in EXISTING]  # perhaps
    made = "".join(f"kubectl get namespace {name} || kubectl create namespace {name}\n" for name in absent)
    names, count = name_all(missing), several(len(missing), "right")
    message = f"the Kubernetes API does not let this user {', '.join(names)}{outcome}"
    hint = (
        f"An administrator of the cluster grants this{whom}:\n{made}kubectl apply -f - <<'END'\n{objects}\nEND\n"
        f"All that gpunode may need, for `provision` too: {page('rights')}"
    )
    if len(names) > NAMED:
        message = f"{outcome.lstrip(': ')}{outcome and ': '}{whose} lacks {count}"
        roles = f"Roles for an administrator to apply: {page('rights')}. --json prints a manifest of exactly these rights."
        hint = Folded(hint, "\n".join(("Missing:", *(f"  {line}" for line in sum_up(missing)), roles)))
    error = ClusterError(message, hint=hint, code=NO_RIGHTS)
    error.exit_code = EXIT
    return error


def _role(missing: Iterable[Right], namespace: str, role: str, user: str) -> Iterator[str]:
    """Those of the rights that are of this namespace, or of the cluster (""), as a role and its binding, in lines of YAML."""
    verbs: dict[str, list[str]] = {}
    for right in missing:
        if right.namespace == namespace:
            verbs.setdefault(right.resource, []).append(right.verb)
    kind, within = ("Role", f', namespace: "{namespace}"') if namespace else ("ClusterRole", "")
    version, group = f"apiVersion: {RBAC}/v1", f"apiGroup: {RBAC}"
    metadata = f"metadata: {{name: {role}{within}}}"
    yield f"{version}\nkind: {kind}\n{metadata}\nrules:"
    for resource, some in verbs.items():
        whole, _, part = resource.partition("/")
        name, _, of = whole.partition(".")
        named = f"{name}/{part}" if part else name
        yield f'- {{apiGroups: ["{of}"], resources: [{named}], verbs: [{", ".join(dict.fromkeys(some))}]}}'
    yield f"---\n{version}\nkind: {kind}Binding\n{metadata}"
    yield f"roleRef: {{{group}, kind: {kind}, name: {role}}}"
    yield f"subjects: [{{{group}, kind: User, name: {json.dumps(user)}}}]"


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
