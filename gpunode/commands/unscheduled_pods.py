"""Pods that request memory of GPUs, but are not placed by the second scheduler."""

from collections.abc import Iterable, Sequence

from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import Malformed, bound_demand, has_ended, pod_name
from gpunode.engine.reporter import Reporter
from gpunode.model import Inventory
from gpunode.wording import few

NAMED = 5


def find(pods: Iterable[Object], resource: str, scheduler: str) -> list[str]:
    """namespace/name of unfinished pods that ask for the resource and name another scheduler."""
    past = (pod for pod in pods if (pod["spec"].get("schedulerName") or "default-scheduler") != scheduler)
    return sorted(pod_name(pod) for pod in past if not has_ended(pod) and _asks(pod, resource))


def note(inventory: Inventory, pods: Sequence[Object], reporter: Reporter) -> None:
    """Report these pods, if the inventory has a second scheduler."""
    share = inventory.cluster.share
    if share is None or share.scheduler is None:
        return
    name = share.scheduler.name
    if names := find(pods, share.resource, name):
        reporter.note(
            f"{len(names)} pods ask for {share.resource} without the scheduler {name}, so only a node's total counts: {few(names, NAMED)}. "
            f"Set `schedulerName: {name}` in their templates."
        )


def _asks(pod: Object, resource: str) -> bool:
    try:
        return bool(bound_demand(pod, resource).units)
    except Malformed:
        return False
