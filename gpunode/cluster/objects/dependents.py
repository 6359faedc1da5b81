"""Objects of other users that depend on a namespace or a RuntimeClass, of every kind that the API server serves."""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any

from gpunode.cluster.api import Api, side_by_side
from gpunode.cluster.api.kinds import Kind, Object, is_ours, title
from gpunode.errors import ClusterError
from gpunode.wording import few

NAMED = 5  # objects that a message names
EVENTS = {"events", "events.events.k8s.io"}  # are about other objects, and expire
# Kubernetes creates these in every namespace.
NATIVE = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
TYPE = "kubernetes.io/service-account-token"  # of a Secret, and the annotation that names its account
ACCOUNT = "kubernetes.io/service-account.name"
# Kubernetes' own kinds with pod templates; the names of custom kinds do not show whether they have one.
LEADING = {"Pod", "PodTemplate", "ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet",
           "Job", "CronJob"}  # fmt: skip
OWN = re.compile(r"v1|(apps|autoscaling|batch|extensions|policy|.*\.k8s\.io)/.*")  # groups of Kubernetes


@dataclass(frozen=True, slots=True)
class Served:
    """A kind that the API server serves."""

    name: str
    kind: Kind
    verbs: frozenset[str]


def in_namespace(api: Api, namespace: str, known: Collection[str]) -> str:
    """The objects in a namespace that are neither gpunode's (`known` by title, or made for one of those) nor in every
    namespace, or why they are unknown; "" for none."""
    return _list_users(
        api,
        lambda served: served.kind.namespaced and served.kind.resource not in EVENTS,
        lambda kind, item: not _is_native(kind, item, known) and not _is_own(kind, item, known),
        namespace,
        "it also holds",
    )


def of_runtime_class(api: Api, name: str, known: Collection[str]) -> str:
    """The objects in the cluster that name this RuntimeClass and are not gpunode's, or why they are unknown; "" for
    none."""
    return _list_users(
        api,
        lambda served: served.name in LEADING or not OWN.fullmatch(served.kind.api),
        lambda kind, item: _uses_class(item, name) and not _is_own(kind, item, known),
        None,
        "it is named by",
    )


def _list_users(
    api: Api,
    of_kind: Callable[[Served], bool],
    counts: Callable[[str, Object], bool],
    namespace: str | None,
    verb: str,
) -> str:
    try:
        served, unknown = _find_kinds(api)
    except ClusterError as error:
        return f"its dependents are unknown: {error.message}"
    titles: list[str] = []

    def read(served: Served) -> tuple[list[str], str]:
        if "list" not in served.verbs:
            return [], f"{served.kind.resource} cannot be listed"
        try:
            items = api.find(served.kind, namespace)[0]
        except ClusterError as error:
            return [], error.message
        return [_title(served.name, item, namespace) for item in items if counts(served.name, item)], ""

    for names, why in side_by_side(read, [kind for kind in served if of_kind(kind)]):
        titles += names
        unknown += [why] if why else []
    if titles:
        return f"{verb} {few(list(dict.fromkeys(titles)), NAMED)}"
    return f"its dependents are unknown: {few(unknown, 2)}" if unknown else ""


def _find_kinds(api: Api) -> tuple[list[Served], list[str]]:
    """Each kind with objects that can be deleted, once, and why some kinds are unknown."""
    groups = api.read("/apis").get("groups") or []
    versions = ["/api/v1"]
    for group in groups:
        first = group.get("preferredVersion", {}).get("groupVersion", "")
        every = [version["groupVersion"] for version in group.get("versions") or []]
        versions += [f"/apis/{each}" for each in sorted(every, key=lambda each: each != first)]
    kinds: dict[str, Served] = {}
    unknown = []
    for where in versions:
        try:
            answer = api.read(where)
        except ClusterError as error:
            unknown.append(error.message)
            continue
        for resource in answer.get("resources") or []:
            verbs = frozenset(resource.get("verbs") or ())
            if "delete" in verbs and "/" not in resource["name"]:  # no subresource
                kind = Kind(answer["groupVersion"], resource["name"], bool(resource.get("namespaced")))
                kinds.setdefault(kind.resource, Served(resource["kind"], kind, verbs))
    return list(kinds.values()), unknown


def _title(kind: str, item: Object, namespace: str | None) -> str:
    """How messages name it; without the namespace where all are of one."""
    meta = item["metadata"]
    return f"{kind}/{meta['name']}" if namespace else title({"kind": kind, **item})


def _is_native(kind: str, item: Object, known: Collection[str]) -> bool:
    """True if Kubernetes creates it on its own: before 1.24 also a token for each service account."""
    meta = item["metadata"]
    if kind == "Secret" and item.get("type") == TYPE:
        account = (meta.get("annotations") or {}).get(ACCOUNT, "")
        ours = account == "default" or f"ServiceAccount {meta['namespace']}/{account}" in known
        return ours and re.fullmatch(rf"{re.escape(account)}-token-[a-z0-9]{{5}}", meta["name"]) is not None
    return f"{kind}/{meta['name']}" in NATIVE


def _is_own(kind: str, item: Object, known: Collection[str]) -> bool:
    """True if it is gpunode's: one of `known`, made by Kubernetes for one of those, or a test pod."""
    meta = item["metadata"]
    return is_ours(item) and (
        title({"kind": kind, **item}) in known
        or bool(meta.get("ownerReferences"))
        or (kind == "Pod" and f"Namespace {meta['namespace']}" in known)
    )


def _uses_class(value: Any, runtime_class: str) -> bool:
    """True if a pod, or a pod template at any depth, names this class."""
    todo: list[Any] = [value]
    while todo:
        part = todo.pop()
        if isinstance(part, dict):
            if part.get("runtimeClassName") == runtime_class:
                return True
            todo += part.values()
        elif isinstance(part, list):
            todo += part
    return False
