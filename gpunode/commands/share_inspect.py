"""Allocations of shared GPUs: shows them, finds and repairs mismatches, simulates pods."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.commands import unscheduled_pods
from gpunode.contract.checkpoint import FILE_NAME, healthy_ids, parse
from gpunode.contract.status import CORDONED
from gpunode.engine import converge, nodes
from gpunode.engine.chain import unfixed_note
from gpunode.engine.fleet import Visit
from gpunode.engine.member import Member, Members, outcomes
from gpunode.engine.reporter import Reporter, confirm
from gpunode.engine.session import Session
from gpunode.errors import HttpError, Problem
from gpunode.links.plugin import cordons, other_owners
from gpunode.links.plugin.usage import read_usage
from gpunode.links.scheduler import allocations, simulation
from gpunode.links.scheduler.allocations import Mismatch, Real, Row
from gpunode.model import File, Inventory, OnEvent, Outcome, Share
from gpunode.wording import few, several

RECORD = f"/var/lib/kubelet/device-plugins/{FILE_NAME}"
NAMED = 5  # hosts of a reason


def inspect(session: Session, *, details: bool, selected: bool = False, hosts: bool = True) -> int:
    """Show every GPU of the cluster with its pods and their allocations, read on the session's hosts, else from the plugins.
    `selected`: only the session's hosts. `hosts`: reach them over SSH; else they are names of nodes."""
    api, reporter = nodes.connect(session.inventory), session.reporter
    real, placed = _read_allocations(session, api) if hosts else ({}, ())
    chosen = set() if hosts else {host.node for host in session.hosts}
    there, pods = _state(api)
    if selected:
        there = (
            _nodes_of(placed, there)
            if hosts
            else [node for node in there if node["metadata"]["name"] in chosen]
        )
    others = [node for node in there if node["metadata"]["name"] not in real]
    asked = read_usage(api, session.inventory.cluster.namespace, others, pods) if others else ()
    real = {
        **{node.node: allocations.read_plugin(node.gpus, pods) for node in asked if node.reason is None},
        **real,
    }
    rows = allocations.make_rows(there, pods, _share(session.inventory).resource, real)
    show(rows, reporter, details=details)
    for node in asked:
        for gpu in node.gpus:
            if gpu.unhealthy and gpu.unhealthy.code == CORDONED:
                reporter.note(f"{node.node}: {gpu.uuid} is {gpu.unhealthy.words}")
    for member in placed:
        for uuid, cordon in (cordons.read(member.facts) if member.facts else {}).items():
            reporter.note(f"{member.host.name}: {uuid} is {cordon.why}")
    for node in asked:
        if node.reason is not None and any(row.node == node.node for row in rows):
            reporter.note(f"{node.node}: what its pods use is not known: {node.reason.what}.")
    unscheduled_pods.note(session.inventory, pods, reporter)
    return 0


def fsck(session: Session, *, repair: bool, yes: bool, selected: bool = False) -> int:
    """Show mismatches; with `repair` annotate the pods with their GPUs. The exit code: 1 if a mismatch remains.
    `selected`: only on the session's nodes."""
    api, reporter = nodes.connect(session.inventory), session.reporter
    real, placed = _read_allocations(session, api)
    there, pods = _state(api)
    if selected:
        there = _nodes_of(placed, there)
    share = _share(session.inventory)
    asks = share.scheduler.name if share.scheduler else ""
    findings = allocations.find_mismatches(there, pods, share.resource, real, asks)
    if session.inventory.cluster.share is None:
        findings = tuple(finding for finding in findings if finding.problem.code != "not-noted")
        reporter.note(
            "The inventory has no `cluster.share`: no extender notes pods' GPUs, and none needs to."
        )
    reporter.rows(
        "fsck",
        ("node", "pod", "code", "words", "repair"),
        [
            (
                finding.problem.subject,
                finding.pod,
                finding.problem.code,
                finding.problem.what,
                "annotations" if finding.repair else "",
            )
            for finding in findings
        ],
    )
    for other in other_owners.list_others(api):
        reporter.note(
            f"{other.title}, on {other.nodes} nodes, is {other.product.name}, and the extender does not count its pods: "
            f"{other.product.way}."
        )
    unscheduled_pods.note(session.inventory, pods, reporter)
    for reason in _find_uncompared(placed, there):
        reporter.note(f"Not compared with its kubelet: {reason}.")
    fixable = [finding for finding in findings if finding.repair]
    fixed = 0
    if repair and fixable:
        confirm(
            reporter, f"Write the annotations of {len(fixable)} pods, as the kubelets have them?", yes=yes
        )
        fixed = sum(_repair(api, finding, pods, reporter) for finding in fixable)
    reporter.total(
        _sentence(findings, fixed, repair=repair, compared=f"{len(real)} of {len(there)} nodes"),
        {"findings": len(findings), "repaired": fixed, "nodes": len(there), "compared": len(real)},
    )
    return 1 if len(findings) > fixed else 0


