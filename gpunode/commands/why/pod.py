"""Why a pod waits, fails or has no GPU."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime

from gpunode.acceptance.stamp import describe_age
from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.commands.causes import fix_for_all
from gpunode.commands.why import NAMED, NOT_KNOWN, chains, report
from gpunode.commands.why.chains import STARTS_PODS
from gpunode.commands.why.cluster import Cluster, absent, read_cluster
from gpunode.commands.why.gpu import find_lost_beside, judge_gpu, name_gpus, name_lost
from gpunode.commands.why.node import judge_node, why_fewer
from gpunode.contract.promises import pod_name
from gpunode.contract.usage import Gpu
from gpunode.engine.chain import judge_host
from gpunode.engine.member import Member
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, Problem, UsageError
from gpunode.inventory.starter import ranges
from gpunode.links.driver.link import SILENT
from gpunode.links.machine.pci import accelerator
from gpunode.links.node import drain, parse
from gpunode.links.plugin.usage import NodeUsage
from gpunode.links.pod import pending, symptom
from gpunode.links.pod.pending import Waiting
from gpunode.links.pod.work import REFUSED, judge_work
from gpunode.model import Verdict
from gpunode.wording import common, few, lines

ASKED = 20  # nodes whose plugins are asked, and hosts that are probed
STARTING = ("Pending", "ContainerCreating", "PodInitializing")
TAIL = 200  # lines of a pod's log


def why_pod(session: Session, name: str, namespace: str | None = None, *, hosts: bool) -> int:
    """Report why the pod `namespace/name` waits or fails; the exit code. `namespace`: of a name alone. `hosts`: the inventory's
    hosts can be asked."""
    name = name if "/" in name else f"{namespace or 'default'}/{name}"
    hint = "It is written NAMESPACE/NAME, or NAME with -n NAMESPACE; a NAME alone is of `default`."
    if not all(name.partition("/")[::2]) or name.count("/") > 1:
        raise UsageError(f"{name} is no pod", hint=hint)
    if namespace and not name.startswith(f"{namespace}/"):
        raise UsageError(f"{name} is no pod of namespace {namespace}", hint=hint)
    cluster = read_cluster(session, hosts=hosts)
    pod = next((pod for pod in cluster.pods if pod_name(pod) == name), None)
    if pod is None:
        problem = symptom.judge_absent(name, _events(cluster.api, name.split("/")[0]), cluster.pods)
        if problem is None:
            raise absent("pod", name, [pod_name(pod) for pod in cluster.pods])
        return report(session, f"pod {name}", "absent", f"there is no pod {name}", [problem])
    state = _state(pod)
    age = describe_age(time.time() - _seconds(pod["metadata"].get("creationTimestamp", "")))
    where = f" on {pod['spec']['nodeName']}" if pod["spec"].get("nodeName") else ""
    asks = f" and asks for {asked}" if (asked := pending.asks(pod)) else ""
    text = f"{name}, created {age}, is {state}{where}{asks}"
    if pending.is_waiting(pod):
        return report(session, f"pod {name}", state, text, _why_pending(cluster, pod))
    problems = _why_failing(cluster, pod)
    if state == "Running" and not problems:
        text, problems = _describe_running(cluster, pod, text)
    return report(
        session, f"pod {name}", state, text, problems, fine=state in ("Running", "Succeeded", *STARTING)
    )


def _why_pending(cluster: Cluster, pod: Object) -> list[Problem]:
    names = pending.suspects(pod, cluster.nodes)[:ASKED]
    claims = _read_claims(cluster.api, pod)
    unlabelled = pending.unlabelled(pod, cluster.nodes)
    asked = cluster.usage(unlabelled) if len(unlabelled) <= ASKED else ()
    models = {usage.node: accelerator(usage.gpus[0].name) for usage in asked if usage.gpus}
    largest = pending.largest(pod, cluster.nodes)[:ASKED]
    wrong = why_fewer(cluster, names) | why_fewer(cluster, largest, ready=False)
    waiting = Waiting(pod, cluster.nodes, cluster.pods, claims, wrong, models)
    return group_nodes(pending.judge(waiting))


def group_nodes(problems: Sequence[Problem]) -> list[Problem]:
    """The problems, in their order; one that several nodes have is one, with all of their evidence and a fix for all."""
    groups: dict[tuple[str, str], list[Problem]] = {}
    for problem in problems:
        groups.setdefault((problem.code, common(problem.what, problem.subject or " ")), []).append(problem)
    return [_join(same) if len(same) > 1 else same[0] for same in groups.values()]


def _join(same: Sequence[Problem]) -> Problem:
    first, *others = same
    rest = few(ranges([other.subject for other in others]), NAMED)
    cause = "\n".join(f"{each.subject}: {each.cause.partition(chr(10))[0]}" for each in same if each.cause)
    fix = fix_for_all(first.fix, [each.subject for each in same])
    return replace(first, what=f"{first.what}; the same on {rest}", cause=cause, fix=fix)


def _why_failing(cluster: Cluster, pod: Object) -> list[Problem]:
    """By its events and its log; where the kubelet refused it, by its node's GPUs, too."""
    meta = pod["metadata"]
    events = [
        event
        for event in _events(cluster.api, meta["namespace"])
        if (event.get("involvedObject") or {}).get("uid") == meta["uid"]
    ]
    log = pods.last_lines(cluster.api, pod, _failing_container(pod), lines=TAIL)
    problems = list(symptom.judge_placed(pod, events, log))
    refused = any(problem.code == REFUSED for problem in problems)
    unstarted = pods.waiting_reasons(pod) & (drain.FAILS - {"CrashLoopBackOff"}) or _state(pod) in STARTING
    explained = any(problem.code not in (*NOT_KNOWN, symptom.ASKS_NONE) for problem in problems)
    name = pod["spec"].get("nodeName", "")
    if (explained or unstarted) and (item := cluster.find_node(name)):
        judged = chains.judge(cluster, [name])
        here = [*symptom.judge_size(pod, parse(item)), *judge_node(cluster, item, judged)]
        right = _right_links(judged.get(name))
        broken = next((each for each in here if drain.asks(pod) and each.layer in STARTS_PODS), None)
        effects = [each for each in problems if symptom.is_of_host(each, pod)]
        if broken and effects:
            whole = replace(broken, cause=lines((broken.cause, *(each.cause for each in effects))))
            here[here.index(broken)] = symptom.add_after(whole, pod)
            problems = [each for each in problems if each not in effects]
        problems = [symptom.add_new_pod(each, pod, right) for each in problems]
        unpulled = any(problem.code == symptom.UNPULLED for problem in problems)  # on any node
        first = (refused or unstarted or broken) and not unpulled
        problems = [*here, *problems] if first else [*problems, *here]
    elif cluster.hosts and not problems and (member := next(iter(chains.probe(cluster, [name])), None)):
        problems += _lost_gpus(cluster, member, pod)
    return problems


