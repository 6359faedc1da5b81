"""Hosts of the control plane: disturbed only when named, one at a time, while API server and etcd are healthy."""

from collections.abc import Collection
from dataclasses import replace

from gpunode.cluster import control_plane
from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import OnProgress
from gpunode.engine.member import Member, Members
from gpunode.engine.reporter import Reporter, progress, report_reason
from gpunode.errors import Problem
from gpunode.links.kubelet import k0s, microk8s, microshift, places
from gpunode.links.kubelet.rancher import PRODUCTS
from gpunode.model import Inventory
from gpunode.planning import services

UNHEALTHY = "control-plane"  # code: no further batch begins
BEFORE = 10.0  # seconds that it may take to be healthy before a host is disturbed, and afterwards
AFTER = 300.0
SERVERS = (*(product.units[0] for product in PRODUCTS.values()), k0s.UNITS[1], microshift.UNIT)


def disturbed_hosts(members: Members) -> frozenset[str]:
    return frozenset(
        member.host.name
        for member in members
        if member.has_changes and member.disturbs.what and is_control_plane(member)
    )


def is_control_plane(member: Member) -> bool:
    """True for a host of the control plane: by its node's labels, its kubelet's manifests, or as a server of k3s, RKE2, k0s,
    MicroK8s or MicroShift."""
    files = member.facts.files.values() if member.facts else ()
    manifests = any(file.exists and file.path.startswith(places.MANIFESTS) for file in files)
    brought = member.facts is not None and any(services.is_loaded(member.facts, unit) for unit in SERVERS)
    brought = brought or (member.facts is not None and microk8s.is_server(member.facts))
    return manifests or brought or bool(member.node and control_plane.has_label(member.node.labels))


def refuse_unnamed(inventory: Inventory, members: Members) -> Members:
    """The members; a host of the control plane that is not named as one is refused if its plan disturbs it."""
    names = disturbed_hosts(members)
    return tuple(_refuse(inventory, member) if member.host.name in names else member for member in members)


def healthy_before(api: Api | None, members: Members, hosts: Collection[str], reporter: Reporter) -> Members:
    """The members; `hosts` excluded if the rest of the control plane is unhealthy. Their own problems do not count: the plan may fix
    them."""
    own = [member.node.name for member in members if member.node and member.host.name in hosts]
    return _check_health(api, members, hosts, BEFORE, own, reporter)


def healthy_after(api: Api | None, members: Members, hosts: Collection[str], reporter: Reporter) -> Members:
    """The members; `hosts` excluded if the control plane does not become healthy."""
    return _check_health(api, members, hosts, AFTER, (), reporter)


def why_unhealthy(api: Api | None, member: Member, notify: OnProgress) -> Problem | None:
    """Why the host may not be disturbed now: it is of the control plane, and the rest of that is unhealthy."""
    if not is_control_plane(member):
        return None
    return _problem(api, BEFORE, notify, [member.node.name] if member.node else ())


def _problem(
    api: Api | None, seconds: float, notify: OnProgress, but: Collection[str] = ()
) -> Problem | None:
    why = control_plane.wait(api, seconds, notify, but) if api else ""
    fix = "See `kubectl get --raw '/readyz?verbose'` and the pods of kube-system; then run again."
    return Problem(UNHEALTHY, f"the control plane is not healthy: {why}", fix=fix) if why else None


def _check_health(
    api: Api | None,
    members: Members,
    hosts: Collection[str],
    seconds: float,
    but: Collection[str],
    reporter: Reporter,
) -> Members:
    reason = _problem(api, seconds, progress(reporter), but) if hosts else None
    if reason is None:
        return members
    for host in hosts:
        report_reason(reporter, host, replace(reason, subject=host))
    return tuple(
        member.exclude(member.reason or replace(reason, subject=member.host.name))
        if member.host.name in hosts
        else member
        for member in members
    )


def _refuse(inventory: Inventory, member: Member) -> Member:
    if member.outcome is None or (member.host.control_plane and inventory.cluster.plugin):
        return member
    hint = (
        "Write `control_plane: true` beside the host's name in the inventory: such hosts go one at a time, while API "
        "server and etcd are healthy. `--exclude` leaves it out."
        if not member.host.control_plane
        else "Without `cluster.plugin` in the inventory gpunode asks no API server, and cannot know that it is healthy."
    )
    error = f"it belongs to the control plane, and the plan disturbs it: {member.disturbs.what}"
    outcome = replace(
        member.outcome, status="refused", plan=None, problem=Problem("", error, "node", fix=hint)
    )
    return replace(member, outcome=outcome)
