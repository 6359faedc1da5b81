"""Whether a namespace's ResourceQuotas have room for all pods of a plan, by the rules of the API server's admission.

source: kubernetes/kubernetes pkg/quota/v1/evaluator/core/pods.go: podComputeUsageHelper, podMatchesScopeFunc;
k8s.io/component-helpers resource/helpers.go: PodRequests, PodLimits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from gpunode.cluster import obstacles
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.errors import HttpError, Problem

NATIVE = ("cpu", "memory", "ephemeral-storage")
POD = ("cpu", "memory")  # and huge pages: what a pod as a whole may have


@dataclass(frozen=True, slots=True)
class Wanted:
    """`count` pods like one that was admitted, its defaults filled in; `what` in words."""

    what: str
    pod: Object
    count: int


def read(api: Api, namespace: str) -> tuple[Object, ...]:
    """Those of a namespace; () where this user may not read them."""
    try:
        return tuple(api.find("ResourceQuota", namespace)[0])
    except HttpError:
        return ()


def short(quotas: Sequence[Object], wanted: Sequence[Wanted]) -> Iterator[tuple[str, Problem]]:
    """Pods for which a quota of their namespace has no room, and why. The first of `wanted` are made first, as far as there is room."""
    left = {limit: limit.left for one in quotas for limit in _limits(one)}
    for one in wanted:
        takes = _usage(one.pod)
        mine = {_name(quota) for quota in quotas if _applies(quota, one.pod)}
        limits = [limit for limit in left if limit.quota in mine and takes.get(limit.resource)]
        rooms = {limit: max(0, int(left[limit] // takes[limit.resource])) for limit in limits}
        least = min(limits, key=rooms.__getitem__, default=None)
        fits = one.count if least is None else min(one.count, rooms[least])
        if least is not None and fits < one.count:
            others = ", and other pods of this plan come first" * (left[least] != least.left)
            yield (
                f"{one.count - fits} of {one.count} {one.what}",
                Problem(
                    obstacles.QUOTA,
                    f"the ResourceQuota `{least.quota[1]}` has room for {fits}: its {least.words} are used{others}",
                    fix=obstacles.RAISE.format(name=least.quota[1]),
                ),
            )
        for limit in limits:
            left[limit] -= fits * takes[limit.resource]


def _name(quota: Object) -> tuple[str, str]:
    return quota["metadata"]["namespace"], quota["metadata"]["name"]


@dataclass(frozen=True, slots=True)
class _Limit:
    """How much a quota, by namespace and name, has of a resource."""

    quota: tuple[str, str]
    resource: str
    left: Decimal
    words: str


def _limits(quota: Object) -> Iterator[_Limit]:
    status = quota.get("status") or {}
    for resource, hard in (status.get("hard") or {}).items():
        used = (status.get("used") or {}).get(resource, "0")
        yield _Limit(
            _name(quota), resource, _value(hard) - _value(used), f"{resource} is {hard}, of which {used}"
        )


def _usage(pod: Object) -> Mapping[str, Decimal]:
    """What a pod takes of a quota's resources."""
    requests, limits = (_sum(pod["spec"], kind) for kind in ("requests", "limits"))
    found = {"pods": Decimal(1), "count/pods": Decimal(1)}
    for name, value in requests.items():
        found[f"requests.{name}"] = value
        if name in NATIVE or name.startswith("hugepages-"):
            found[name] = value
    return found | {f"limits.{name}": value for name, value in limits.items() if name in NATIVE}


def _sum(spec: Mapping[str, Any], kind: str) -> Mapping[str, Decimal]:
    """Of all containers that run together, sidecars too, or of those that run before them; for what the pod as a whole has, that; and
    the RuntimeClass's overhead."""

    def of(container: Mapping[str, Any], name: str) -> Decimal:
        return _value(((container.get("resources") or {}).get(kind) or {}).get(name, "0"))

    containers, before = spec["containers"], spec.get("initContainers") or ()
    names = {name for one in (*containers, *before) for name in (one.get("resources") or {}).get(kind) or ()}
    of_pod = (spec.get("resources") or {}).get(kind) or {}  # from 1.34 on
    whole = {name: value for name, value in of_pod.items() if name in POD or name.startswith("hugepages-")}
    overhead = spec.get("overhead") or {}
    found = {}
    for name in names | set(whole) | (set(overhead) if kind == "requests" else set()):
        sidecars = most = Decimal(0)
        for one in before:  # one that is no sidecar runs alone with those before it
            most = max(most, sidecars + of(one, name))
            sidecars += of(one, name) * (one.get("restartPolicy") == "Always")
        together = sidecars + sum(of(one, name) for one in containers)
        amount = _value(whole[name]) if name in whole else max(most, together)
        found[name] = amount + _value(overhead.get(name, "0"))
    return found


def _applies(quota: Object, pod: Object) -> bool:
    if quota["metadata"]["namespace"] != pod["metadata"]["namespace"]:
        return False
    spec = quota.get("spec") or {}
    scopes = [{"scopeName": name, "operator": "Exists"} for name in spec.get("scopes") or ()]
    scopes += (spec.get("scopeSelector") or {}).get("matchExpressions") or []
    return all(_matches(one, pod) for one in scopes)


def _matches(scope: Mapping[str, Any], pod: Object) -> bool:
    name, spec = str(scope["scopeName"]), pod["spec"]
    if name in ("Terminating", "NotTerminating"):
        return ("activeDeadlineSeconds" in spec) == (name == "Terminating")
    if name in ("BestEffort", "NotBestEffort"):
        best = str(pod.get("status", {}).get("qosClass")) == "BestEffort"
        return best == (name == "BestEffort")
    if name == "PriorityClass":
        own, operator = str(spec.get("priorityClassName") or ""), str(scope["operator"])
        if operator in ("Exists", "DoesNotExist"):
            return bool(own) == (operator == "Exists")
        return (own in (scope.get("values") or ())) == (operator == "In")
    return False  # of affinity to pods in other namespaces, which gpunode's have not; of volumes


def _value(quantity: str | int) -> Decimal:
    from kubernetes.utils.quantity import parse_quantity

    return Decimal(parse_quantity(quantity))  # type: ignore[no-untyped-call]
