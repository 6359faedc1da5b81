"""Where a GPU is, which pod has it, and why it takes no pods."""

import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from gpunode.acceptance.stamp import Stamp, read_stamp
from gpunode.commands.why import NAMED, UNKNOWN, chains, report
from gpunode.commands.why.cluster import Cluster, read_cluster
from gpunode.commands.why.node import judge_node, not_accepted, uncordon
from gpunode.contract.status import CORDONED
from gpunode.contract.usage import Gpu
from gpunode.engine.member import Member
from gpunode.engine.session import Session
from gpunode.errors import Problem, UsageError
from gpunode.links.driver.link import LOST, SILENT, repair
from gpunode.links.machine.pci import driven
from gpunode.links.node import Node, parse
from gpunode.links.node.closed import why_closed
from gpunode.links.plugin import cordons
from gpunode.links.plugin.usage import GpuName, NodeUsage, parse_gpu
from gpunode.wording import few, lines, several


def why_gpu(session: Session, text: str, *, hosts: bool) -> int:
    """Report it; the exit code. `text`: the GPU's name. `hosts`: the inventory's hosts can be asked."""
    name = parse_gpu(text)
    cluster = read_cluster(session, hosts=hosts)
    if name.node:
        cluster.named_node(name.node)
    usages = cluster.usage([name.node] if name.node else None)
    seen = [
        (usage, gpu) for usage in usages for gpu in usage.gpus if name.fits(usage.node, gpu.index, gpu.uuid)
    ]
    if len(seen) > 1:
        raise UsageError(f"{len(seen)} GPUs begin with {text}", hint="Give more of the UUID.")
    if not seen:
        return _why_unlisted(cluster, name, usages)
    ((usage, gpu),) = seen
    item = cluster.node(usage.node)
    problems = [*judge_gpu(gpu, parse(item)), *why_closed(item)]
    judged = chains.judge(cluster, [usage.node])
    broken = chains.broken_links(judged)
    listed = {each.uuid for member, _ in judged.values() if member.facts for each in member.facts.gpus}
    beside = find_lost_beside(usage, [gpu], listed)
    lost = gpu.unhealthy is not None and gpu.unhealthy.code in LOST
    for problem in broken.values():
        if lost and problem.code == SILENT:
            cause = lines((problems[0].cause, f"same fault at link {problem.layer}"))
            problems[0] = replace(problems[0], cause=cause)
        elif not problem.subject and not (beside and problem.code == SILENT):
            problems.append(problem)
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
        return report(session, f"gpu {gpu.uuid}", "wrong", f"{text}, {state}", problems)
    if beside:
        state = f"healthy and {state}. {name_lost(usage.node, beside[0])}"
    return report(session, f"gpu {gpu.uuid}", "fine", f"{text}, {state}", (), fine=True)


def find_lost_beside(usage: NodeUsage, own: Sequence[Gpu], listed: Collection[str]) -> list[Gpu]:
    """The node's lost GPUs, where its `own` answer: by the plugin, which may not know yet, and by its host. `listed`: UUIDs that the host
    lists; empty: not known."""
    answer = all(not gpu.unhealthy and (not listed or gpu.uuid in listed) for gpu in own)
    return [gpu for gpu in usage.gpus if answer and gpu.unhealthy and gpu.unhealthy.code in LOST]


def name_lost(node: str, gpu: Gpu) -> str:
    return f"GPU {gpu.index} of its node is Unhealthy: `gpunode why gpu {node}/{gpu.index}` shows the fix"


def judge_gpu(gpu: Gpu, node: Node, name: str = "it") -> Iterator[Problem]:
    """Why it takes no new pods, as its plugin reports; and whether it was accepted."""
    if gpu.unhealthy is not None:
        out = gpu.unhealthy.code == CORDONED
        fix = uncordon(gpu.uuid) if out else repair(node.name, gpu.unhealthy.code)
        state = "" if out else "Unhealthy: "
        since = f"since {gpu.since}" if gpu.since and not out else ""
        what = f"{name} is {state}{gpu.unhealthy.words}"
        yield Problem(gpu.unhealthy.code, what, cause=since, fix=fix, subject=node.name)
    stamp = _stamp_of(gpu.uuid, node)
    if stamp and gpu.uuid in stamp.failed:
        yield not_accepted(replace(stamp, failed=(gpu.uuid,)), node)


