"""Who has what of the GPUs, what is wrong with it, and what would fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.commands import unscheduled_pods
from gpunode.contract.checkpoint import FILE_NAME, healthy_ids, parse
from gpunode.engine import converge, nodes
from gpunode.engine.chain import unfixed_note
from gpunode.engine.fleet import Visit
from gpunode.engine.listener import Listener, confirm
from gpunode.engine.member import Member, Members, outcomes
from gpunode.engine.session import Session
from gpunode.errors import HttpError, Problem
from gpunode.links.plugin import other_owners
from gpunode.links.plugin.usage import usage
from gpunode.links.scheduler import picture, simulation
from gpunode.links.scheduler.picture import Mismatch, Real, Row
from gpunode.model import File, Inventory, OnEvent, Outcome, Share
from gpunode.wording import few, several

RECORD = f"/var/lib/kubelet/device-plugins/{FILE_NAME}"
NAMED = 5  # hosts of a reason


def inspect(session: Session, *, details: bool, selected: bool = False, hosts: bool = True) -> int:
    """Show every GPU of the cluster with its pods, and what the kubelets gave them: as the session's hosts say, or else the plugins.
    `selected`: only those of the session's hosts. `hosts`: they are reached over SSH; else they are names of nodes."""
    api, listener = nodes.connect(session.inventory), session.listener
    real, placed = _real(session, api) if hosts else ({}, ())
    chosen = set() if hosts else {host.node for host in session.hosts}
    there, pods = _state(api)
    if selected:
        there = _of(placed, there) if hosts else [one for one in there if one["metadata"]["name"] in chosen]
    others = [one for one in there if one["metadata"]["name"] not in real]
    asked = usage(api, session.inventory.cluster.namespace, others, pods) if others else ()
    real = {**{one.node: picture.of_plugin(one.gpus, pods) for one in asked if one.reason is None}, **real}
    found = picture.rows(there, pods, _share(session.inventory).resource, real)
    show(found, listener, details=details)
    for one in asked:
        if one.reason is not None and any(row.node == one.node for row in found):
            listener.note(f"{one.node}: what its pods use is not known: {one.reason.what}.")
    unscheduled_pods.note(session.inventory, pods, listener)
    return 0


def fsck(session: Session, *, repair: bool, yes: bool, selected: bool = False) -> int:
    """Show what is wrong; with `repair` note on pods which GPUs they have. The exit code: 1 where something stays wrong.
    `selected`: only on the session's nodes."""
    api, listener = nodes.connect(session.inventory), session.listener
    real, placed = _real(session, api)
    there, pods = _state(api)
    if selected:
        there = _of(placed, there)
    share = _share(session.inventory)
    asks = share.scheduler.name if share.scheduler else ""
    found = picture.find_mismatches(there, pods, share.resource, real, asks)
    if session.inventory.cluster.share is None:
        found = tuple(one for one in found if one.problem.code != "not-noted")
        listener.note(
            "The inventory has no `cluster.share`: no extender notes which GPU a pod has, and none has to."
        )
    listener.rows(
        "fsck",
        ("node", "pod", "code", "words", "repair"),
        [
            (
                one.problem.subject,
                one.pod,
                one.problem.code,
                one.problem.what,
                "annotations" if one.repair else "",
            )
            for one in found
        ],
    )
    for other in other_owners.every(api):
        listener.note(
            f"{other.title}, on {other.nodes} nodes, is {other.product.name}, which the extender knows nothing of: "
            f"{other.product.way}."
        )
    unscheduled_pods.note(session.inventory, pods, listener)
    for reason in _uncompared(placed, there):
        listener.note(f"Not compared with its kubelet: {reason}.")
    fixable = [one for one in found if one.repair]
    fixed = 0
    if repair and fixable:
        confirm(
            listener, f"Write the annotations of {len(fixable)} pods, as the kubelets have them?", yes=yes
        )
        fixed = sum(_repaired(api, one, pods, listener) for one in fixable)
    listener.total(
        _sentence(found, fixed, repair=repair, compared=f"{len(real)} of {len(there)} nodes"),
        {"findings": len(found), "repaired": fixed, "nodes": len(there), "compared": len(real)},
    )
    return 1 if len(found) > fixed else 0


def simulate(inventory: Inventory, listener: Listener, units: Sequence[int], count: int) -> int:
    """Show where so many pods would go; exit code 1 where not all do."""
    api, share = nodes.connect(inventory), _share(inventory)
    there, pods = _state(api)
    placed, free = simulation.place(
        there, pods, share.resource, units, count, packed=share.policy == "packed"
    )
    listener.rows(
        "simulated",
        ("pod", "node", "gpu", "why"),
        [(one.pod, one.node, ",".join(one.gpus), _why(one.why)) for one in placed],
    )
    listener.rows(
        "free",
        ("node", "free", "largest", "gpus"),
        [(one.node, one.free, one.largest, " ".join(map(str, one.by_gpu))) for one in free],
    )
    fit = sum(bool(one.node) for one in placed)
    listener.total(f"{fit} of {count} pods would be placed", {"pods": count, "placed": fit})
    return 0 if fit == count else 1