def simulate(inventory: Inventory, reporter: Reporter, units: Sequence[int], count: int) -> int:
    """Show where `count` pods would be placed; exit code 1 if not all fit."""
    api, share = nodes.connect(inventory), _share(inventory)
    there, pods = _state(api)
    placed, free = simulation.place(
        there, pods, share.resource, units, count, packed=share.policy == "packed"
    )
    reporter.rows(
        "simulated",
        ("pod", "node", "gpu", "why"),
        [(pod.pod, pod.node, ",".join(pod.gpus), _format_why(pod.why)) for pod in placed],
    )
    reporter.rows(
        "free",
        ("node", "free", "largest", "gpus"),
        [(node.node, node.free, node.largest, " ".join(map(str, node.by_gpu))) for node in free],
    )
    fit = sum(bool(pod.node) for pod in placed)
    reporter.total(f"{fit} of {count} pods would be placed", {"pods": count, "placed": fit})
    return 0 if fit == count else 1


def show(rows: Sequence[Row], reporter: Reporter, *, details: bool) -> None:
    """Report a row per GPU, with `details` one per container, and the sums by resource."""
    table = [
        (
            row.node,
            row.gpu,
            row.device,
            row.resource,
            row.promised,
            row.total,
            row.used,
            row.unit,
            ", ".join(dict.fromkeys(use.pod for use in row.uses)),
        )
        for row in rows
    ]
    reporter.rows(
        "share", ("node", "gpu", "device", "resource", "promised", "total", "used", "unit", "pods"), table
    )
    if details:
        reporter.rows(
            "use",
            ("node", "gpu", "resource", "pod", "container", "promised", "used", "unit"),
            [
                (row.node, row.gpu, row.resource, use.pod, use.container, use.promised, use.used, row.unit)
                for row in rows
                for use in row.uses
            ],
        )
    sums: dict[str, list[int]] = {}
    for row in rows:
        both = sums.setdefault(row.resource, [0, 0])
        both[0] += row.promised
        # Of a device whose units are not known those count that pods have.
        unknown = 0 if row.gpu == allocations.UNKNOWN else row.used or 0
        both[1] += unknown if row.total is None else row.total
    text = ", ".join(f"{resource} {promised}/{total}" for resource, (promised, total) in sums.items())
    reporter.total(text or "no node offers GPUs", {"resources": sums})


def _repair(api: Api, finding: Mismatch, pods: Sequence[Object], reporter: Reporter) -> bool:
    """Write a pod's annotations, unless another pod has its name by now."""
    namespace, _, name = finding.pod.partition("/")
    (seen,) = [
        pod["metadata"]
        for pod in pods
        if (pod["metadata"]["namespace"], pod["metadata"]["name"]) == (namespace, name)
    ]
    meta = {key: seen[key] for key in ("uid", "resourceVersion")} | {"annotations": dict(finding.repair)}
    try:
        api.merge("Pod", name, {"metadata": meta}, namespace)
    except HttpError as error:
        if error.reason not in ("Conflict", "NotFound"):
            raise
        reporter.note(f"{finding.pod} has changed meanwhile and was left unchanged; run fsck again.")
        return False
    return True


