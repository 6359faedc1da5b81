"""What would be lost with a namespace or a RuntimeClass, and is not gpunode's: asked of every kind that the API has."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Kind, Object, ours, title
from gpunode.errors import ClusterError
from gpunode.wording import few

NAMED = 5  # objects that a sentence names
EVENTS = {"events", "events.events.k8s.io"}  # tell of others, and go by themselves
# What Kubernetes itself puts into every namespace.
NATIVE = {"ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}
TYPE = "kubernetes.io/service-account-token"  # of a Secret, and the annotation that says whose it is
ACCOUNT = "kubernetes.io/service-account.name"
# Of Kubernetes' own kinds these lead to pods; which of other groups' do cannot be told by a name.
LEADING = {"Pod", "PodTemplate", "ReplicationController", "ReplicaSet", "Deployment", "StatefulSet", "DaemonSet",
           "Job", "CronJob"}  # fmt: skip
OWN = re.compile(r"v1|(apps|autoscaling|batch|extensions|policy|.*\.k8s\.io)/.*")  # groups of Kubernetes


@dataclass(frozen=True, slots=True)
class Served:
    """A kind that the API server has."""

    name: str
    kind: Kind
    verbs: frozenset[str]


def in_namespace(api: Api, namespace: str, known: Collection[str]) -> str:
    """What a namespace holds that is neither gpunode's (`known` by title, or made for one of those) nor there in every
    namespace, or why that cannot be told; "" for nothing."""
    return _said(
        api,
        lambda one: one.kind.namespaced and one.kind.resource not in EVENTS,
        lambda kind, item: not _native(kind, item, known) and not _made(kind, item, known),
        namespace,
        "it also holds",
    )


def of_runtime_class(api: Api, name: str, known: Collection[str]) -> str:
    """What names this RuntimeClass and is not gpunode's, anywhere in the cluster, or why that cannot be told; "" for
    nothing."""
    return _said(
        api,
        lambda one: one.name in LEADING or not OWN.fullmatch(one.kind.api),
        lambda kind, item: _names(item, name) and not _made(kind, item, known),
        None,
        "it is named by",
    )


def _said(
    api: Api,
    asked: Callable[[Served], bool],
    counts: Callable[[str, Object], bool],
    namespace: str | None,
    verb: str,
) -> str:
    try:
        served, unknown = _served(api)
    except ClusterError as error:
        return f"what else there is cannot be told: {error.message}"
    found: list[str] = []

    def look(one: Served) -> tuple[list[str], str]:
        if "list" not in one.verbs:
            return [], f"{one.kind.resource} cannot be listed"
        try:
            items = api.find(one.kind, namespace)[0]
        except ClusterError as error:
            return [], error.message
        return [_title(one.name, item, namespace) for item in items if counts(one.name, item)], ""

    with ThreadPoolExecutor(8) as pool:
        for names, why in pool.map(look, [one for one in served if asked(one)]):
            found += names
            unknown += [why] if why else []
    if found:
        return f"{verb} {few(list(dict.fromkeys(found)), NAMED)}"
    return f"what else there is cannot be told: {few(unknown, 2)}" if unknown else ""


def _served(api: Api) -> tuple[list[Served], list[str]]:
    """Each kind of the API once that objects are kept of: they can be deleted. And why some of it cannot be told."""
    groups = api.read("/apis").get("groups") or []
    versions = ["/api/v1"]
    for group in groups:
        first = group.get("preferredVersion", {}).get("groupVersion", "")
        every = [one["groupVersion"] for one in group.get("versions") or []]
        versions += [f"/apis/{one}" for one in sorted(every, key=lambda one: one != first)]
    found: dict[str, Served] = {}
    unknown = []
    for where in versions:
        try:
            answer = api.read(where)
        except ClusterError as error:
            unknown.append(error.message)
            continue
        for one in answer.get("resources") or []:
            verbs = frozenset(one.get("verbs") or ())
            if "delete" in verbs and "/" not in one["name"]:  # not a part of another
                kind = Kind(answer["groupVersion"], one["name"], bool(one.get("namespaced")))
                found.setdefault(kind.resource, Served(one["kind"], kind, verbs))
    return list(found.values()), unknown


def _title(kind: str, item: Object, namespace: str | None) -> str:
    """As messages name it; inside of its namespace without that."""
    meta = item["metadata"]
    return f"{kind}/{meta['name']}" if namespace else title({"kind": kind, **item})


def _native(kind: str, item: Object, known: Collection[str]) -> bool:
    """Whether Kubernetes makes it by itself: before 1.24 a token for each service account, too."""
    meta = item["metadata"]
    if kind == "Secret" and item.get("type") == TYPE:
        account = (meta.get("annotations") or {}).get(ACCOUNT, "")
        ours = account == "default" or f"ServiceAccount {meta['namespace']}/{account}" in known
        return ours and re.fullmatch(rf"{re.escape(account)}-token-[a-z0-9]{{5}}", meta["name"]) is not None
    return f"{kind}/{meta['name']}" in NATIVE


def _made(kind: str, item: Object, known: Collection[str]) -> bool:
    """Whether it is gpunode's: one of `known`, made by Kubernetes for one of those, or a pod of a test."""
    meta = item["metadata"]
    return ours(item) and (
        title({"kind": kind, **item}) in known
        or bool(meta.get("ownerReferences"))
        or (kind == "Pod" and f"Namespace {meta['namespace']}" in known)
    )


def _names(value: Any, runtime_class: str) -> bool:
    """Whether a pod, or a template of one however deep in it, is to run with this class."""
    todo: list[Any] = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict):
            if one.get("runtimeClassName") == runtime_class:
                return True
            todo += one.values()
        elif isinstance(one, list):
            todo += one
    return False
