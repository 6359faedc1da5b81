"""The pods of a node that a change would end: which they are, waiting until they have ended, and evicting them."""

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import AGAIN, OnProgress, changes
from gpunode.cluster.pods import OVER
from gpunode.contract.promises import parse_quantity, pod_name
from gpunode.errors import ApiConnectionLost, HttpError
from gpunode.links import node as nodes
from gpunode.wording import few, lasting

MIRROR = "kubernetes.io/config.mirror"
CLAIMS = "resource claims"  # of DRA; whose devices they are for, the pod does not say
RETRY = 5.0  # seconds until a pod that may not be evicted is asked for again, as kubectl has it
NAMED = 3


@dataclass(frozen=True, slots=True)
class Work:
    """A pod that runs on a node. `asks`: for how much of GPUs, by resource; and for how many CLAIMS. `service`: a DaemonSet's, or the kubelet's
    own: it comes back with its node and is not waited for. `obstacle`: why it may not be evicted now. `standstill`: why
    none of its containers with a GPU runs, or (where `whole` is asked for) none at all, so that no work ends with a change."""

    name: str  # namespace/name
    uid: str
    asks: Mapping[str, int]
    service: bool
    ending: bool = False
    obstacle: str = ""
    standstill: str = ""


def work_on(api: Api, node: str, boot: str = "", *, whole: bool = False) -> tuple[Work, ...]:
    """The pods that run there, by name. `boot`: the host's boot id, where it is known."""
    pods, _ = api.find("Pod", fields=f"spec.nodeName={node}")
    return _check_reports(api, node, find_work(pods, whole=whole), boot)


def find_work(pods: Sequence[Object], *, whole: bool = False) -> tuple[Work, ...]:
    """Those of the pods that have a container which runs, or is still to run."""
    return tuple(sorted((_work(pod, whole) for pod in pods if _runs(pod)), key=lambda work: work.name))


def wait(
    api: Api,
    node: str,
    concerns: Callable[[Work], bool],
    *,
    evict: bool,
    seconds: float,
    notify: OnProgress,
    stopped: Callable[[], bool] = lambda: False,
    boot: str = "",
) -> tuple[Work, ...]:
    """Wait until no pod that `concerns` works on the node any more; returns those that are there then: all stand still, or
    `seconds` have passed. `evict`: ask for their eviction, again and again while a PodDisruptionBudget does not allow it;
    one of which no container runs is waited for until it is gone or a budget keeps it.

    `notify` hears which pod is waited for. `stopped` ends the wait early. `boot`: as in `on_node`.
    """
    asked: dict[str, _Asked] = {}  # by uid
    begun = time.monotonic()
    first = 0
    left: tuple[Work, ...] = ()
    for seen, _ in changes(api, "Pod", seconds=seconds, fields=f"spec.nodeName={node}", notify=notify):
        works = find_work(list(seen.values()), whole=evict)
        left = _check_reports(api, node, [work for work in works if concerns(work)], boot)
        if evict and not stopped():
            left = tuple(_evict(api, seen, work, asked) for work in left)
        waited = [
            work
            for work in left
            if not (work.standstill and (not evict or asked.get(work.uid, _ASKED).guarded))
        ]
        if not waited or stopped():
            return left
        first = max(first, len(waited))
        notify(_progress(waited, first, time.monotonic() - begun, seconds))
    return left


def _check_reports(api: Api, node: str, works: Sequence[Work], boot: str) -> tuple[Work, ...]:
    """The pods; none stands still where the kubelet has not reported lately, or not since boot: unknown then."""
    if any(work.standstill for work in works) and not _reports(api, node, boot):
        return tuple(replace(work, standstill="") for work in works)
    return tuple(works)


def _reports(api: Api, node: str, boot: str) -> bool:
    try:
        item = api.get("Node", node)
    except (ApiConnectionLost, HttpError):
        return False
    now = nodes.parse(item) if item else None
    return now is not None and now.ready and (not boot or now.boot_id in ("", boot))


class _Asked(NamedTuple):
    """Of an eviction: when it may be asked for again (monotonic), why not now, and whether a budget is why."""

    retry_at: float = 0.0
    obstacle: str = ""
    guarded: bool = False


_ASKED = _Asked()


def _evict(api: Api, seen: Mapping[str, Object], work: Work, asked: dict[str, _Asked]) -> Work:
    last = asked.get(work.uid, _ASKED)
    if not work.ending and time.monotonic() >= last.retry_at:
        pod = next(pod for pod in seen.values() if pod["metadata"]["uid"] == work.uid)
        try:
            obstacle, guarded = api.evict(pod), True
        except (ApiConnectionLost, HttpError) as error:
            if isinstance(error, HttpError) and error.status not in AGAIN:
                raise
            obstacle, guarded = error.message, False
        last = asked[work.uid] = _Asked(time.monotonic() + RETRY, obstacle, guarded and bool(obstacle))
    return replace(work, obstacle=last.obstacle)