def _state(pod: Object) -> str:
    """As kubectl shows it: the kubelet's reason, a container's, or the phase."""
    status = pod.get("status") or {}
    waiting = [reason for reason in pods.waiting_reasons(pod) if reason]
    return str(status.get("reason") or next(iter(sorted(waiting)), "") or status.get("phase") or "Pending")


def _lost_gpus(cluster: Cluster, member: Member, pod: Object) -> Iterator[Problem]:
    """The pod's container lost its GPUs, as the link `work` judges it; or it may never have had any: its host shows none in it, and
    has a link broken that gives containers theirs. A lost GPU beside its own breaks none of these."""
    if member.facts is None or member.outcome is None:
        return
    uid = pod["metadata"]["uid"]
    mine = tuple(container for container in member.facts.gpu_containers if container.pod == uid)
    verdict = judge_work(replace(member.facts, gpu_containers=mine, gpu_users=()), [pod])
    if verdict and verdict.status == "broken" and verdict.problem:
        yield verdict.problem
    elif not mine and drain.asks(pod) and _state(pod) == "Running" and not _is_privileged(pod):
        problem = chains.broken_link(member, judge_host(member.outcome))
        usage, own = _own_gpus(cluster, pod)
        if own and problem and problem.code == SILENT:
            problem = (
                None if find_lost_beside(usage, own, {gpu.uuid for gpu in member.facts.gpus}) else problem
            )
        if problem and problem.layer in STARTS_PODS:
            what = f"no GPU is seen in its container, and {problem.what}"
            again = "If the pod was started after the fault, delete it and create it again."
            yield replace(problem, what=what, fix=lines((problem.fix, again)))


