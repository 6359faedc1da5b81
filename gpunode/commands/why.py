"""Why a pod has no GPU, a node offers fewer than it has, or a GPU is not used: from the symptom, by the judges of verify."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from difflib import get_close_matches
from typing import TypeAlias

from gpunode.acceptance.stamp import Stamp, describe_age, read_stamp
from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.commands.causes import fix_for_all
from gpunode.commands.verify import judge_chains
from gpunode.contract.promises import pod_name
from gpunode.contract.status import CORDONED
from gpunode.contract.usage import Gpu
from gpunode.engine import converge, impact, nodes
from gpunode.engine.accepted import CODE as NOT_ACCEPTED
from gpunode.engine.chain import judge_host
from gpunode.engine.member import Member
from gpunode.engine.reporter import progress
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, Problem, UsageError
from gpunode.inventory.starter import ranges
from gpunode.links.capacity import link as capacity
from gpunode.links.driver.link import repair
from gpunode.links.node import GPU_LABEL, Node, drain, parse
from gpunode.links.node.closed import why_closed
from gpunode.links.plugin import cordons
from gpunode.links.plugin.other_owners import dra_owners
from gpunode.links.plugin.usage import GpuName, NodeUsage, parse_gpu, read_usage
from gpunode.links.pod import pending, symptom
from gpunode.links.pod.pending import Waiting
from gpunode.links.pod.work import REFUSED, judge_work
from gpunode.model import Verdict
from gpunode.wording import Advice, advise, common, few, lines, several

ANSWER = ("subject", "state", "text")
REASON = ("code", "what", "evidence", "fix")
UNKNOWN = 7
NOT_KNOWN = (pending.UNKNOWN, symptom.UNEXPLAINED)  # codes of what is only quoted
ASKED = 20  # nodes whose plugins are asked, and hosts that are probed
STARTING = ("Pending", "ContainerCreating", "PodInitializing")
TAIL = 200  # lines of a pod's log
NAMED = 4
STARTS_PODS = ("library", "NVML", "toolkit", "runtime")  # links that each new pod with a GPU needs


Judged: TypeAlias = Mapping[str, tuple[Member, Sequence[Verdict]]]


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the cluster has now. `hosts`: the session's hosts can be asked."""

    session: Session
    api: Api
    nodes: Sequence[Object]
    pods: Sequence[Object]
    hosts: bool

    def pods_of(self, node: str) -> list[Object]:
        """The pods of this node."""
        return [pod for pod in self.pods if pod["spec"].get("nodeName") == node]

    def usage(self, only: Sequence[str] | None = None) -> tuple[NodeUsage, ...]:
        """What the plugins say of their GPUs now."""
        namespace = self.session.inventory.cluster.namespace
        return read_usage(self.api, namespace, self.nodes, self.pods, only)


def read_cluster(session: Session, *, hosts: bool) -> Cluster:
    """Raises ClusterError."""
    api = nodes.connect(session.inventory)
    config = session.inventory.cluster.plugin_config
    items = [capacity.drop_stale(item, config) for item in api.find("Node")[0]]
    return Cluster(session, api, items, api.find("Pod")[0], hosts)


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
            raise _not_there("pod", name, [pod_name(pod) for pod in cluster.pods])
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


def why_node(session: Session, name: str, *, hosts: bool) -> int:
    """Report why the node takes no pods, or offers fewer GPUs than it has; the exit code."""
    cluster = read_cluster(session, hosts=hosts)
    item = _find_item(cluster, name)
    if item is None:
        raise _not_there("node", name, [item["metadata"]["name"] for item in cluster.nodes])
    node = parse(item)
    problems = list(_judge_node(cluster, item))
    users = [f"{pod_name(pod)} ({count})" for pod in cluster.pods_of(name) if (count := _units(pod))]
    fails = any(each.layer in STARTS_PODS and not each.subject for each in problems[:1])
    but = ", but new pods get no GPU" if fails and node.ready and node.offers else ""
    parts = [
        f"node {name} is {'Ready' if node.ready else 'not Ready'} and offers {_offered(node)}{but}",
        f"in use by {few(users, NAMED)}" if users else "none in use" if node.offers else "",
        *(f"taint {taint['key']}={taint.get('value', '')}" for taint in _foreign_taints(item)),
    ]
    stamp = read_stamp(node.accepted) if node.accepted else None
    parts += [stamp.describe(time.time())] if stamp else []
    text = "; ".join(filter(None, parts))
    return report(session, f"node {name}", "wrong" if problems else "fine", text, problems, fine=True)


