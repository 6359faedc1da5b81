"""Why a pod that a scheduler has placed does not work, or could not be created: by its status, events and log. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpunode.cluster import obstacles, pods
from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import has_ended, pod_name
from gpunode.errors import Problem
from gpunode.explain import Explanation, explain, explain_lines
from gpunode.links.node import Node, drain
from gpunode.links.plugin import daemonset
from gpunode.links.pod import work
from gpunode.wording import advise, few, lines

UNEXPLAINED = "unexplained"  # code: the pod's own words, which gpunode's tables do not know
ASKS_NONE = "asks-none"  # code
UNPULLED = "image-pull"  # code
ASKS_NO_GPU = Problem(
    ASKS_NONE,
    "it asks for no GPU, so it gets none",
    fix="Add `resources: {limits: {nvidia.com/gpu: 1}}` to its container, and create it again: requests cannot be edited.",
)
# What explain knows of containers without a GPU: a pod that requests one has to be told something else than to do so.
WITHOUT_GPU = (
    "smi-missing",
    "smi-library",
    "gpu-not-given",
    "no-gpu-seen",
    "no-gpus",
    "no-device",
    "nvml-library-missing",
)
OF_HOST = ("reset-gpu", "reset-fabric", "reboot", "install-driver")  # actions of explain that fix a host
ENVIRONMENT = (
    "check NVIDIA_VISIBLE_DEVICES, CUDA_VISIBLE_DEVICES and LD_LIBRARY_PATH of its image and its environment."
)
TAIL = 3  # lines of a log that nothing explains
NAMED = 4


def judge_placed(pod: Object, events: Sequence[Object], log: str) -> Iterator[Problem]:
    """What is wrong with the pod, first what its log and events say that gpunode explains. `events`: oldest first; `log`: its last
    lines."""
    if work.is_refused(pod):
        yield work.explain_refusal(pod)
        return
    text = pods.problem(pod, events)
    said = log if (pod.get("status") or {}).get("phase") != "Succeeded" else ""
    known = [(line, meaning) for line, meaning in explain_lines(said) if _is_cause(meaning)]
    meaning = explain(text) if text else None
    if meaning and _is_cause(meaning) and meaning not in [each for _, each in known]:
        known.insert(0, (text, meaning))
    offers = (pod["metadata"].get("labels") or {}).get(daemonset.NAME_LABEL) in daemonset.NAMES
    asks_none = not drain.asks(pod) and not pod["spec"].get("resourceClaims") and not offers
    without = [line for line, meaning in known if asks_none and meaning.code in WITHOUT_GPU]
    if without:
        yield replace(ASKS_NO_GPU, cause=lines(without))
    yield from (_explained(line, meaning, pod) for line, meaning in known if line not in without)
    image = _unpulled(pod)
    if image and not known:
        fix = "Check the image's name and tag, that the node reaches its registry, and for a private one the pod's `imagePullSecrets`."
        yield Problem(UNPULLED, f"its image {image} cannot be pulled", cause=text, fix=fix)
    elif text and not known:
        last = "\n".join(log.splitlines()[-TAIL:])
        fix = "`kubectl -n {} describe pod {}` has its events.".format(*pod_name(pod).split("/"))
        yield Problem(UNEXPLAINED, text, cause=last, fix=fix)
    if asks_none and not without:
        yield ASKS_NO_GPU


def _is_cause(meaning: Explanation) -> bool:
    """Programs that work log lines with general meanings, and notes that ask for nothing."""
    return not meaning.general and meaning.action != "nothing"


def _unpulled(pod: Object) -> str:
    """The image that the kubelet cannot pull; "" for none."""
    status = pod.get("status") or {}
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        reason = ((each.get("state") or {}).get("waiting") or {}).get("reason")
        if reason in ("ImagePullBackOff", "ErrImagePull", "InvalidImageName"):
            return str(each.get("image") or each["name"])
    return ""


def judge_size(pod: Object, node: Node) -> Iterator[Problem]:
    """The pod was bound to a node that has fewer GPUs than it asks for: started again there, it is refused again."""
    for name, count in drain.asks(pod).items():
        counted = node.resources.get(name)
        if counted and 0 < counted.capacity < count:
            yield Problem(
                "too-many",
                f"{node.name} has {counted.capacity} {name}, and it asks for {count}",
                fix="Ask for fewer, and let the scheduler choose the node: without `nodeName` in its spec.",
            )


def judge_absent(name: str, events: Sequence[Object], there: Sequence[Object]) -> Problem | None:
    """Why a controller could not create this pod, or the pods of the controller with this name. `name`: namespace/name; `events`:
    of its namespace, oldest first; `there`: the pods."""
    namespace, short = name.split("/")
    refused = [
        event
        for event in events
        if event.get("reason") in ("FailedCreate", "FailedCreatePodSandBox")
        and (owner := event["involvedObject"].get("name", ""))
        and (short == owner or short.startswith(f"{owner}-") or owner.startswith(f"{short}-"))
    ]
    if not refused:
        return None
    message, about = str(refused[-1].get("message") or ""), refused[-1]["involvedObject"]
    admission = obstacles.match_admission(message)
    owner = f"{about.get('kind', 'object')} {about.get('name', '')}"
    fix = f"`kubectl -n {namespace} describe {about.get('kind', '').lower()} {about.get('name', '')}` has all of its events."
    if admission is None or admission.code != obstacles.QUOTA:
        return Problem(
            admission.code if admission else UNEXPLAINED,
            f"{owner} could not create it",
            cause=message,
            fix=fix,
        )
    having = [
        f"{pod_name(pod)} ({sum(asked.values())})"
        for pod in there
        if pod["metadata"].get("namespace") == namespace and not has_ended(pod) and (asked := drain.asks(pod))
    ]
    users = f"\nGPUs of {namespace}: {few(having, NAMED)}" if having else ""
    fix = f"Raise the quota (`kubectl -n {namespace} edit resourcequota`), or end one of its pods: the controller tries again on its own."
    return Problem(
        admission.code,
        f"{owner} could not create it: a ResourceQuota is used up",
        cause=message + users,
        fix=fix,
    )


def is_of_host(problem: Problem, pod: Object) -> bool:
    """Whether a host that gives containers no GPU, or another driver's library, explains it."""
    meaning = explain(problem.code)
    return meaning is not None and (_lacks_gpu(problem, pod) or meaning.action in OF_HOST)


