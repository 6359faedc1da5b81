"""The GPUs of a cluster now: node, GPU, and its users."""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.pods import GPU, holds
from gpunode.commands import unscheduled_pods
from gpunode.contract.status import CORDONED
from gpunode.contract.usage import Gpu
from gpunode.engine import converge, history, nodes
from gpunode.engine.exit_codes import REFUSED
from gpunode.engine.member import Member, outcomes
from gpunode.engine.record import BEGUN
from gpunode.engine.reporter import (
    Bytes,
    Celsius,
    ForPrograms,
    Model,
    Moment,
    Names,
    Part,
    Percent,
    Silent,
    progress,
    report_reason,
)
from gpunode.engine.session import Session
from gpunode.errors import HttpError, Problem
from gpunode.links.capacity import slices
from gpunode.links.node import GPU_LABEL, Node, parse
from gpunode.links.plugin.daemonset import PAUSED
from gpunode.links.plugin.other_owners import dra_owners
from gpunode.links.plugin.usage import FORBIDDEN, NO_PLUGIN, NodeUsage, read_usage
from gpunode.links.scheduler import allocations
from gpunode.links.scheduler.allocations import Row
from gpunode.model import Host, Share
from gpunode.wording import advise, few, several

COLUMNS = (
    *("node", "gpu", "uuid", "model", "driver", "used", "memory", "util", "temp"),
    *("promised", "units", "allocated", "health", "since", "code", "reason", "pods", "processes"),
)
NAMED = 3  # pods of a node
SHARED = "shared with the host"  # the memory of GPUs that have none of their own
FSCK = "`gpunode share fsck` compares them with the kubelet's record"


def show_status(
    session: Session, *, selected: bool, hosts: bool, fresh: Callable[[], None] = lambda: None
) -> int:
    """Report a row per GPU, and the problems; the exit code. `selected`: only the session's nodes. `hosts`: the session's hosts can
    be asked for processes outside Kubernetes. `fresh` is called right before the first row."""
    reporter, cluster = session.reporter, session.inventory.cluster
    api = nodes.connect(session.inventory)
    only: list[str] | None = None
    missing = False
    if selected:
        members = nodes.identify(api, session, progress(reporter))
        for member in members:
            report_reason(reporter, member.host.name, member.reason if member.node is None else None)
        missing = any(member.node is None for member in members)
        only = [member.node.name for member in members if member.node]
    there, pods = api.find("Node")[0], api.find("Pod")[0]
    claimed = _usage_by_claims(api, there, only)
    usages = tuple(
        claimed.get(node.node, node) for node in read_usage(api, cluster.namespace, there, pods, only)
    )
    usages += tuple(claimed[name] for name in claimed.keys() - {node.node for node in usages})
    usages, back = leave_taken_back(api, session, sorted(usages, key=lambda node: node.node))
    resource = (cluster.share or Share()).resource
    # Without the extender a pod's GPU is not recorded: it was promised what the plugin says.
    known = {} if cluster.share else {node.node: allocations.read_plugin(node.gpus, pods) for node in usages}
    promised = {
        (entry.node, entry.gpu): entry
        for entry in allocations.make_rows(there, pods, resource, known)
        if entry.resource == resource and (cluster.share or entry.gpu != allocations.UNKNOWN)
    }
    table = [row(node, gpu, promised.get((node.node, gpu.index))) for node in usages for gpu in node.gpus]
    judged, here = dra_owners(api), {node.node for node in usages} - claimed.keys()
    owned = {
        node.name: why for node in map(parse, there) if node.name in here and (why := judged.reason(node))
    }
    fresh()
    reporter.rows("gpu", COLUMNS, table)
    usages = _note_run(api, session, usages) if hosts else usages
    if names := nodes_with_processes(usages):
        if hosts:
            show_processes(api, session, names)
        else:
            reporter.note(
                f"Processes outside Kubernetes use GPUs on {few(names, NAMED)}; with an inventory, `gpunode status FILE` names them."
            )
    refused = [node for node in usages if node.reason and node.reason.code == FORBIDDEN]
    _note_strangers(api, session, () if selected or not hosts else session.hosts)
    for host, when in back.items():
        reporter.note(history.note_taken_back(host, when))
    for node in usages:
        for text in (*_notes(node), *find_differences(node, resource, promised)):
            reporter.note(text)
        reason = None if node in refused else node.reason
        report_reason(
            reporter, node.node, owned.get(node.node) or (reason and replace(reason, subject=node.node))
        )
    if refused and (reason := refused[0].reason):
        names = tuple(node.node for node in refused)
        reporter.problem(replace(reason, subject=", ".join(names), hosts=names))
    numbers = totals(usages)
    unhealthy = [
        node.node
        for node in usages
        if node not in refused and (node.reason or any(_health(gpu) == "unhealthy" for gpu in node.gpus))
    ]
    if wrong := list(dict.fromkeys([*unhealthy, *owned])):
        limit = f"--limit {','.join(wrong[:NAMED])}"
        reporter.note(
            advise(
                f"`gpunode verify {limit}` follows the chain to the broken link, its cause and its fix.",
            )
        )
    elif numbers["gpus"]:
        reporter.note(
            advise(
                "Device plugins report this. `gpunode verify` also checks library versions, runtimes and new pods."
            )
        )
    unscheduled_pods.note(session.inventory, pods, reporter)
    parts, models = shares(usages, there, pods, resource), by_model(usages)
    more = {**({"models": models} if models else {}), **({"shares": parts} if parts else {})}
    reporter.total(sentence(numbers, parts, models), {**numbers, **more})
    if missing or owned or numbers["unhealthy"] or numbers["unknown"] > len(refused):
        return 1
    return REFUSED if refused else 0


