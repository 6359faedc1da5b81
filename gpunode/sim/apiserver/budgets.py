"""PodDisruptionBudgets: which evictions the API refuses. Only `minAvailable`, as a number of pods."""

from __future__ import annotations

from gpunode.sim.apiserver.errors import status_error
from gpunode.sim.apiserver.selectors import matches
from gpunode.sim.apiserver.store import Object, Store


def admit(store: Store, pod: Object) -> None:
    """Raises StatusError, in the words of Kubernetes' eviction, where a budget does not allow the pod's eviction now."""
    namespace = pod["metadata"]["namespace"]
    for budget in store.all("PodDisruptionBudget", namespace):
        chosen = [one for one in store.all("Pod", namespace) if _covers(budget, one)]
        healthy = [one for one in chosen if one["status"].get("phase") == "Running"]
        needed = int(budget["spec"].get("minAvailable", 0))
        if _covers(budget, pod) and len(healthy) <= needed:
            name = budget["metadata"]["name"]
            why = f"The disruption budget {name} needs {needed} healthy pods and has {len(healthy)} currently"
            cause = {"reason": "DisruptionBudget", "message": why}
            message = "Cannot evict pod as it would violate the pod's disruption budget."
            raise status_error(429, "TooManyRequests", message, causes=[cause])


def _covers(budget: Object, pod: Object) -> bool:
    selector = budget["spec"].get("selector") or {}
    labels = pod["metadata"].get("labels") or {}
    wanted = (selector.get("matchLabels") or {}).items()
    return bool(wanted <= labels.items() and matches(labels, selector.get("matchExpressions") or []))