def _is_privileged(pod: Object) -> bool:
    """Whether a container has all devices of its host: whose GPU it uses is not known then."""
    contexts = (container.get("securityContext") or {} for container in pod["spec"]["containers"])
    return any(context.get("privileged") for context in contexts)


def _describe_running(cluster: Cluster, pod: Object, text: str) -> tuple[str, list[Problem]]:
    """The text with the pod's GPUs, and what is wrong with these."""
    node = parse(cluster.node(pod["spec"]["nodeName"]))
    usage, mine = _own_gpus(cluster, pod)
    problems = [problem for gpu in mine for problem in judge_gpu(gpu, node, f"its GPU {gpu.index}")]
    has = name_gpus(mine)
    beside = [f", healthy. {name_lost(node.name, gpu)}" for gpu in find_lost_beside(usage, mine, ())]
    return f"{text}; it has {has}{''.join(beside[:1])}" if has else text, problems


def _own_gpus(cluster: Cluster, pod: Object) -> tuple[NodeUsage, list[Gpu]]:
    """The usage of the pod's node, and its GPUs that the pod has."""
    (usage,) = cluster.usage([pod["spec"]["nodeName"]])
    return usage, [gpu for gpu in usage.gpus if any(user.pod == pod_name(pod) for user in gpu.users or ())]


def _right_links(judged: tuple[Member, Sequence[Verdict]] | None) -> str:
    """`host gpu-03 is OK now: PCI, module, library`; "" for a host that is not, or that nobody probed."""
    member, chain = judged or (None, ())
    good = [each.layer for each in chain if each.status == "ok"]
    if member is None or not good or any(each.status == "broken" for each in chain):
        return ""
    return f"host {member.host.name} is OK now: {', '.join(good)}"


def _read_claims(api: Api, pod: Object) -> dict[str, Object | None]:
    """The pod's PersistentVolumeClaims; without those that this user may not read."""
    claims: dict[str, Object | None] = {}
    for volume in pod["spec"].get("volumes") or []:
        if name := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            try:
                claims[name] = api.get("PersistentVolumeClaim", name, pod["metadata"]["namespace"])
            except ClusterError:
                continue
    return claims


def _events(api: Api, namespace: str) -> list[Object]:
    """The namespace's events, oldest first; () where this user may not read them."""
    try:
        return sorted(api.find("Event", namespace)[0], key=pods.time_of)
    except ClusterError:
        return []


def _failing_container(pod: Object) -> str:
    """The container that ended or waits, else the first with GPUs, else the first."""
    status = pod.get("status") or {}
    for each in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        state = each.get("state") or {}
        if "waiting" in state or (state.get("terminated") or {}).get("exitCode"):
            return str(each["name"])
    containers = pod["spec"]["containers"]
    using = [each for each in containers if drain.asks({"spec": {"containers": [each]}})]
    return str((using or containers)[0]["name"])


def _seconds(moment: str) -> float:
    """Of a time as the API writes it; now for none."""
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() if moment else time.time()
