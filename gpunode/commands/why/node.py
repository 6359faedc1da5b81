"""Why a node takes no pods, or offers fewer GPUs than it has."""

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from gpunode.acceptance.stamp import Stamp, read_stamp
from gpunode.cluster import pods
from gpunode.cluster.api.kinds import Object
from gpunode.commands.why import NAMED, chains, report
from gpunode.commands.why.chains import STARTS_PODS, Judged
from gpunode.commands.why.cluster import Cluster, read_cluster
from gpunode.contract.promises import pod_name
from gpunode.contract.status import CORDONED
from gpunode.engine.accepted import CODE as NOT_ACCEPTED
from gpunode.engine.member import Member
from gpunode.engine.session import Session
from gpunode.errors import NO_RIGHTS, Problem
from gpunode.links.capacity import link as capacity
from gpunode.links.driver.link import LOST, SILENT, find_missing
from gpunode.links.machine.pci import driven
from gpunode.links.node import GPU_LABEL, Node, drain, parse
from gpunode.links.node.closed import why_closed
from gpunode.links.plugin.other_owners import dra_owners
from gpunode.model import Facts
from gpunode.wording import Advice, advise, few, lines, several


def why_node(session: Session, name: str, *, hosts: bool) -> int:
    """Report it; the exit code. `hosts`: the inventory's hosts can be asked."""
    cluster = read_cluster(session, hosts=hosts)
    if cluster.find_node(name) is None and (host := chains.probe_stranger(cluster, name)):
        if host.node is None:
            return _why_not_joined(session, name, host)
        name = host.node.name
    item = cluster.named_node(name)
    node = parse(item)
    judged = chains.judge(cluster, [name])
    problems = list(judge_node(cluster, item, judged))
    facts = judged[name][0].facts if name in judged else None
    gpus = len(driven(facts.pci)) if facts else 0
    users = [f"{pod_name(pod)} ({count})" for pod in cluster.pods_of(name) if (count := _units(pod))]
    stamp = read_stamp(node.accepted)
    effect = _effect(cluster, node, problems[0], facts) if problems and node.ready and node.offers else ""
    parts = [
        f"node {name} is {'Ready' if node.ready else 'not Ready'} and offers {_offered(node, gpus)}{effect}",
        f"in use by {few(users, NAMED)}" if users else "none in use" if node.offers else "",
        *(f"taint {taint['key']}={taint.get('value', '')}" for taint in _foreign_taints(item)),
        stamp.describe(time.time()) if stamp and not problems else "",
    ]
    text = "; ".join(filter(None, parts))
    return report(session, f"node {name}", "wrong" if problems else "fine", text, problems, fine=True)


def _effect(cluster: Cluster, node: Node, problem: Problem, facts: Facts | None) -> str:
    """What its host's first broken link means for new pods; "" for what is no such link. A lost GPU leaves them the others."""
    if problem.layer not in STARTS_PODS or problem.subject:
        return ""
    if problem.code == SILENT and facts:
        gpus = [gpu for usage in cluster.usage([node.name]) for gpu in usage.gpus]
        lost = [f"GPU {gpu.index}" for gpu in gpus if gpu.unhealthy and gpu.unhealthy.code in LOST]
        lost = lost or [f"GPU {address}" for address in find_missing(facts) if facts.gpus]
        every = len(driven(facts.pci))
        if not lost and every > 1:
            return "; how many of its GPUs are lost is not known"
        if 0 < len(lost) < every:
            usable = every - len(lost)
            offered = "" if node.allocatable == usable else f"; {usable} of {every} GPUs usable"
            return f"{offered}; {few(lost, NAMED)} {'is' if len(lost) == 1 else 'are'} lost"
    return ", but new pods get no GPU"


def _why_not_joined(session: Session, name: str, host: Member) -> int:
    """Report the first broken link of a host that is no node; the exit code."""
    text = f"host {host.host.name} of the inventory has not joined the cluster"
    return report(
        session, f"node {name}", "absent", text, chains.find_broken(session, replace(host, reason=None))
    )