def _lacks_gpu(problem: Problem, pod: Object) -> bool:
    return problem.code in WITHOUT_GPU and bool(drain.asks(pod))


def add_new_pod(problem: Problem, pod: Object, right: str) -> Problem:
    """For a pod that has Failed: its host's fix ends with a new pod, which is all that there is to do on a host that is `right` now."""
    if not _has_failed(pod) or not is_of_host(problem, pod):
        return problem
    if not right:
        return add_after(problem, pod)
    fix = f"Nothing on the node: {right}. Replace the pod: {_replace(pod)}"
    return replace(
        problem, fix=f"{fix} If it fails again, {ENVIRONMENT}" if _lacks_gpu(problem, pod) else fix
    )


def add_after(problem: Problem, pod: Object) -> Problem:
    """The host's problem; its fix ends with a new pod in place of one that has Failed."""
    if not _has_failed(pod):
        return problem
    return replace(problem, fix=lines((problem.fix, f"After that, replace the pod: {_replace(pod)}")))


def _has_failed(pod: Object) -> bool:
    return bool((pod.get("status") or {}).get("phase") == "Failed")


def _replace(pod: Object) -> str:
    owner = next(iter(pod["metadata"].get("ownerReferences") or ()), None)
    new = f"`kubectl delete pod -n {pod['metadata']['namespace']} {pod['metadata']['name']}`, then create it again"
    unless = f", unless its {owner['kind']} does" if owner else ""
    return f"it does not restart on its own: {new}{unless}."


def _explained(line: str, meaning: Explanation, pod: Object) -> Problem:
    node = pod["spec"].get("nodeName", "NODE")
    command = f" `{meaning.command.replace('--limit HOST', f'--limit {node}')}`" if meaning.command else ""
    fix: str = advise(f"{meaning.next}{command}")
    if meaning.code in WITHOUT_GPU and drain.asks(pod):
        fix = advise(
            f"It requests a GPU: `gpunode why node {node}` names a broken link of its host. If there is none, {ENVIRONMENT}"
        )
    return Problem(meaning.code, meaning.what, cause=line, fix=fix)