def why_gpu(session: Session, text: str, *, hosts: bool) -> int:
    """Report where the GPU is, who has it, and why it takes no pods; the exit code. `text`: the GPU's name."""
    name = parse_gpu(text)
    cluster = read_cluster(session, hosts=hosts)
    if name.node and _find_item(cluster, name.node) is None:
        raise _not_there("node", name.node, [item["metadata"]["name"] for item in cluster.nodes])
    usages = cluster.usage([name.node] if name.node else None)
    seen = [
        (usage, gpu) for usage in usages for gpu in usage.gpus if name.fits(usage.node, gpu.index, gpu.uuid)
    ]
    if len(seen) > 1:
        raise UsageError(f"{len(seen)} GPUs begin with {text}", hint="Give more of the UUID.")
    if not seen:
        return _why_gpu_gone(cluster, name, usages)
    ((usage, gpu),) = seen
    item = _item(cluster, usage.node)
    problems = [*_judge_gpu(gpu, parse(item)), *why_closed(item)]
    problems += [
        each for each in _broken_links(_judge_hosts(cluster, [usage.node])).values() if not each.subject
    ]
    users = [f"{user.pod} ({user.units} {user.resource})" for user in gpu.users or ()]
    state = "not known to be free" if gpu.users is None else "free"
    if users:
        state = f"in use by {few(users, NAMED)}"
    elif gpu.processes:
        state = f"in use by {several(gpu.processes, 'process')} outside pods"
    text = f"{gpu.uuid} is GPU {gpu.index} ({gpu.name}) of node {usage.node}"
    stamp = _stamp_of(gpu.uuid, parse(item))
    state += f"; {stamp.describe(time.time())}" if stamp else ""
    if problems:
        return report(session, f"gpu {gpu.uuid}", "wrong", text, problems, after=f". It is {state}")
    return report(session, f"gpu {gpu.uuid}", "fine", f"{text}, {state}", (), fine=True)


def report(
    session: Session,
    subject: str,
    state: str,
    text: str,
    problems: Sequence[Problem],
    *,
    fine: bool = False,
    after: str = "",
) -> int:
    """Report the answer and its reasons, what is to be done first first; the exit code. `fine`: without a problem, nothing is wrong.
    `after`: ends the answer."""
    reporter = session.reporter
    unknown = "" if fine else ": neither the cluster's objects nor its hosts show why"
    answer = lines((f"{text}:", problems[0].what), " ") if problems else text + unknown
    reporter.rows("answer", ANSWER, [(subject, state, answer + after)])
    rows = [(problem.code, problem.what, problem.cause.splitlines(), problem.fix) for problem in problems]
    reporter.rows("reason", REASON, rows)
    reporter.total("", {"reasons": len(problems)})
    if all(problem.code in NOT_KNOWN for problem in problems):
        return 0 if fine and not problems else UNKNOWN
    return 1


def _why_pending(cluster: Cluster, pod: Object) -> list[Problem]:
    names = pending.suspects(pod, cluster.nodes)[:ASKED]
    claims = _read_claims(cluster.api, pod)
    waiting = Waiting(pod, cluster.nodes, cluster.pods, claims, why_fewer(cluster, names))
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
    if (explained or unstarted) and (item := _find_item(cluster, name)):
        judged = _judge_hosts(cluster, [name])
        here = [*symptom.judge_size(pod, parse(item)), *_judge_node(cluster, item, judged)]
        problems = [symptom.add_new_pod(problem, pod, _right_links(judged.get(name))) for problem in problems]
        unpulled = any(problem.code == symptom.UNPULLED for problem in problems)  # on any node
        starts_none = bool(drain.asks(pod)) and any(each.layer in STARTS_PODS for each in here)
        first = (refused or unstarted or starts_none) and not unpulled
        problems = [*here, *problems] if first else [*problems, *here]
    elif cluster.hosts and not problems and (member := next(iter(probe(cluster, [name])), None)):
        problems += _lost_gpus(member, pod)
    return problems


