"""Work: containers that run keep the GPUs that they were given, the kubelet refused no pod, and no pod has GPUs that it never asked for."""

import re
from collections.abc import Iterator, Mapping, Sequence

from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import pod_name
from gpunode.errors import Problem
from gpunode.links.node import drain
from gpunode.model import Facts, GpuContainer, Verdict
from gpunode.wording import few, lines, several

NAMED = 5
MIRROR = "kubernetes.io/config.mirror"
REFUSED = "pods-refused"  # code
LOST = "“Failed to initialize NVML: Unknown Error”: systemd or the kubelet has applied its device rules again"
# Why a kubelet refuses or ends a pod, most after a reboot: pkg/kubelet/lifecycle/predicate.go, cm/admission, nodeshutdown (1.34).
# `OutOf` and a resource where the node has too little of it.
REFUSALS = re.compile(
    r"OutOf\S+|UnexpectedAdmissionError|TopologyAffinityError|NodeAffinity|NodeShutdown|Terminated|Shutdown"
)


def judge_work(seen: Facts, pods: Sequence[Object]) -> Verdict | None:
    """None where no container has GPUs and the kubelet refused no pod that asks for some. `pods`: of the host's node, () where they
    are not known. A pod that its controller has replaced, and one with GPUs that it never asked for, is a remark."""
    by_uid = {str(pod["metadata"]["uid"]): pod for pod in pods}
    known = _uids_on_host(pods)
    # About to end
    deleted = [each for each in seen.gpu_containers if known and each.pod and each.pod not in known]
    lost = [each for each in seen.gpu_containers if each.lost and each not in deleted]
    refused = [pod for pod in pods if is_refused(pod)]
    waiting = [pod for pod in refused if not _has_controller(pod)]
    uninvited = list(_find_uninvited(seen, by_uid))
    if not (seen.gpu_containers or refused):
        return None
    causes = [
        f"{name_of(each)}{_container(each, by_uid)}: its device cgroup refuses {', '.join(each.lost or ())}. {LOST}"
        for each in lost
    ]
    fixes = list(dict.fromkeys(_restart(each, by_uid) for each in lost))
    for pod in refused:
        why = explain_refusal(pod)
        causes.append(f"{pod_name(pod)}: {why.what}")
        fixes.append(why.fix)
    causes += [f"{pod_name(pod)} has GPUs and asks for none: {why}" for pod, why in uninvited]
    if uninvited:
        fixes.append(
            "Set a limit of GPUs on such a pod, or remove NVIDIA_VISIBLE_DEVICES from its image and environment. With `isolation: true` new pods ignore that variable."
        )
    names = list(dict.fromkeys(map(name_of, lost)))  # a pod may have several
    texts = []
    if lost:
        texts.append(f"{several(len(lost), 'container')} lost GPUs: {few(names, NAMED)}")
    if waiting:
        texts.append(
            f"the kubelet refused {several(len(waiting), 'pod')}: {few([*map(pod_name, waiting)], NAMED)}"
        )
    if texts:
        return Verdict.broken(
            "work", "; ".join(texts), lines(causes), lines(fixes), "gpus-lost" if lost else REFUSED
        )
    return Verdict.ok("work", _describe(seen.gpu_containers), lines(causes), lines(fixes))


def explain_refusal(pod: Object) -> Problem:
    """Why the kubelet refused this pod, and the command that starts it again."""
    status, replaced = pod["status"], _has_controller(pod)
    more = "; its controller made another" if replaced else ""
    what = f"{status['reason']}: {status.get('message', '')}{more}"
    return Problem(REFUSED, what, fix=_delete(pod) if replaced else _replace(pod))


def _describe(containers: Sequence[GpuContainer]) -> str:
    unknown = sum(container.lost is None for container in containers)
    text = f"{several(len(containers) - unknown, 'container')} can use the GPUs allocated to them"
    return f"{text}; {unknown} more unknown on this host" if unknown else text


def _uids_on_host(pods: Sequence[Object]) -> set[str]:
    """As cgroups name them: that of a static pod's file is in an annotation."""
    mirrors = ((pod["metadata"].get("annotations") or {}).get(MIRROR) for pod in pods)
    return {str(pod["metadata"]["uid"]) for pod in pods} | {str(uid) for uid in mirrors if uid}


def name_of(container: GpuContainer) -> str:
    """The pod's namespace/name, else the container's name or the first part of its id."""
    return container.name or container.container[:12]


def _container(container: GpuContainer, pods: Mapping[str, Object]) -> str:
    """Which container of the pod it is, where that is known."""
    statuses = ((pods.get(container.pod or "") or {}).get("status") or {}).get("containerStatuses") or []
    names = [each["name"] for each in statuses if str(each.get("containerID")).endswith(container.container)]
    return f", container {names[0]}" if names else ""


def is_refused(pod: Object) -> bool:
    """True for a pod that asks for GPUs and that the kubelet refused or ended."""
    status = pod.get("status") or {}
    return (
        status.get("phase") == "Failed"
        and REFUSALS.fullmatch(str(status.get("reason") or "")) is not None
        and bool(drain.asks(pod))
    )


def _find_uninvited(seen: Facts, pods: Mapping[str, Object]) -> Iterator[tuple[Object, str]]:
    """Pods with GPUs that they never asked for, and why they have these. A DaemonSet's are the node's own services."""
    works = {
        work.uid: work
        for work in drain.find_work([*pods.values()])
        if not (work.asks or work.service or pods[work.uid]["spec"].get("resourceClaims"))
    }
    given = {container.pod: container for container in seen.gpu_containers if container.pod in works}
    for uid, container in given.items():
        yield (
            pods[str(uid)],
            f"NVIDIA_VISIBLE_DEVICES of its image or environment ({', '.join(container.devices)})",
        )
    for uid, user in {user.pod: user for user in seen.gpu_users if user.gpus and user.pod in works}.items():
        if uid not in given:
            yield (
                pods[str(uid)],
                f"{user.command} uses {', '.join(user.gpus)}: it is privileged, or has the host's /dev",
            )


def _has_controller(pod: Object) -> bool:
    return any(owner.get("controller") for owner in pod["metadata"].get("ownerReferences") or [])


def _delete(pod: Object) -> str:
    return "kubectl -n {} delete pod {}".format(*pod_name(pod).split("/"))


def _replace(pod: Object) -> str:
    namespace, name = pod_name(pod).split("/")
    return f"kubectl -n {namespace} get pod {name} -o yaml | kubectl replace --force -f -"


def _restart(container: GpuContainer, pods: Mapping[str, Object]) -> str:
    """How its work starts again, with the GPUs."""
    if pod := pods.get(container.pod or ""):
        return _delete(pod) if _has_controller(pod) else _replace(pod)
    if container.pod and container.name and "/" in container.name:
        return "kubectl -n {} delete pod {}; its controller creates it again".format(
            *container.name.split("/", 1)
        )
    return f"Restart the container {name_of(container)} with what started it (`docker restart {name_of(container)}`)"