def _note_strangers(api: Api, session: Session, hosts: Sequence[Host]) -> None:
    """Note which of these hosts are no nodes."""
    placed = _nodes_of(api, hosts) if hosts else {}
    if strangers := [host.name for host in hosts if host.name not in placed]:
        why = f"`gpunode status --limit {','.join(strangers[:NAMED])}` asks why."
        session.reporter.note(advise(f"No node of the cluster is known for {few(strangers, NAMED)}. {why}"))


def _note_run(api: Api, session: Session, usages: tuple[NodeUsage, ...]) -> tuple[NodeUsage, ...]:
    """Note the run under way, or cut off. The usages: of nodes without the plugin that it has not finished, with that as the reason, or
    with its command as the fix."""
    run = history.find_current(Path(session.inventory.path))
    if run is None:
        return usages
    session.reporter.note(history.note_current(run))
    goes_on = history.is_running(run)
    begun = run.not_done if goes_on else run.in_state(*BEGUN)
    left = [node.name for node in _nodes_of(api, [h for h in session.hosts if h.name in begun]).values()]
    fix = "" if goes_on else advise("`gpunode resume` continues the run that was cut off there.")

    def explain(reason: Problem) -> Problem:
        what = f"run {run.id} has not finished it yet" if goes_on else reason.what
        return replace(reason, what=what, fix=fix)

    return tuple(
        replace(usage, reason=explain(usage.reason))
        if usage.reason and usage.reason.code in (NO_PLUGIN, PAUSED) and usage.node in left
        else usage
        for usage in usages
    )


def _nodes_of(api: Api, hosts: Iterable[Host]) -> dict[str, Node]:
    """Host → its node; hosts without a node are left out."""
    members = nodes.locate(api, [Member(host) for host in hosts], seconds=0, notify=lambda _: None)
    return {member.host.name: member.node for member in members if member.node}


def leave_taken_back(
    api: Api, session: Session, usages: Iterable[NodeUsage]
) -> tuple[tuple[NodeUsage, ...], dict[str, str]]:
    """The usages without those of hosts that gpunode has taken back, and when these were: host → `undone 2026-11-27 14:03 CET`. A node with gpunode's
    label was set up since, with another inventory."""
    usages = tuple(usages)
    silent = {usage.node for usage in usages if usage.reason and usage.reason.code == NO_PLUGIN}
    placed = _nodes_of(api, session.hosts) if silent else {}
    bare = [host for host, node in placed.items() if node.name in silent and GPU_LABEL not in node.labels]
    back = (
        history.find_taken_back(Path(session.inventory.path), bare) if bare else {}
    )  # which may read all records
    gone = {placed[host].name for host in back}
    return tuple(usage for usage in usages if usage.node not in gone), back