def show(found: Sequence[Row], listener: Listener, *, details: bool) -> None:
    """A row for each GPU, with `details` for each container, and what of all is promised."""
    table = [
        (
            one.node,
            one.gpu,
            one.device,
            one.resource,
            one.promised,
            one.total,
            one.used,
            one.unit,
            _pods(one),
        )
        for one in found
    ]
    listener.rows(
        "share", ("node", "gpu", "device", "resource", "promised", "total", "used", "unit", "pods"), table
    )
    if details:
        listener.rows(
            "use",
            ("node", "gpu", "resource", "pod", "container", "promised", "used", "unit"),
            [
                (one.node, one.gpu, one.resource, use.pod, use.container, use.promised, use.used, one.unit)
                for one in found
                for use in one.uses
            ],
        )
    sums: dict[str, list[int]] = {}
    for one in found:
        both = sums.setdefault(one.resource, [0, 0])
        both[0] += one.promised
        # Of a device whose units are not known those count that pods have.
        unknown = 0 if one.gpu == picture.UNKNOWN else one.used or 0
        both[1] += unknown if one.total is None else one.total
    words = ", ".join(f"{resource} {promised}/{total}" for resource, (promised, total) in sums.items())
    listener.total(words or "no node offers GPUs", {"resources": sums})


def _repaired(api: Api, finding: Mismatch, pods: Sequence[Object], listener: Listener) -> bool:
    """Write a pod's annotations; not those of another pod that has its name by now."""
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
        listener.note(f"{finding.pod} has changed since: it is left as it is, look once more.")
        return False
    return True


def _sentence(found: Sequence[Mismatch], fixed: int, *, repair: bool, compared: str) -> str:
    checked = f"{compared} compared with their kubelets"
    if not found:
        return f"nothing is wrong; {checked}"
    fixable = sum(bool(one.repair) for one in found)
    if fixable == 0:
        way = "none can be repaired by annotations"
    else:
        way = f"{fixed} repaired" if repair else f"--repair can fix {fixable}"
    return f"{several(len(found), 'finding')}; {way}; {checked}"


def _state(api: Api) -> tuple[list[Object], list[Object]]:
    return api.find("Node")[0], api.find("Pod")[0]


def _of(placed: Sequence[Member], there: Sequence[Object]) -> list[Object]:
    """Those of the nodes that are the members'."""
    mine = {one.node.name for one in placed if one.node}
    return [one for one in there if one["metadata"]["name"] in mine]


def _share(inventory: Inventory) -> Share:
    return inventory.cluster.share or Share()


def _real(session: Session, api: Api) -> tuple[Mapping[str, Real], Members]:
    """Allocations by node, from the kubelets of the session's hosts, and the hosts with their nodes. Reports hosts that did not
    answer."""

    def story(visit: Visit, emit: OnEvent) -> Outcome:
        visit.watch = replace(visit.watch, files=(*visit.watch.files, RECORD))
        return converge.probe_and_plan(visit, emit)

    members = session.for_each_host(story)
    found = outcomes(members)
    session.listener.failures([one for one in found if one.facts is None])
    for one in found:
        if broken := unfixed_note(one):  # such as a lost GPU, which may have no row
            session.listener.note(f"{one.host}: {broken}.")
    hoped = [replace(member, reason=None) for member in members]
    placed = nodes.locate(api, hoped, seconds=0, notify=session.listener.note)
    real = {one.node.name: said for one in placed if one.node and (said := _of_host(one, session.listener))}
    return real, placed


def _uncompared(placed: Sequence[Member], there: Sequence[Object]) -> list[str]:
    """Why some nodes are not compared with their kubelets; failures, which are reported elsewhere, left out."""
    answered = [one for one in placed if one.facts]
    seen = {one.node.name for one in answered if one.node}
    reasons = [str(one.reason) for one in answered if one.reason]
    bare = [member.host.name for member in answered if member.node and not _record(member)]
    if bare:
        reasons.append(f"{few(bare, NAMED)}: the kubelet has no {RECORD}: it never allocated a device")
    if others := sorted({one["metadata"]["name"] for one in there} - seen):
        reasons.append(
            f"{few(others, NAMED)}: no host of the inventory that was asked and answered is this node"
        )
    return reasons


def _record(member: Member) -> File | None:
    file = member.facts.files.get(RECORD) if member.facts else None
    return file if file is not None and file.exists else None


def _of_host(member: Member, listener: Listener) -> Real | None:
    file = _record(member)
    if file is None:
        return None
    try:
        if file.content is None:
            raise ValueError(file.error or "it cannot be read")
        entries, units = parse(file.content), healthy_ids(file.content)
    except ValueError as error:
        listener.problem(
            Problem(
                "", f"{RECORD}: {error}", subject=member.host.name, fix="What its pods use is not known."
            ),
            member.host.name,
        )
        return None
    indexes = {gpu.uuid: str(gpu.index) for gpu in member.gpus}
    return picture.of_host(entries, units, indexes)


def _pods(row: Row) -> str:
    return ", ".join(dict.fromkeys(use.pod for use in row.uses))


def _why(why: Mapping[str, int] | None) -> str:
    found = (why or {}).items()
    return "; ".join(f"{several(count, 'node')}: {words}" for words, count in found)
