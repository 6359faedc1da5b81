"""Why nothing of a pod runs on its GPUs, as its kubelet reports it. Pure."""

from __future__ import annotations

from collections.abc import Collection

from gpunode.cluster.api.kinds import Object

# Waiting reasons of a container that could not be started, or that ends again and again; the kubelet tries again, mostly after
# minutes. Its sources (1.34): pkg/kubelet/container/sync_result.go, kuberuntime/kuberuntime_container.go, images/types.go.
FAILS = frozenset({
    "CrashLoopBackOff", "RunContainerError", "CreateContainerError", "CreateContainerConfigError",
    "PreCreateHookError", "PreStartHookError", "PostStartHookError",
    "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
    "RegistryUnavailable", "SignatureValidationFailed",
})  # fmt: skip
INITIALIZING = "PodInitializing"  # the containers that come before it have not ended


def reason(pod: Object, using: Collection[str]) -> str:
    """Why none of the containers `using` the GPUs runs, as `CrashLoopBackOff`; where these have ended for good, or there are
    none, the same of the whole pod.

    "" where one runs or is about to: it is created for the first time, or has just ended and is started again. Also for
    every state that is not known.
    """
    found = _why(pod, using)
    return (_why(pod) or "") if found is None else found


def containers(spec: Object) -> list[Object]:
    """All of a pod, those first that come first."""
    return [*(spec.get("initContainers") or []), *spec["containers"]]


def _why(pod: Object, names: Collection[str] | None = None) -> str | None:
    """The same of these containers (None: of all); None where they have ended for good."""
    spec, states = pod["spec"], _states(pod)
    early = [one.get("name", "") for one in spec.get("initContainers") or []]
    blocked = next((states[name] for name in early if states.get(name) in FAILS), "")
    why = None
    for one in containers(spec):
        name = one.get("name", "")
        state = states.get(name, "")
        if (names is not None and name not in names) or _over(pod, one, first=name in early):
            continue
        found = blocked if state == INITIALIZING else state
        if found not in FAILS:
            return ""
        why = why or found
    return why


def _states(pod: Object) -> dict[str, str]:
    """The containers' names and waiting reasons; "" for one that does not wait."""
    return {
        one.get("name", ""): ((one.get("state") or {}).get("waiting") or {}).get("reason") or ""
        for one in _statuses(pod)
    }


def _statuses(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _over(pod: Object, container: Object, *, first: bool) -> bool:
    """Whether the container has ended and is not started again. Restart rules of its own (Kubernetes 1.34) may do that."""
    ends = [
        one["state"]["terminated"]
        for one in _statuses(pod)
        if one.get("name") == container.get("name") and "terminated" in (one.get("state") or {})
    ]
    own, whole = container.get("restartPolicy"), pod["spec"].get("restartPolicy", "Always")
    if not ends or container.get("restartPolicyRules"):
        return False
    if pod["metadata"].get("deletionTimestamp"):
        return True
    policy = own or ("OnFailure" if first and whole == "Always" else whole)
    return policy == "Never" or (policy == "OnFailure" and not ends[0].get("exitCode"))