def _sentence(findings: Sequence[Mismatch], fixed: int, *, repair: bool, compared: str) -> str:
    checked = f"{compared} compared with their kubelets"
    if not findings:
        return f"nothing is wrong; {checked}"
    fixable = sum(bool(finding.repair) for finding in findings)
    if fixable == 0:
        way = "none can be repaired by annotations"
    else:
        way = f"{fixed} repaired" if repair else f"--repair can fix {fixable}"
    return f"{several(len(findings), 'finding')}; {way}; {checked}"


def _state(api: Api) -> tuple[list[Object], list[Object]]:
    return api.find("Node")[0], api.find("Pod")[0]


def _nodes_of(placed: Sequence[Member], there: Sequence[Object]) -> list[Object]:
    mine = {member.node.name for member in placed if member.node}
    return [node for node in there if node["metadata"]["name"] in mine]


def _share(inventory: Inventory) -> Share:
    return inventory.cluster.share or Share()


def _read_allocations(session: Session, api: Api) -> tuple[Mapping[str, Real], Members]:
    """Allocations by node, from the kubelets of the session's hosts, and the hosts with their nodes. Reports hosts that did not
    answer."""

    def probe(visit: Visit, emit: OnEvent) -> Outcome:
        visit.watch = replace(visit.watch, files=(*visit.watch.files, RECORD))
        return converge.probe_and_plan(visit, emit)

    members = session.for_each_host(probe)
    probed = outcomes(members)
    session.reporter.failures([outcome for outcome in probed if outcome.facts is None])
    for outcome in probed:
        if broken := unfixed_note(outcome):  # such as a lost GPU, which may have no row
            session.reporter.note(f"{outcome.host}: {broken}.")
    hoped = [replace(member, reason=None) for member in members]
    placed = nodes.locate(api, hoped, seconds=0, notify=session.reporter.note)
    real = {
        member.node.name: said
        for member in placed
        if member.node and (said := _of_host(member, session.reporter))
    }
    return real, placed


def _find_uncompared(placed: Sequence[Member], there: Sequence[Object]) -> list[str]:
    """Why some nodes are not compared with their kubelets; failures, which are reported elsewhere, left out."""
    answered = [member for member in placed if member.facts]
    seen = {member.node.name for member in answered if member.node}
    reasons = [str(member.reason) for member in answered if member.reason]
    bare = [member.host.name for member in answered if member.node and not _record(member)]
    if bare:
        reasons.append(f"{few(bare, NAMED)}: the kubelet has no {RECORD}: it never allocated a device")
    if others := sorted({node["metadata"]["name"] for node in there} - seen):
        reasons.append(f"{few(others, NAMED)}: no host of the inventory that answered is this node")
    return reasons


def _record(member: Member) -> File | None:
    file = member.facts.files.get(RECORD) if member.facts else None
    return file if file is not None and file.exists else None


def _of_host(member: Member, reporter: Reporter) -> Real | None:
    file = _record(member)
    if file is None:
        return None
    try:
        if file.content is None:
            raise ValueError(file.error or "it cannot be read")
        entries, units = parse(file.content), healthy_ids(file.content)
    except ValueError as error:
        reporter.problem(
            Problem(
                "", f"{RECORD}: {error}", subject=member.host.name, fix="What its pods use is not known."
            ),
            member.host.name,
        )
        return None
    indexes = {gpu.uuid: str(gpu.index) for gpu in member.gpus}
    return allocations.read_host(entries, units, indexes)


def _format_why(why: Mapping[str, int] | None) -> str:
    counts = (why or {}).items()
    return "; ".join(f"{several(count, 'node')}: {reason}" for reason, count in counts)
