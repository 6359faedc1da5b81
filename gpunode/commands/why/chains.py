"""The nodes' hosts, probed, and the first broken link of each."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from gpunode.commands.verify import judge_chains
from gpunode.commands.why.cluster import Cluster
from gpunode.engine import converge, impact, nodes
from gpunode.engine.member import Member, Members
from gpunode.engine.reporter import progress
from gpunode.engine.session import Session
from gpunode.errors import Problem
from gpunode.links.node import find_named, parse
from gpunode.model import Verdict
from gpunode.wording import lines

STARTS_PODS = ("library", "NVML", "toolkit", "runtime")  # links that each new pod with a GPU needs

Judged: TypeAlias = Mapping[str, tuple[Member, Sequence[Verdict]]]


def probe(cluster: Cluster, names: Sequence[str] | None = None) -> Sequence[Member]:
    """The probed hosts of these nodes, or all hosts (None), with what their plans would disturb."""
    if not cluster.hosts:
        return ()
    session = cluster.session
    visit = partial(session.for_each_host, converge.probe_and_plan, plans=False)
    locate = partial(nodes.locate, cluster.api, seconds=0, notify=progress(session.reporter))
    if names is None:
        placed = members = locate(visit())
    else:
        placed = _claim(cluster, names, locate)
        members = visit(placed) if placed else ()
    namespace = session.inventory.cluster.namespace
    return impact.find_impact(cluster.api, namespace, members, placed, strict=False)


def _claim(cluster: Cluster, names: Sequence[str], locate: Callable[[Sequence[Member]], Members]) -> Members:
    """The hosts of these nodes: by name; by address, which hosts behind a gateway share, only nodes without a host of their name."""
    every = [parse(item) for item in cluster.nodes]
    placed: Members = ()
    for by_name in (True, False):
        left = set(names) - {member.node.name for member in placed if member.node}
        hosts = [host for host in cluster.session.hosts if by_name == bool(find_named(host, every))]
        located = locate([Member(host) for host in hosts]) if left else ()
        placed += tuple(member for member in located if member.node and member.node.name in left)
    return placed


def probe_stranger(cluster: Cluster, name: str) -> Member | None:
    """The probed host of this name, with its node if it is one under another name; None if the inventory has no such host."""
    session = cluster.session
    hosts = [Member(host) for host in session.hosts if cluster.hosts and name in (host.name, host.node)]
    if not hosts:
        return None
    members = session.for_each_host(converge.probe_and_plan, hosts[:1], plans=False)
    if members[0].facts:
        members = nodes.locate(cluster.api, members, seconds=0, notify=progress(session.reporter))
    (member,) = impact.find_impact(
        cluster.api, session.inventory.cluster.namespace, members, (), strict=False
    )
    return member


def judge(cluster: Cluster, names: Sequence[str]) -> Judged:
    """Node -> its probed host, and that host's chain."""
    members = probe(cluster, names)
    chains = judge_chains(cluster.session, tuple(members), run=False) if members else {}
    return {member.node.name: (member, chains.get(member.host.name, ())) for member in members if member.node}


def broken_links(judged: Judged) -> dict[str, Problem]:
    """Node -> `broken_link` of its host's chain; of hosts that are in order, nothing."""
    return {node: problem for node, host in judged.items() if (problem := broken_link(*host))}


def find_broken(session: Session, member: Member) -> list[Problem]:
    """`broken_link` of a probed host, if there is one."""
    chain = judge_chains(session, (member,), run=False).get(member.host.name, ())
    return [problem] if (problem := broken_link(member, chain)) else []


def broken_link(member: Member, chain: Sequence[Verdict]) -> Problem | None:
    """The first link that is broken, or that this user has no right to judge, as the node's problem, with what its fix disturbs."""
    verdict = next((link for link in chain if link.status == "broken" or link.lacks_right), None)
    if verdict is None or verdict.problem is None:
        return None
    good = " ".join(f"{each.layer} ✓" for each in chain if each.status == "ok")
    state, sign = (verdict.text, "·") if verdict.lacks_right else (f"broken: {verdict.problem.what}", "✗")
    what = f"link `{verdict.layer}` of host {member.host.name} is {state}"
    more = "\n".join(line for line in verdict.cause.splitlines() if line != verdict.problem.what)
    cause = lines((more, f"{good} {verdict.layer} {sign}".strip()))
    fix = impact.add_to_fix(verdict.fix, member)
    code, layer = verdict.problem.code or verdict.layer, verdict.layer
    return replace(verdict.problem, code=code, what=what, layer=layer, cause=cause, fix=fix)