def _usage_by_claims(api: Api, there: Sequence[Object], only: Sequence[str] | None) -> dict[str, NodeUsage]:
    """Node → its GPUs and the pods whose claims have them, of nodes that a DRA driver serves in the plugin's place; {} where this user
    may not list them."""
    with suppress(HttpError):
        published = slices.read(api) if api.served.has("ResourceClaim") else {}
        return {
            node.name: NodeUsage(node.name, slices.usage(published[node.name]))
            for node in map(parse, there)
            if node.name in published and node.labels.get(GPU_LABEL) != "true"
            if only is None or node.name in only
        }
    return {}


def row(node: NodeUsage, gpu: Gpu, promised: Row | None = None) -> tuple[object, ...]:
    """The cells of COLUMNS. `promised`: of its memory, if that is shared."""
    users = gpu.users if gpu.users is not None else ()
    return (
        node.node,
        gpu.index,
        ForPrograms(gpu.uuid),
        Model(gpu.name),
        gpu.driver,
        None if gpu.used is None else Bytes(gpu.used),
        SHARED if gpu.memory is None else Bytes(gpu.memory),
        None if gpu.utilization is None else Percent(gpu.utilization),
        None if gpu.temperature is None else Celsius(gpu.temperature),
        None if promised is None else Part(promised.promised, promised.total),
        None if promised is None or promised.total is None else Silent(promised.total),
        None
        if promised is None or gpu.users is None
        else sum(user.units for user in gpu.users if user.resource == promised.resource),
        _health(gpu),
        Moment(gpu.since),
        ForPrograms(gpu.unhealthy.code if gpu.unhealthy else ""),
        ForPrograms(gpu.unhealthy.words if gpu.unhealthy else ""),
        Names(dict.fromkeys(user.pod for user in users)),
        None if users or not gpu.processes else gpu.processes,
    )


def _health(gpu: Gpu) -> str:
    if gpu.unhealthy is None:
        return "ok"
    return CORDONED if gpu.unhealthy.code == CORDONED else "unhealthy"


def totals(usages: Sequence[NodeUsage]) -> dict[str, int]:
    """Numbers of nodes (`unknown`: whose GPUs are not known) and GPUs."""
    gpus = [gpu for node in usages for gpu in node.gpus]
    counts = Counter(
        _health(gpu) if gpu.unhealthy else "unseen" if gpu.users is None else "used" if gpu.users else "free"
        for gpu in gpus
    )
    return {
        "nodes": len(usages),
        "unknown": sum(node.reason is not None for node in usages),
        "gpus": len(gpus),
        "used": sum(bool(gpu.users) for gpu in gpus),
        "free": counts["free"],
        "unseen": counts["unseen"],
        "unhealthy": counts["unhealthy"],
        **({CORDONED: counts[CORDONED]} if counts[CORDONED] else {}),
    }


def by_model(usages: Sequence[NodeUsage]) -> dict[str, int]:
    """GPUs by model, the most frequent first."""
    return dict(Counter(gpu.name for node in usages for gpu in node.gpus).most_common())


def shares(
    usages: Sequence[NodeUsage], there: Sequence[Object], pods: Sequence[Object], memory: str
) -> dict[str, list[int]]:
    """Free and total units by resource, of resources that are parts of GPUs (MIG devices too). `memory`: the resource of GPUs
    shared by memory."""
    gpus = {node.node: len(node.gpus) for node in usages if node.reason is None}
    sums: dict[str, list[int]] = {}
    for node in (node for node in map(parse, there) if node.name in gpus):
        here = [pod for pod in pods if pod["spec"].get("nodeName") == node.name]
        for resource, count in node.units.items():
            whole = resource == GPU and count <= gpus[node.name]
            if count and not whole and (resource == memory or resource.startswith("nvidia.com/")):
                both = sums.setdefault(resource, [0, 0])
                both[0] += max(0, count - sum(holds(pod, resource) for pod in here))
                both[1] += count
    return sums