def _state(pod: Object) -> str:
    """As kubectl shows it: the kubelet's reason, a container's, or the phase."""
    status = pod.get("status") or {}
    waiting = [reason for reason in pods.waiting_reasons(pod) if reason]
    return str(status.get("reason") or next(iter(sorted(waiting)), "") or status.get("phase") or "Pending")


def _lost_gpus(member: Member, pod: Object) -> Iterator[Problem]:
    """The pod's container lost its GPUs, as the link `work` judges it; or it may never have had any: its host shows none in it, and
    has a link broken that gives containers theirs."""
    if member.facts is None or member.outcome is None:
        return
    uid = pod["metadata"]["uid"]
    mine = tuple(container for container in member.facts.gpu_containers if container.pod == uid)
    verdict = judge_work(replace(member.facts, gpu_containers=mine, gpu_users=()), [pod])
    if verdict and verdict.status == "broken" and verdict.problem:
        yield verdict.problem
    elif not mine and drain.asks(pod) and _state(pod) == "Running" and not _is_privileged(pod):
        problem = broken_link(member, judge_host(member.outcome))
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
    name, node = pod_name(pod), _item(cluster, pod["spec"]["nodeName"])
    (usage,) = cluster.usage([node["metadata"]["name"]])
    mine = [gpu for gpu in usage.gpus if any(user.pod == name for user in gpu.users or ())]
    problems = [problem for gpu in mine for problem in _judge_gpu(gpu, parse(node), f"its GPU {gpu.index}")]
    has = few([f"GPU {gpu.index} ({gpu.uuid})" for gpu in mine], NAMED)
    return f"{text}; it has {has}" if has else text, problems


def _judge_node(cluster: Cluster, item: Object, judged: Judged | None = None) -> Iterator[Problem]:
    """Why it takes no pods; why it offers fewer GPUs than it has; why they are not accepted. Of a node that is not Ready first what its
    host shows: that is the cause. `judged`: its host, where that was probed before."""
    node, closed = parse(item), list(why_closed(item))
    if node.ready:
        yield from closed
    offers_none = node.labels.get(GPU_LABEL) == "true" and not node.offers
    fewer = offers_none or node.short or node.allocatable < node.capacity
    wrong = why_fewer(cluster, [node.name], ready=bool(fewer), judged=judged).get(node.name)
    if wrong and not (closed and wrong.layer == "node"):
        verify = advise(f"`gpunode verify --limit {node.name}` inspects its host and names the fix.")
        yield replace(wrong, fix=wrong.fix or verify)
    if not node.ready:
        yield from closed
    stamp = read_stamp(node.accepted) if node.accepted else None
    if stamp and stamp.failed:
        yield _not_accepted(stamp, node)


def _cordoned_gpus(cluster: Cluster, node: str) -> list[str]:
    every = (gpu for usage in cluster.usage([node]) for gpu in usage.gpus)
    return [gpu.uuid for gpu in every if gpu.unhealthy and gpu.unhealthy.code == CORDONED]


def _give_back(uuid: str) -> Advice:
    return advise(f"`gpunode uncordon-gpu {uuid}` gives it back; it disturbs no pod.")


def _not_accepted(stamp: Stamp, node: Node) -> Problem:
    fix = advise(f"`gpunode accept --limit {node.name}` measures the free ones again.")
    what = f"{few(stamp.failed, 2)} failed the acceptance"
    return Problem(NOT_ACCEPTED, what, cause=stamp.describe(time.time()), fix=fix)


def _judge_gpu(gpu: Gpu, node: Node, name: str = "it") -> Iterator[Problem]:
    """Why it takes no new pods, as its plugin says; and whether it was accepted."""
    if gpu.unhealthy is not None:
        out = gpu.unhealthy.code == CORDONED
        fix = _give_back(gpu.uuid) if out else repair(gpu.unhealthy.code)
        state = "" if out else "Unhealthy: "
        since = f"since {gpu.since}" if gpu.since and not out else ""
        what = f"{name} is {state}{gpu.unhealthy.words}"
        yield Problem(gpu.unhealthy.code, what, cause=since, fix=fix, subject=node.name)
    stamp = _stamp_of(gpu.uuid, node)
    if stamp and gpu.uuid in stamp.failed:
        yield _not_accepted(replace(stamp, failed=(gpu.uuid,)), node)


def _stamp_of(uuid: str, node: Node) -> Stamp | None:
    """The acceptance that has this GPU."""
    stamp = read_stamp(node.accepted) if node.accepted else None
    return stamp if stamp and uuid in (*stamp.uuids, *stamp.failed) else None


def _why_gpu_gone(cluster: Cluster, gpu_name: GpuName, usages: Sequence[NodeUsage]) -> int:
    """For a GPU that no plugin lists: the host that has it, else the node whose acceptance has it, else nodes that do not answer."""
    problems: list[Problem] = []
    uuid = gpu_name.text
    last = [node for node in map(parse, cluster.nodes) if uuid in node.accepted]
    members = probe(cluster, [gpu_name.node]) if gpu_name.node else _probe_all(cluster)
    for member in members:
        if member.facts is None:
            continue
        name = member.node.name if member.node else member.host.name
        gpu = next(
            (gpu for gpu in member.facts.gpus if gpu_name.fits(name, str(gpu.index), gpu.uuid)),
            None,
        )
        known = gpu.uuid if gpu else ""
        full = next(
            (full for full in cordons.read(member.facts) if full == known or gpu_name.fits("", "", full)), ""
        )
        if gpu or full:
            text = f"{gpu.uuid if gpu else full} is of host {member.host.name}; its plugin does not list it"
            if full:
                why = cordons.read(member.facts)[full].why
                problems.append(Problem(why.code, f"it is {why.words}", fix=_give_back(full)))
            chain = judge_chains(cluster.session, (member,), run=False)[member.host.name]
            problems += filter(None, [broken_link(member, chain)])
            item = _find_item(cluster, name)
            problems += why_closed(item) if item else ()
            return report(cluster.session, f"gpu {uuid}", "wrong", text, problems)
    if last:
        node = last[0]
        problems = list(_judge_node(cluster, _item(cluster, node.name)))
        gone = Problem(
            "gpu-gone", f"the plugin of {node.name} does not list it", fix=repair(), subject=node.name
        )
        stamp = read_stamp(node.accepted)
        text = f"{uuid} was a GPU of node {node.name}" + (f", {stamp.describe(time.time())}" if stamp else "")
        return report(cluster.session, f"gpu {uuid}", "wrong", text, [*problems, gone])
    silent = [
        replace(usage.reason, what=f"{usage.node} does not say which GPUs it has: {usage.reason}")
        for usage in usages
        if usage.reason
    ]
    text = f"no node lists {uuid}" + (f", nor does any of {several(len(members), 'host')}" if members else "")
    text += "" if cluster.hosts else "; with an inventory, hosts are asked, too"
    report(cluster.session, f"gpu {uuid}", "absent", text, silent, fine=True)
    return UNKNOWN


def _probe_all(cluster: Cluster) -> Sequence[Member]:
    """The hosts that answered, with their nodes."""
    if not cluster.hosts:
        return ()
    session = cluster.session
    members = session.for_each_host(converge.probe_and_plan, plans=False)
    placed = nodes.locate(cluster.api, members, seconds=0, notify=progress(session.reporter))
    namespace = session.inventory.cluster.namespace
    members = impact.find_impact(cluster.api, namespace, placed, placed, strict=False)
    return [member for member in members if member.facts is not None]


def why_fewer(
    cluster: Cluster, names: Sequence[str], *, ready: bool = True, judged: Judged | None = None
) -> dict[str, Problem]:
    """Why these nodes offer fewer GPUs than they have: by their hosts' chains where the inventory has them, else by the cluster.
    Not `ready`: the cluster shows nothing wrong, so that only hosts are asked."""
    if not names:
        return {}
    settings, owners = cluster.session.inventory.cluster, dra_owners(cluster.api)
    known = [node for node in map(parse, cluster.nodes) if node.name in names and node.ready and ready]
    wrong = {
        node.name: capacity.why_fewer(
            cluster.api, node, owners, config=settings.plugin_config, namespace=settings.namespace
        )
        for node in known
    }
    for name, problem in wrong.items():
        if problem.code == CORDONED:
            wrong[name] = replace(problem, fix=lines(map(_give_back, _cordoned_gpus(cluster, name))))
    return {**wrong, **_broken_links(_judge_hosts(cluster, names) if judged is None else judged)}