def _stamp_of(uuid: str, node: Node) -> Stamp | None:
    """The acceptance that has this GPU."""
    stamp = read_stamp(node.accepted)
    return stamp if stamp and uuid in (*stamp.uuids, *stamp.failed) else None


def _why_unlisted(cluster: Cluster, gpu_name: GpuName, usages: Sequence[NodeUsage]) -> int:
    """For a GPU that no plugin lists: the host that has it, else the node whose acceptance has it, else nodes that do not answer."""
    subject = f"gpu {gpu_name}"
    members = chains.probe(cluster, [gpu_name.node] if gpu_name.node else None)
    answering = [(member, member.facts) for member in members if member.facts]
    for member, facts in answering:
        name = member.node.name if member.node else member.host.name
        here = (gpu.uuid for gpu in facts.gpus if gpu_name.fits(name, str(gpu.index), gpu.uuid))
        known, out = next(here, ""), cordons.read(facts)
        cordoned = next((uuid for uuid in out if uuid == known or gpu_name.fits("", "", uuid)), "")
        if known or cordoned:
            text = f"{known or cordoned} is of host {member.host.name}; its plugin does not list it"
            problems: list[Problem] = []
            if cordoned:
                why = out[cordoned].why
                problems.append(Problem(why.code, f"it is {why.words}", fix=uncordon(cordoned)))
            problems += chains.find_broken(cluster.session, member)
            item = cluster.find_node(name)
            problems += why_closed(item) if item else ()
            return report(cluster.session, subject, "wrong", text, problems)
    missing = members[0] if members and _may_have(members[0], gpu_name.index) else None
    if missing and (broken := chains.find_broken(cluster.session, missing)):
        text = f"host {missing.host.name} lists no GPU {gpu_name.index}"
        return report(cluster.session, subject, "wrong", text, broken)
    if node := next((node for node in map(parse, cluster.nodes) if str(gpu_name) in node.accepted), None):
        gone = Problem(
            "gpu-gone",
            f"the plugin of {node.name} does not list it",
            fix=repair(node.name),
            subject=node.name,
        )
        stamp = read_stamp(node.accepted)
        text = f"{gpu_name} was a GPU of node {node.name}" + (
            f", {stamp.describe(time.time())}" if stamp else ""
        )
        problems = [*judge_node(cluster, cluster.node(node.name)), gone]
        return report(cluster.session, subject, "wrong", text, problems)
    silent = [
        replace(usage.reason, what=f"{usage.node} does not say which GPUs it has: {usage.reason}")
        for usage in usages
        if usage.reason
    ]
    there = name_gpus(gpu for usage in usages for gpu in usage.gpus)
    asked = f" and no host ({len(answering)} answered)" if answering else ""
    text = (
        f"{gpu_name.node} {f'has {there},' if there else 'reports'} no GPU {gpu_name.index}"
        if gpu_name.node
        else f"no node{asked} reports {gpu_name}"
    )
    text += "" if cluster.hosts else "; with an inventory, hosts are asked, too"
    report(cluster.session, subject, "absent", text, silent, fine=True)
    return UNKNOWN


def _may_have(member: Member, index: str | None) -> bool:
    """Whether this host misses a GPU of this index: it has as many on its PCI bus, or does not answer."""
    return index is not None and (not member.facts or int(index) < len(driven(member.facts.pci)))


def name_gpus(gpus: Iterable[Gpu]) -> str:
    """`GPU 0`, `GPUs 0 to 3` or `GPUs 0, 1 and 3`; "" for none."""
    known = sorted((gpu.index for gpu in gpus), key=lambda index: (len(index), index))
    if not known[1:]:
        return f"GPU {known[0]}" if known else ""
    whole = len(known) > 2 and known == [*map(str, range(len(known)))]
    return f"GPUs {'0 to' if whole else ', '.join(known[:-1]) + ' and'} {known[-1]}"