def sentence(
    numbers: dict[str, int],
    parts: Mapping[str, Sequence[int]] = MappingProxyType({}),
    models: Mapping[str, int] = MappingProxyType({}),
) -> str:
    """The totals for people; `parts`: `shares`; `models`: `by_model`, which are named where there are several."""
    if not numbers["nodes"]:
        return "No node offers GPUs yet."
    known = numbers["nodes"] - numbers["unknown"]
    if not known:
        return f"GPUs of {several(numbers['unknown'], 'node')} unknown"
    # A GPU with pods may have free shares.
    used, free = ("with pods", "without") if parts else ("in use", "free")
    states = [f"{numbers['used']} {used}", f"{numbers['free']} {free}"]
    states += [f"{numbers['unseen']} not reported by the kubelet"] if numbers["unseen"] else []
    states += [f"{numbers['unhealthy']} unhealthy"] if numbers["unhealthy"] else []
    states += [f"{numbers[CORDONED]} cordoned"] if numbers.get(CORDONED) else []
    shares = ", ".join(f"{left} of {count} {name}" for name, (left, count) in parts.items())
    more = f"; shares free: {shares}" if shares else ""
    more += f"; GPUs of {several(numbers['unknown'], 'more node')} unknown" if numbers["unknown"] else ""
    more += (
        f"; {', '.join(f'{count}x {Model(name)}' for name, count in models.items())}"
        if len(models) > 1
        else ""
    )
    return f"{several(numbers['gpus'], 'GPU')} on {several(known, 'node')}: {', '.join(states)}{more}"


def _notes(node: NodeUsage) -> Iterator[str]:
    """Why GPUs are unhealthy, and users of GPUs that the kubelet does not name."""
    for gpu in node.gpus:
        if gpu.unhealthy:
            state = "" if gpu.unhealthy.code == CORDONED else "unhealthy: "
            yield f"{node.node}: GPU {gpu.index} ({gpu.uuid}) is {state}{gpu.unhealthy.words}"
    if node.holders and (node.reason or any(gpu.users is None for gpu in node.gpus)):
        yield f"{node.node}: GPUs are in use by {few(node.holders, NAMED)}; which GPUs is not known"


def find_differences(
    node: NodeUsage, resource: str, promised: Mapping[tuple[str, str], Row]
) -> Iterator[str]:
    """Sentences on pods whose memory of the node's GPUs differs from what was promised."""
    if unknown := promised.get((node.node, allocations.UNKNOWN)):
        names = few(list(dict.fromkeys(use.pod for use in unknown.uses)), NAMED)
        yield f"{node.node}: no note of the GPU of {names}: {FSCK}"
    wanted, real = Counter[tuple[str, str, str]](), Counter[tuple[str, str, str]]()
    for gpu in node.gpus:
        of = promised.get((node.node, gpu.index))
        wanted.update({(use.pod, use.container, gpu.index): use.promised for use in (of.uses if of else ())})
        users = [user for user in gpu.users or () if user.resource == resource]
        real.update({(user.pod, user.container, gpu.index): user.units for user in users})
    started, noted = {use[:2] for use in real}, {use[:2] for use in wanted}
    differ = {use[0] for use in (wanted - real) + (real - wanted) if use[:2] in started & noted}
    if differ:
        yield f"{node.node}: {few(sorted(differ), NAMED)} got another GPU than was promised: {FSCK}"


PROCESS_COLUMNS = ("node", "pid", "command", "container", "gpus")


def nodes_with_processes(usages: Sequence[NodeUsage]) -> tuple[str, ...]:
    """Nodes with a GPU that has processes and no pod."""
    return tuple(
        node.node
        for node in usages
        if any(gpu.processes and gpu.users is not None and not gpu.users for gpu in node.gpus)
    )


def show_processes(api: Api, session: Session, names: Sequence[str]) -> None:
    """Ask the hosts of these nodes, and report a row for each process outside pods; hosts that do not answer are failures."""
    members = nodes.locate(
        api, [Member(host) for host in session.hosts], seconds=0, notify=progress(session.reporter)
    )
    theirs = {
        member.host.name: member.node.name for member in members if member.node and member.node.name in names
    }
    if not theirs:
        return
    asked = session.for_each_host(
        converge.probe_and_plan,
        [Member(member.host) for member in members if member.host.name in theirs],
        plans=False,
    )
    session.reporter.failures(outcomes([member for member in asked if member.facts is None]))
    rows = [
        (
            theirs[member.host.name],
            user.pid,
            user.command,
            user.name or user.container or "",
            " ".join(user.gpus),
        )
        for member in asked
        if member.facts is not None
        for user in member.facts.gpu_users
        if user.pod is None
    ]
    session.reporter.rows("process", PROCESS_COLUMNS, rows)