def judge_node(cluster: Cluster, item: Object, judged: Judged | None = None) -> Iterator[Problem]:
    """Why it takes no pods; why it offers fewer GPUs than it has; why they are not accepted. Of a node that is not Ready first what its
    host shows: that is the cause; and of one that gpunode has cordoned, since `resume` verifies the host before it lifts the cordon.
    `judged`: its host, where that was probed before."""
    node, closed = parse(item), list(why_closed(item))
    offers_none = node.labels.get(GPU_LABEL) == "true" and not node.offers
    fewer = offers_none or node.short or node.allocatable < node.capacity
    wrong = why_fewer(cluster, [node.name], ready=bool(fewer), judged=judged).get(node.name)
    if wrong and closed and wrong.layer == "node":
        wrong = None
    host_first = not node.ready or (wrong is not None and bool(node.cordoned_by))
    if not host_first:
        yield from closed
    if wrong:
        verify = advise(f"`gpunode verify --limit {node.name}` inspects its host and names the fix.")
        yield replace(wrong, fix=wrong.fix or verify)
    if host_first:
        yield from closed
    stamp = read_stamp(node.accepted)
    if stamp and stamp.failed:
        yield not_accepted(stamp, node)


def why_fewer(
    cluster: Cluster, names: Sequence[str], *, ready: bool = True, judged: Judged | None = None
) -> dict[str, Problem]:
    """Why these nodes offer fewer GPUs than they have: by their hosts' chains where the inventory has them, else by the cluster.
    Not `ready`: the cluster shows nothing wrong, so that only hosts are asked. A host that may not be read, or its closed node, hides no cause."""
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
            wrong[name] = replace(problem, fix=lines(map(uncordon, _cordoned_gpus(cluster, name))))
    links = chains.broken_links(chains.judge(cluster, names) if judged is None else judged)
    hides = {name: link for name, link in links.items() if link.code != NO_RIGHTS and link.layer != "node"}
    return links | wrong | hides


def not_accepted(stamp: Stamp, node: Node) -> Problem:
    """Of the GPUs that failed."""
    fix = advise(f"`gpunode accept --limit {node.name}` measures the free ones again.")
    what = f"{few(stamp.failed, 2)} failed the acceptance"
    return Problem(NOT_ACCEPTED, what, cause=stamp.describe(time.time()), fix=fix)


def uncordon(uuid: str) -> Advice:
    """The fix of a cordoned GPU."""
    return advise(
        f"Once that reason is settled, `gpunode uncordon-gpu {uuid}` gives it back; it disturbs no pod."
    )


def _cordoned_gpus(cluster: Cluster, node: str) -> list[str]:
    every = (gpu for usage in cluster.usage([node]) for gpu in usage.gpus)
    return [gpu.uuid for gpu in every if gpu.unhealthy and gpu.unhealthy.code == CORDONED]


def _units(pod: Object) -> int:
    """GPUs, or shares of them, that the pod has."""
    return 0 if (pod.get("status") or {}).get("phase") in pods.OVER else sum(drain.asks(pod).values())


def _offered(node: Node, gpus: int) -> str:
    """`3 of 4 nvidia.com/gpu`. `gpus`: that its host has on the PCI bus; 0: not known."""
    parts = [
        f"{unit.allocatable} of {unit.capacity} {name}"
        for name, unit in node.resources.items()
        if name.startswith("nvidia.com/") and unit.capacity
    ]
    return ", ".join(parts) or node.offered or (f"0 of {several(gpus, 'GPU')}" if gpus else "no GPU")


def _foreign_taints(item: Object) -> list[Mapping[str, str]]:
    taints = (item.get("spec") or {}).get("taints") or []
    return [taint for taint in taints if not taint["key"].startswith(("node.kubernetes.io/", "gpunode.dev/"))]
