"""What pods request, their state, and why they do not run as scheduler, kubelet and runtime report it."""

from __future__ import annotations

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
IMAGELESS = {"ErrImageNeverPull", "InvalidImageName"}  # the kubelet does not retry
PULLING = {"ErrImagePull", "ImagePullBackOff"}  # the kubelet retries
PULL = 30.0  # seconds in which a kubelet tries several times to pull an image
# The kubelet's event has more detail than these waiting reasons.
VAGUE = {"ContainerCreating", "PodInitializing", "ImagePullBackOff", "ErrImagePull", "CrashLoopBackOff"}


def holds(pod: Object, resource: str = GPU) -> int:
    """How many units of a resource the pod has allocated, by default whole GPUs; 0 once it has ended."""
    return 0 if has_ended(pod) else bound_demand(pod, resource).units


def ready(pod: Object) -> bool:
    """Whether the pod is Ready."""
    conditions = pod.get("status", {}).get("conditions") or []
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in conditions)


def running(pod: Object) -> bool:
    """Whether all its containers run, ready or not."""
    states = pod.get("status", {}).get("containerStatuses") or []
    return bool(states) and all("running" in state.get("state", {}) for state in states)


def waiting(pod: Object) -> set[str]:
    """The waiting reasons of its containers."""
    states = pod.get("status", {}).get("containerStatuses") or []
    return {state.get("state", {}).get("waiting", {}).get("reason", "") for state in states}


class Pulls:
    """Since when pods wait for images that cannot be pulled. The kubelet tries again, so a pod is given up after `PULL`."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}  # uid of a pod -> monotonic

    def hopeless(self, pod: Object) -> bool:
        """Whether waiting for the pod's image does not help."""
        reasons, uid = waiting(pod), pod["metadata"]["uid"]
        if not reasons & PULLING:
            self._since.pop(uid, None)
            return bool(reasons & IMAGELESS)
        return time.monotonic() - self._since.setdefault(uid, time.monotonic()) >= PULL


def restarts(pod: Object) -> int:
    """How often its containers were restarted."""
    return sum(
        statuse.get("restartCount", 0) for statuse in pod.get("status", {}).get("containerStatuses") or []
    )


def ended(pod: Object, container: str) -> Object | None:
    """How a container ended (exitCode, reason, startedAt, finishedAt); None while it has not."""
    for statuse in pod.get("status", {}).get("containerStatuses") or []:
        if statuse["name"] == container:
            end: Object | None = statuse.get("state", {}).get("terminated")
            return end
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
            return f"{container['name']} is in CrashLoopBackOff: {_ended(container.get('lastState', {}))}"
        if reason in {"ImagePullBackOff", "ErrImagePull"}:
            messages = [warning for warning in warnings if "pull" in warning] or [
                state["waiting"].get("message", "")
            ]
            return f"ImagePullBackOff: {messages[-1]}"  # the two reasons alternate
        if reason and reason not in VAGUE:
            return f"{reason}: {state['waiting'].get('message', '')}"
        if state.get("terminated", {}).get("exitCode"):
            return f"{container['name']} ended: {_ended(state)}"
    if status.get("phase") == "Pending" and warnings:
        return warnings[-1]  # only events report a sandbox or a volume that failed
    return ""


def obstacle(pod: Object) -> Problem | None:
    """Why the scheduler has no node for the pod, with what to do; None where it has, or the cause is another."""
    for condition in pod.get("status", {}).get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return obstacles.scheduling(str(condition.get("message", "")))
    return None


def refusal(deployment: Object) -> tuple[str, str]:
    """Why a Deployment gets no pod: the condition's reason, and the words of quotas and admission; "" where nothing is known."""
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
    return sorted(items, key=_when)


def last_lines(api: Api, pod: Object, container: str, *, lines: int = 3) -> str:
    """The last lines of a container's log, or of its previous run's; "" where they cannot be read."""
    meta = pod["metadata"]
    for previous in (False, True):
        with suppress(ClusterError):
            log = api.log(meta["namespace"], meta["name"], container, lines=lines, previous=previous)
            if log.strip():
                return log.strip()
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
