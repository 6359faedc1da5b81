"""Why a pod has no GPU: the answer from the symptom, by the judges of verify, with its evidence and the fix."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from gpunode.acceptance.record import describe_age
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.contract.promises import pod_name
from gpunode.engine import converge, impact, nodes
from gpunode.engine.chain import judge_host
from gpunode.engine.member import Member
from gpunode.engine.reporter import progress
from gpunode.engine.session import Session
from gpunode.errors import HttpError, Problem, UsageError
from gpunode.links.capacity import link as capacity
from gpunode.links.node import parse
from gpunode.links.plugin.other_owners import dra_owners
from gpunode.links.pod import pending
from gpunode.links.pod.pending import Waiting
from gpunode.model import Verdict
from gpunode.wording import few, lines

ANSWER = ("subject", "state", "text")
REASON = ("code", "what", "evidence", "fix")
UNKNOWN = 7
ASKED = 20  # nodes whose plugins are asked, hosts that are probed


@dataclass(frozen=True, slots=True)
class Cluster:
    """What the cluster has now. `hosts`: the session's hosts can be asked."""

    session: Session
    api: Api
    nodes: Sequence[Object]
    pods: Sequence[Object]
    hosts: bool


def read_cluster(session: Session, *, hosts: bool) -> Cluster:
    """Raises ClusterError."""
    api = nodes.connect(session.inventory)
    return Cluster(session, api, api.find("Node")[0], api.find("Pod")[0], hosts)


def why_pod(session: Session, name: str, *, hosts: bool) -> int:
    """Report why the pod `namespace/name` waits; the exit code. `hosts`: the inventory's hosts can be asked."""
    name = name if "/" in name else f"default/{name}"
    cluster = read_cluster(session, hosts=hosts)
    pod = next((pod for pod in cluster.pods if pod_name(pod) == name), None)
    if pod is None:
        raise _no_pod(name, cluster.pods)
    state = str((pod.get("status") or {}).get("phase") or "Pending")
    age = describe_age(time.time() - _seconds(pod["metadata"].get("creationTimestamp", "")))
    text = f"{name}, created {age}, is {state} and asks for {pending.asks(pod)}"
    if not pending.is_waiting(pod):
        return report(session, f"pod {name}", state, text, (), fine=state in ("Running", "Succeeded"))
    return report(session, f"pod {name}", state, text, _why_pending(cluster, pod), fine=False)


def report(
    session: Session, subject: str, state: str, text: str, problems: Sequence[Problem], *, fine: bool
) -> int:
    """Report the answer and its reasons, what is to be done first first; the exit code. `fine`: without a problem, nothing is wrong."""
    reporter = session.reporter
    unknown = "" if fine else ": neither the cluster's objects nor its hosts show why"
    answer = lines((f"{text}:", problems[0].what), " ") if problems else text + unknown
    reporter.rows("answer", ANSWER, [(subject, state, answer)])
    rows = [(problem.code, problem.what, problem.cause.splitlines(), problem.fix) for problem in problems]
    reporter.rows("reason", REASON, rows)
    reporter.total("", {"reasons": len(problems)})
    if all(problem.code == pending.UNKNOWN for problem in problems):
        return 0 if fine and not problems else UNKNOWN
    return 1


def _why_pending(cluster: Cluster, pod: Object) -> list[Problem]:
    names = pending.suspects(pod, cluster.nodes)[:ASKED]
    claims = _read_claims(cluster.api, pod)
    wrong = why_fewer(cluster, names)
    return pending.judge(Waiting(pod, cluster.nodes, cluster.pods, claims, wrong))


def _read_claims(api: Api, pod: Object) -> dict[str, Object | None]:
    """The pod's PersistentVolumeClaims; without those that this user may not read."""
    namespace, claims = pod["metadata"].get("namespace", "default"), {}
    for volume in pod["spec"].get("volumes") or []:
        if name := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            try:
                claims[name] = api.get("PersistentVolumeClaim", name, namespace)
            except HttpError as error:
                if error.status != 403:
                    raise
    return claims


def why_fewer(cluster: Cluster, names: Sequence[str]) -> dict[str, Problem]:
    """Why these nodes offer fewer GPUs than they have: by their hosts where the inventory has them, else by the cluster."""
    if not names:
        return {}
    settings, owners = cluster.session.inventory.cluster, dra_owners(cluster.api)
    known = [node for node in map(parse, cluster.nodes) if node.name in names]
    wrong = {
        node.name: capacity.why_fewer(
            cluster.api, node, owners, config=settings.plugin_config, namespace=settings.namespace
        )
        for node in known
        if node.ready
    }
    return {**wrong, **_ask_hosts(cluster, names)}


def _ask_hosts(cluster: Cluster, names: Sequence[str]) -> Mapping[str, Problem]:
    """Node -> the first broken link of its host; of hosts that are in order, nothing."""
    return {
        member.node.name: problem
        for member in probe(cluster, names)
        if member.node and member.outcome and (problem := broken_link(member, judge_host(member.outcome)))
    }


def probe(cluster: Cluster, names: Sequence[str]) -> Sequence[Member]:
    """The probed hosts of these nodes, with what their plans would disturb."""
    session = cluster.session
    if not cluster.hosts:
        return ()
    notify = progress(session.reporter)
    members = nodes.locate(cluster.api, [Member(host) for host in session.hosts], seconds=0, notify=notify)
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
    where = f"{good} {verdict.layer} ✗".strip()
    what = lines((f"host {member.host.name}: {where} {verdict.text}", verdict.cause))
    fix = lines((verdict.fix, _describe_impact(member)), " ")
    return replace(verdict.problem, code=verdict.problem.code or verdict.layer, what=what, fix=fix)


def _describe_impact(member: Member) -> str:
    """What a provision of the host disturbs; "" where it would change nothing."""
    if not member.has_changes:
        return ""
    disturbed = member.disturbs
    if not disturbed.what:
        return "(disturbs no pod)"
    if disturbed.pods is None:
        return f"({disturbed.what}; the pods there are not known)"
    pods = few(list(disturbed.pods), 3)
    return f"({disturbed.what}; {f'disturbs {pods}' if pods else 'disturbs no pod'})"


def _no_pod(name: str, pods: Sequence[Object]) -> UsageError:
    names = [pod_name(pod) for pod in pods]
    near = get_close_matches(name, names, 3, 0.6)
    same = [other for other in names if other.partition("/")[2] == name.partition("/")[2]]
    hint = (
        f"Did you mean {' or '.join(same or near)}?" if same or near else "`kubectl get pods -A` lists them."
    )
    return UsageError(f"the cluster has no pod {name}", hint=hint)


def _seconds(moment: str) -> float:
    """Of a time as the API writes it."""
    from datetime import datetime

    return datetime.fromisoformat(moment.replace("Z", "+00:00")).timestamp() if moment else time.time()
