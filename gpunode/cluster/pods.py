"""What pods say about themselves, and why they do not run: in the words of scheduler, kubelet and runtime."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from gpunode.cluster.api import Api
from gpunode.cluster.kinds import Object
from gpunode.errors import ClusterError

GPU = "nvidia.com/gpu"
MEMORY = "aliyun.com/gpu-mem"  # of GPUs that the plugin shares by memory; how many those are is
SHARED = "aliyun.com/gpu-count"
OVER = {"Succeeded", "Failed"}
# The kubelet's own event says more than these waiting reasons do.
IMAGELESS = {"ErrImageNeverPull", "InvalidImageName"}  # the kubelet tries nothing more
PULLING = {"ErrImagePull", "ImagePullBackOff"}  # it tries again
VAGUE = {"ContainerCreating", "PodInitializing", "ImagePullBackOff", "ErrImagePull", "CrashLoopBackOff"}


def holds(pod: Object, resource: str = GPU) -> int:
    """How much of a resource the pod holds, by default whole GPUs; 0 once it is over."""
    if pod.get("status", {}).get("phase") in OVER:
        return 0

    def limit(container: Object) -> int:
        return whole((container.get("resources", {}).get("limits") or {}).get(resource, 0))

    spec = pod["spec"]
    starting = max([limit(container) for container in spec.get("initContainers") or []], default=0)
    return max(starting, sum(limit(container) for container in spec["containers"]))


def whole(quantity: str | int) -> int:
    """A count as the API writes it, which is as its author did (`1Ki`) or shorter (`1k` for 1000)."""
    from kubernetes.utils.quantity import parse_quantity

    return int(parse_quantity(quantity))  # type: ignore[no-untyped-call]


def ready(pod: Object) -> bool:
    """Whether the pod's containers run and say so."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)


def running(pod: Object) -> bool:
    """Whether all of its containers run, ready or not."""
    states = pod.get("status", {}).get("containerStatuses") or []
    return bool(states) and all("running" in one.get("state", {}) for one in states)


def waiting(pod: Object) -> set[str]:
    """The reasons why its containers wait."""
    states = pod.get("status", {}).get("containerStatuses") or []
    return {one.get("state", {}).get("waiting", {}).get("reason", "") for one in states}


def restarts(pod: Object) -> int:
    """How often its containers were started again."""
    return sum(one.get("restartCount", 0) for one in pod.get("status", {}).get("containerStatuses") or [])


def ended(pod: Object, container: str) -> Object | None:
    """How a container ended (exitCode, reason, startedAt, finishedAt); None while it has not."""
    for one in pod.get("status", {}).get("containerStatuses") or []:
        if one["name"] == container:
            found: Object | None = one.get("state", {}).get("terminated")
            return found
    return None


def lasted(end: Object) -> float:
    """How long a container that ended had run, in seconds (the API counts whole ones)."""
    try:
        start, stop = (
            datetime.fromisoformat(end[key].replace("Z", "+00:00")) for key in ("startedAt", "finishedAt")
        )
    except (KeyError, ValueError, AttributeError):
        return 0.0
    return (stop - start).total_seconds()


def trouble(pod: Object, events: Sequence[Object] = ()) -> str:
    """Why the pod does not do its work, in one line; "" while nothing is wrong or it is merely starting.

    `events` are those about this pod, oldest first.
    """
    status = pod.get("status", {})
    if status.get("phase") == "Failed" and status.get("message"):
        return f"{status.get('reason', 'Failed')}: {status['message']}"
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return f"not scheduled: {condition.get('message', condition.get('reason', ''))}"
    warnings: list[str] = [event["message"] for event in events if event.get("type") == "Warning"]
    states = [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]
    for container in states:
        state = container.get("state", {})
        reason = state.get("waiting", {}).get("reason", "")
        if reason == "CrashLoopBackOff":
            return f"{container['name']} keeps ending: {_ended(container.get('lastState', {}))}"
        if reason in {"ImagePullBackOff", "ErrImagePull"}:
            told = [one for one in warnings if "pull" in one] or [state["waiting"].get("message", "")]
            return f"ImagePullBackOff: {told[-1]}"  # the two follow each other again and again
        if reason and reason not in VAGUE:
            return f"{reason}: {state['waiting'].get('message', '')}"
        if state.get("terminated", {}).get("exitCode"):
            return f"{container['name']} ended: {_ended(state)}"
    if status.get("phase") == "Pending" and warnings:
        return warnings[-1]  # a sandbox or a volume that cannot be made shows only here
    return ""


def events(api: Api, about: Object) -> list[Object]:
    """The events about one object, oldest first."""
    found = api.find(
        "Event", about["metadata"].get("namespace"), fields=f"involvedObject.uid={about['metadata']['uid']}"
    )[0]
    return sorted(found, key=_when)


def last_words(api: Api, pod: Object, container: str, *, lines: int = 3) -> str:
    """The last lines of a container's log, or of its previous life; "" when they cannot be had."""
    meta = pod["metadata"]
    for previous in (False, True):
        with suppress(ClusterError):
            said = api.log(meta["namespace"], meta["name"], container, lines=lines, previous=previous)
            if said.strip():
                return said.strip()
    return ""


def _ended(state: Object) -> str:
    ended = state.get("terminated") or {}
    words = [f"exit code {ended.get('exitCode', '?')}"]
    if ended.get("reason") not in {None, "Error", "Completed"}:
        words.insert(0, ended["reason"])
    if ended.get("message"):
        words.append(ended["message"].strip().splitlines()[-1])
    return ", ".join(words)


def _when(event: Object) -> str:
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )
