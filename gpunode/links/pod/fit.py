"""Whether a node takes a pod, by their objects, as kube-scheduler's filters compare them. Pure.

source: kubernetes/kubernetes 1.36, pkg/scheduler/framework/plugins/{noderesources,nodeaffinity,tainttoleration} and
k8s.io/component-helpers/scheduling/corev1/{nodeaffinity,helpers.go}.
"""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import QUANTITY, SUFFIXES, has_ended
from gpunode.links.node import drain

# Taints of a cordon; of the node's state
CORDON, ALIVE = ("node.kubernetes.io/unschedulable", "node.kubernetes.io/")
MILLI = 1000
EMPTY = "an empty term, which no node matches"
SMALL = {"m": 1.0, "u": 1e-3, "n": 1e-6}  # suffixes below one, in thousandths


def thousandths(quantity: object) -> int:
    """A quantity of any resource in thousandths, as cpu is counted; 0 for none. Raises ValueError."""
    text = str(quantity or 0)
    if text[-1:] in SMALL:
        return math.ceil(float(text[:-1]) * SMALL[text[-1]])
    match = QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"expected a quantity, found {text[:40]!r}")
    digits, exponent, suffix = match.groups()
    return int(float(digits) * (10 ** int(exponent) if exponent else SUFFIXES[suffix or ""]) * MILLI)


def requests(pod: Object) -> Mapping[str, int]:
    """What the scheduler counts of the pod, by resource, in thousandths; `pods` is the pod itself. Requests of the whole pod take the
    place of its containers'."""
    spec = pod["spec"]
    sums, most = Counter({"pods": MILLI}), Counter[str]()
    for container in drain.containers(spec):
        resources = container.get("resources") or {}
        units = _units({**(resources.get("limits") or {}), **(resources.get("requests") or {})})
        if container in (spec.get("initContainers") or []) and container.get("restartPolicy") != "Always":
            most |= units
        else:
            sums.update(units)
    # The API server has derived the pod's own requests from its limits, where it has only these.
    whole = (spec.get("resources") or {}).get("requests") or {}
    total = Counter({**(sums | most), **_units(whole)})
    total.update(_units(spec.get("overhead") or {}))
    return total


def _units(amounts: Mapping[str, object]) -> Counter[str]:
    return Counter({name: thousandths(amount) for name, amount in amounts.items()})


def used(pods: Sequence[Object]) -> Mapping[str, Counter[str]]:
    """Node -> what its pods have, by resource, in thousandths."""
    nodes: dict[str, Counter[str]] = {}
    for pod in pods:
        if (name := pod["spec"].get("nodeName")) and not has_ended(pod):
            nodes.setdefault(name, Counter()).update(requests(pod))
    return nodes


def selector(spec: Object) -> Sequence[str]:
    """The labels that the pod requires of its node, as kubectl writes them; alternatives joined by `or`."""
    exact = [f"{name}={value}" for name, value in (spec.get("nodeSelector") or {}).items()]
    terms = [" and ".join(map(_text, _expressions(term))) or EMPTY for term in _terms(spec)]
    return [*exact, *([" or ".join(terms)] if terms else [])]


def keys(spec: Object) -> Sequence[str]:
    named = [expression["key"] for term in _terms(spec) for expression in term.get("matchExpressions") or []]
    return list(dict.fromkeys([*(spec.get("nodeSelector") or {}), *named]))


def values(spec: Object, key: str) -> set[str]:
    """The values of a label of which the pod requires one; none if it may run on a node without."""
    exact = (spec.get("nodeSelector") or {}).get(key)
    named = [
        {value for each in _expressions(term) if each["key"] == key and each["operator"] == "In" for value in each["values"]}
        for term in _terms(spec)
    ]  # fmt: skip
    return {exact} if exact else set().union(*named) if all(named) else set()


def selects(spec: Object, node: Object) -> bool:
    meta = node["metadata"]
    labels = {**(meta.get("labels") or {})}
    if any(labels.get(name) != value for name, value in (spec.get("nodeSelector") or {}).items()):
        return False
    terms = _terms(spec)
    own = {**labels, "metadata.name": meta["name"]}  # the one field that there is
    return not terms or any(_selects(term, own) for term in terms)


def untolerated(spec: Object, node: Object) -> list[Mapping[str, str]]:
    """The node's taints that keep the pod away; not that of a cordon."""
    taints = (node.get("spec") or {}).get("taints") or []
    return [
        taint
        for taint in taints
        if taint["effect"] != "PreferNoSchedule" and taint["key"] != CORDON and not tolerates(spec, taint)
    ]


def tolerates(spec: Object, taint: Mapping[str, str]) -> bool:
    return any(
        toleration.get("effect") in (None, "", taint["effect"])
        and toleration.get("key") in (None, "", taint["key"])
        and (
            toleration.get("operator") == "Exists"
            or (toleration.get("value") or "") == taint.get("value", "")
        )
        for toleration in spec.get("tolerations") or []
    )


def _terms(spec: Object) -> Sequence[Object]:
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return required.get("nodeSelectorTerms") or ()


def _expressions(term: Object) -> Iterator[Object]:
    yield from term.get("matchExpressions") or []
    yield from term.get("matchFields") or []


def _selects(term: Object, labels: Mapping[str, str]) -> bool:
    expressions = list(_expressions(term))
    return bool(expressions) and all(_holds(each, labels) for each in expressions)


def _text(expression: Object) -> str:
    key, operator, values = expression["key"], expression["operator"], expression.get("values") or []
    signs = {
        "In": f"{key} in ({', '.join(values)})",
        "NotIn": f"{key} notin ({', '.join(values)})",
        "Exists": key,
    }
    return signs.get(operator) or f"{operator} {key} {' '.join(values)}".strip()


def _holds(expression: Object, labels: Mapping[str, str]) -> bool:
    value, values = labels.get(expression["key"]), expression.get("values") or []
    operator = expression["operator"]
    if operator in ("Gt", "Lt"):
        try:
            number, bound = int(value or ""), int(values[0])
        except (ValueError, IndexError):
            return False
        return number > bound if operator == "Gt" else number < bound
    holds = {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }
    return holds.get(operator, False)