def _progress(left: Sequence[Work], first: int, waited: float, most: float) -> str:
    """`waiting for ml/a, ml/b (1 of 3 pods ended): 35 s, at most 30 min`, and which pod may not be evicted. Times in seconds."""
    blocked = [work for work in left if work.obstacle]
    ended = f" ({first - len(left)} of {first} pods ended)" if first > 1 else ""
    so_far = f"{waited:.0f} s, " if 1 <= waited < 100 else f"{waited / 60:.0f} min, " if waited >= 100 else ""
    why = f"; {blocked[0].name} may not be evicted: {blocked[0].obstacle}" if blocked else ""
    return (
        f"waiting for {few([work.name for work in left], NAMED)}{ended}: {so_far}at most {lasting(most)}{why}"
    )


def _work(pod: Object, whole: bool) -> Work:
    meta = pod["metadata"]
    owners = {owner.get("kind") for owner in meta.get("ownerReferences") or []}
    on_gpus = [each.get("name", "") for each in containers(pod["spec"]) if +_limits(each)]
    return Work(
        name=pod_name(pod),
        uid=meta["uid"],
        asks=asks(pod),
        service="DaemonSet" in owners or MIRROR in (meta.get("annotations") or {}),
        ending=bool(meta.get("deletionTimestamp")),
        standstill=reason(pod, () if whole else on_gpus),
    )


def asks(pod: Object) -> dict[str, int]:
    """GPUs that the pod asks for, by resource. As the scheduler counts: init containers run one after the other, and before all
    others."""
    spec = pod["spec"]
    units: Counter[str] = Counter()
    for container in spec["containers"]:
        units.update(_limits(container))
    for container in spec.get("initContainers") or []:
        units |= _limits(container)  # the greater of both
    return dict(+units)


def _limits(container: Object) -> Counter[str]:
    resources = container.get("resources") or {}
    units = Counter({CLAIMS: len(resources.get("claims") or ())})
    for name, amount in (resources.get("limits") or {}).items():
        if name.startswith(nodes.OFFERED):
            units[name] = parse_quantity(amount)
    return units


def _runs(pod: Object) -> bool:
    """A pod whose containers have all ended holds nothing, though a finalizer may keep its object."""
    status = pod.get("status") or {}
    if status.get("phase") in OVER:
        return False
    if not pod["metadata"].get("deletionTimestamp"):
        return True
    states = [container.get("state") or {} for container in status.get("containerStatuses") or []]
    return not states or not all("terminated" in state for state in states)


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
    why = _why(pod, using)
    return (_why(pod) or "") if why is None else why


def containers(spec: Object) -> list[Object]:
    """All of a pod, those first that come first."""
    return [*(spec.get("initContainers") or []), *spec["containers"]]


def _why(pod: Object, names: Collection[str] | None = None) -> str | None:
    """The same of these containers (None: of all); None where they have ended for good."""
    spec, states = pod["spec"], _states(pod)
    early = [container.get("name", "") for container in spec.get("initContainers") or []]
    blocked = next((states[name] for name in early if states.get(name) in FAILS), "")
    why = None
    for container in containers(spec):
        name = container.get("name", "")
        state = states.get(name, "")
        if (names is not None and name not in names) or _has_ended(pod, container, first=name in early):
            continue
        cause = blocked if state == INITIALIZING else state
        if cause not in FAILS:
            return ""
        why = why or cause
    return why


def _states(pod: Object) -> dict[str, str]:
    """The containers' names and waiting reasons; "" for one that does not wait."""
    return {
        status.get("name", ""): ((status.get("state") or {}).get("waiting") or {}).get("reason") or ""
        for status in _statuses(pod)
    }


def _statuses(pod: Object) -> list[Object]:
    status = pod.get("status") or {}
    return [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]


def _has_ended(pod: Object, container: Object, *, first: bool) -> bool:
    """Whether the container has ended and is not started again. Restart rules of its own (Kubernetes 1.34) may do that."""
    ends = [
        status["state"]["terminated"]
        for status in _statuses(pod)
        if status.get("name") == container.get("name") and "terminated" in (status.get("state") or {})
    ]
    own, whole = container.get("restartPolicy"), pod["spec"].get("restartPolicy", "Always")
    if not ends or container.get("restartPolicyRules"):
        return False
    if pod["metadata"].get("deletionTimestamp"):
        return True
    policy = own or ("OnFailure" if first and whole == "Always" else whole)
    return policy == "Never" or (policy == "OnFailure" and not ends[0].get("exitCode"))
