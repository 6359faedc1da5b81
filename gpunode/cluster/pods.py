"""Pods: their requests, their state, and why they do not run, as scheduler, kubelet and runtime report it."""

import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from gpunode.cluster import obstacles
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import bound_demand, has_ended
from gpunode.errors import ClusterError, Problem

GPU = "nvidia.com/gpu"
MEMORY = "aliyun.com/gpu-mem"  # memory of the GPUs that the plugin shares by it
SHARED = "aliyun.com/gpu-count"  # how many GPUs those are
OVER = {"Succeeded", "Failed"}
# The kubelet looks again after some 10 s, also for an image that it may not pull: a run may have loaded it just now.
PULLING = {"ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull"}
PULL = 30.0  # seconds in which a kubelet tries several times to have an image
# The kubelet's event has more detail than these waiting reasons.
VAGUE = {"ContainerCreating", "PodInitializing", "ImagePullBackOff", "ErrImagePull", "CrashLoopBackOff"}


def holds(pod: Object, resource: str = GPU) -> int:
    """How many units of a resource the pod has allocated, by default whole GPUs; 0 once it has ended."""
    return 0 if has_ended(pod) else bound_demand(pod, resource).units


def is_ready(pod: Object) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def is_running(pod: Object) -> bool:
    """True if all its containers run, ready or not."""
    states = pod.get("status", {}).get("containerStatuses") or []
    return bool(states) and all("running" in state.get("state", {}) for state in states)


def waiting_reasons(pod: Object) -> set[str]:
    states = pod.get("status", {}).get("containerStatuses") or []
    return {state.get("state", {}).get("waiting", {}).get("reason", "") for state in states}


class Pulls:
    """Pods that wait for images that they cannot have. The kubelet retries, so a pod is given up after `PULL` seconds."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # uid of a pod -> monotonic

    def is_hopeless(self, pod: Object) -> bool:
        """True if waiting for the pod's image does not help."""
        reasons, uid = waiting_reasons(pod), pod["metadata"]["uid"]
        if not reasons & PULLING:
            self._since.pop(uid, None)
            return "InvalidImageName" in reasons
        return time.monotonic() - self._since.setdefault(uid, time.monotonic()) >= PULL


def restarts(pod: Object) -> int:
    return sum(
        status.get("restartCount", 0) for status in pod.get("status", {}).get("containerStatuses") or []
    )


def end_of(pod: Object, container: str) -> Object | None:
    """The end of a container (exitCode, reason, startedAt, finishedAt); None while it runs."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status["name"] == container:
            end: Object | None = status.get("state", {}).get("terminated")
            return end
    return None


def image_of(pod: Object, container: str) -> str:
    """The image of a container, as its runtime identifies it; "" where it did not start."""
    for status in pod.get("status", {}).get("containerStatuses") or []:
        if status["name"] == container:
            return str(status.get("imageID") or "")
    return ""


def duration(end: Object) -> float:
    """Seconds that an ended container ran (the API counts whole ones)."""
    try:
        start, stop = (
            datetime.fromisoformat(end[key].replace("Z", "+00:00")) for key in ("startedAt", "finishedAt")
        )
    except (KeyError, ValueError, AttributeError):
        return 0.0
    return (stop - start).total_seconds()


def problem(pod: Object, events: Sequence[Object] = ()) -> str:
    """Why the pod does not run, in one line; "" while it runs or is starting.

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
            return (
                f"{container['name']} is in CrashLoopBackOff: {_describe_end(container.get('lastState', {}))}"
            )
        if reason in {"ImagePullBackOff", "ErrImagePull"}:
            messages = [warning for warning in warnings if "pull" in warning] or [
                state["waiting"].get("message", "")
            ]
            return f"ImagePullBackOff: {messages[-1]}"  # the two reasons alternate
        if reason and reason not in VAGUE:
            return f"{reason}: {state['waiting'].get('message', '')}"
        if state.get("terminated", {}).get("exitCode"):
            return f"{container['name']} ended: {_describe_end(state)}"
    if status.get("phase") == "Pending" and warnings:
        return warnings[-1]  # only events report a sandbox or a volume that failed
    return ""


def obstacle(pod: Object) -> Problem | None:
    """Why the scheduler has no node for the pod, with the fix; None if it has one, or for another cause."""
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return obstacles.match_scheduling(str(condition.get("message", "")))
    return None


def refusal(deployment: Object) -> tuple[str, str]:
    """Why a Deployment gets no pod: the condition's reason, and the message of quotas and admission; "" if unknown."""
    for condition in deployment.get("status", {}).get("conditions") or []:
        if condition["type"] == "ReplicaFailure" and condition["status"] == "True":
            reason = str(condition.get("reason") or "")
            return reason, str(condition.get("message") or reason)
    return "", ""


def events(api: Api, about: Object) -> list[Object]:
    """The events about one object, oldest first."""
    items = api.find(
        "Event", about["metadata"].get("namespace"), fields=f"involvedObject.uid={about['metadata']['uid']}"
    )[0]
    return sorted(items, key=time_of)


def last_lines(api: Api, pod: Object, container: str, *, lines: int = 3) -> str:
    """The last lines of a container's log, or of its previous run's; "" if they cannot be read."""
    meta = pod["metadata"]
    for previous in (False, True):
        with suppress(ClusterError):
            log = api.log(meta["namespace"], meta["name"], container, lines=lines, previous=previous)
            if log.strip():
                return log.strip()
    return ""


def _describe_end(state: Object) -> str:
    ended = state.get("terminated") or {}
    parts = [f"exit code {ended.get('exitCode', '?')}"]
    if ended.get("reason") not in {None, "Error", "Completed"}:
        parts.insert(0, ended["reason"])
    if ended.get("message"):
        parts.append(ended["message"].strip().splitlines()[-1])
    return ", ".join(parts)


def time_of(event: Object) -> str:
    """When the event was last reported, as sortable text."""
    series = event.get("series") or {}
    return str(
        series.get("lastObservedTime")
        or event.get("lastTimestamp")
        or event.get("eventTime")
        or event["metadata"].get("creationTimestamp")
        or ""
    )