def _judge_hosts(cluster: Cluster, names: Sequence[str]) -> Judged:
    """Node -> its probed host, and that host's chain."""
    members = probe(cluster, names)
    chains = judge_chains(cluster.session, tuple(members), run=False) if members else {}
    return {member.node.name: (member, chains.get(member.host.name, ())) for member in members if member.node}


def _broken_links(judged: Judged) -> dict[str, Problem]:
    """Node -> the first broken link of its host's chain; of hosts that are in order, nothing."""
    return {node: problem for node, host in judged.items() if (problem := broken_link(*host))}


def _right_links(judged: tuple[Member, Sequence[Verdict]] | None) -> str:
    """`host gpu-03 is right now: PCI, module, library`; "" for a host that is not, or that nobody probed."""
    member, chain = judged or (None, ())
    good = [each.layer for each in chain if each.status == "ok"]
    if member is None or not good or any(each.status == "broken" for each in chain):
        return ""
    return f"host {member.host.name} is right now: {', '.join(good)}"


def probe(cluster: Cluster, names: Sequence[str]) -> Sequence[Member]:
    """The probed hosts of these nodes, with what their plans would disturb."""
    session = cluster.session
    if not cluster.hosts:
        return ()
    every = [Member(host) for host in session.hosts]
    members = nodes.locate(cluster.api, every, seconds=0, notify=progress(session.reporter))
    those = [member for member in members if member.node and member.node.name in names]
    asked = session.for_each_host(converge.probe_and_plan, those, plans=False) if those else ()
    namespace = session.inventory.cluster.namespace
    return impact.find_impact(cluster.api, namespace, asked, those, strict=False)


def broken_link(member: Member, chain: Sequence[Verdict]) -> Problem | None:
    """The first broken link as the node's problem, with what its fix disturbs."""
    verdict = next((verdict for verdict in chain if verdict.status == "broken"), None)
    if verdict is None or verdict.problem is None:
        return None
    good = " ".join(f"{each.layer} ✓" for each in chain if each.status == "ok")
    what = f"link `{verdict.layer}` of host {member.host.name} is broken: {verdict.text}"
    cause = lines((verdict.cause, f"{good} {verdict.layer} ✗".strip()))
    fix = impact.add_to_fix(verdict.fix, member)
    code, layer = verdict.problem.code or verdict.layer, verdict.layer
    return replace(verdict.problem, code=code, what=what, layer=layer, cause=cause, fix=fix)


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


def _units(pod: Object) -> int:
    """GPUs, or shares of them, that the pod has."""
    return 0 if (pod.get("status") or {}).get("phase") in pods.OVER else sum(drain.asks(pod).values())


def _offered(node: Node) -> str:
    """`3 of 4 nvidia.com/gpu`."""
    parts = [
        f"{unit.allocatable} of {unit.capacity} {name}"
        for name, unit in node.resources.items()
        if name.startswith("nvidia.com/") and unit.capacity
    ]
    return ", ".join(parts) or node.offered or "no GPU"


def _foreign_taints(item: Object) -> list[Mapping[str, str]]:
    taints = (item.get("spec") or {}).get("taints") or []
    return [taint for taint in taints if not taint["key"].startswith(("node.kubernetes.io/", "gpunode.dev/"))]


def _find_item(cluster: Cluster, name: str) -> Object | None:
    return next((item for item in cluster.nodes if item["metadata"]["name"] == name), None)


def _item(cluster: Cluster, name: str) -> Object:
    item = _find_item(cluster, name)
    if item is None:
        raise ClusterError(f"the cluster has no node {name} any more", hint="Run it again.")
    return item


def _not_there(kind: str, name: str, names: Sequence[str]) -> UsageError:
    same = [other for other in names if other.rpartition("/")[2] == name.rpartition("/")[2]]
    near = (same or get_close_matches(name, names, 3, 0.8))[:3]
    hint = f"`kubectl get {kind}s{' -A' if kind == 'pod' else ''}` lists them."
    if near:
        hint = f"Did you mean {' or '.join(near)}?"
    return UsageError(f"the cluster has no {kind} {name}", hint=hint)


def _seconds(moment: str) -> float:
    """Of a time as the API writes it; now for none."""
    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() if moment else time.time()
