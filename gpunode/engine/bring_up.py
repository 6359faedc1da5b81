"""From hosts that are right to proven GPUs, in stages: find and label the nodes, deploy the plugin, wait for every GPU,
run vectoradd on each. A stage takes the members and returns them, with what it found out."""

from __future__ import annotations

import time
from dataclasses import replace

from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import OnProgress
from gpunode.engine import acts, nodes, prove
from gpunode.engine.listener import Listener, problem, progress
from gpunode.engine.member import Member, Members
from gpunode.errors import ClusterError, Problem
from gpunode.links import plugin
from gpunode.links.plugin import Scope, capacity, dra, expected, mig
from gpunode.links.plugin.overview import Row
from gpunode.links.pod.requests import target
from gpunode.model import Inventory
from gpunode.wording import Advice, Command

PLUGIN_SECONDS = 180.0  # for the plugin to run, and again for its GPUs to be offered


def bring_up(
    api: Api, inventory: Inventory, members: Members, listener: Listener, *, run: bool, holder: str = ""
) -> Members:
    """All stages for the hosts that are right; reports why the others take no part. `holder`: of the cluster's lease."""
    tell = progress(listener)
    members = nodes.locate(
        api, [_able(member) for member in members], seconds=nodes.REGISTER_SECONDS, tell=tell
    )
    changed = [
        member.node.name
        for member in members
        if member.node and member.outcome and acts.outdate(member.outcome.applied, member.facts)
    ]
    old = plugin.pods_on(api, inventory.cluster.namespace, changed)  # before labels bring new pods
    renew = {pod["metadata"]["uid"] for pod in old}
    members = nodes.apply_labels(api, nodes.exclude_owned(dra.owners(api), members))
    members = set_targets(inventory, members)
    if any(member.active for member in members):
        members = deploy_plugin(api, inventory, members, renew, tell)
        members = wait_for_capacity(api, inventory, members, tell)
    for one in members:
        if one.host_ok:
            problem(listener, one.host.name, one.wrong)
    if run:
        members = run_vectoradd(api, inventory, members, tell, holder)
    prove.show([member.result for member in members if member.result], listener)
    return members


def _able(member: Member) -> Member:
    """The member, out where the host itself is not right."""
    if member.reason is not None or member.outcome is None:
        return member
    if member.host_ok:
        return replace(member, node=None)  # what was known of it is older than the host's changes
    return member.excluded(Problem(member.outcome.status, f"{member.outcome.status}: {member.outcome.why}"))


def set_targets(inventory: Inventory, members: Members) -> Members:
    """The units that each node must offer by the plugin's configuration, and the GPUs that its pods must see."""
    config = inventory.cluster.plugin_config

    def stage(member: Member) -> Member:
        if not member.active or member.node is None or member.facts is None:
            return member
        units = expected.units(config, member.gpus, member.labels)
        mig_problem = mig.problem(config, member.gpus, member.labels)
        partly = None
        if mig_problem and mig_problem.subject:  # its other GPUs are waited for and tested
            partly = replace(mig_problem, subject=member.node.name)
        return replace(
            member,
            target=target(config, member.node.name, member.gpus, member.labels),
            # A configuration may offer what cannot be known from here, e.g. MIG devices.
            expected=units or (None if config else len(member.gpus)),
            partly=partly,
        )

    return tuple(stage(member) for member in members)


def deploy_plugin(
    api: Api, inventory: Inventory, members: Members, renew: set[str], tell: OnProgress
) -> Members:
    """The plugin on every node; a member is out where it does not run, or can find no GPU."""
    going = [member for member in members if member.active and member.node]
    scope = Scope(
        only=[one.node.name for one in going if one.node],
        renew=renew,
        hopeless=[one.node.name for one in going if one.node and one.no_driver],
    )
    spec = nodes.spec_of(inventory)
    rows = {row.node: row for row in plugin.deploy(api, spec, scope, seconds=PLUGIN_SECONDS, tell=tell).rows}
    # A kubelet that has just started is not Ready for a moment, after its API server still had it as Ready.
    if flapped := [
        one for one in going if one.node and one.node.ready and _not_ready(rows.get(one.node.name))
    ]:
        nodes.locate(
            api, [replace(one, node=None) for one in flapped], seconds=nodes.REGISTER_SECONDS, tell=tell
        )
        rows = {
            row.node: row for row in plugin.deploy(api, spec, scope, seconds=PLUGIN_SECONDS, tell=tell).rows
        }

    def stage(member: Member) -> Member:
        if not member.active or member.node is None:
            return member
        row = rows.get(member.node.name)
        if row and row.reason:
            return member.excluded(replace(row.reason, subject=member.node.name))
        if member.no_driver:
            return member.excluded(
                Problem(
                    "no-driver",
                    member.no_driver,
                    subject=member.host.name,
                    fix=Advice("`", Command("verify"), "` says why."),
                )
            )
        units = expected.units(spec.config, member.gpus, member.labels)
        return member.excluded(member.partly) if units is None else member

    return tuple(stage(member) for member in members)


def _not_ready(row: Row | None) -> bool:
    return row is not None and row.reason is not None and row.reason.code == capacity.NOT_READY


def wait_for_capacity(api: Api, inventory: Inventory, members: Members, tell: OnProgress) -> Members:
    """Every GPU offered; a member is out where one is not in time."""
    end = time.monotonic() + PLUGIN_SECONDS
    return tuple(_offered(api, inventory.cluster.namespace, member, end, tell) for member in members)


def run_vectoradd(api: Api, inventory: Inventory, members: Members, tell: OnProgress, holder: str) -> Members:
    """vectoradd on every free GPU of the members that are left."""
    aims = [member.target for member in members if member.active and member.target]
    results = prove.vectoradd(api, inventory, aims, tell, holder=holder) if aims else ()
    by_node = {result.node: result for result in results}
    return tuple(
        replace(member, result=by_node.get(member.node.name)) if member.active and member.node else member
        for member in members
    )


def _offered(api: Api, namespace: str, member: Member, end: float, tell: OnProgress) -> Member:
    """The member; out where its node does not offer what is expected of it by the `end`."""
    if not member.active or member.node is None:
        return member
    left = max(0.0, end - time.monotonic())
    try:
        capacity.wait_allocatable(
            api,
            member.node.name,
            member.expected,
            namespace=namespace,
            seconds=left,
            tell=tell,
            waited=PLUGIN_SECONDS - left,
        )
    except ClusterError as error:
        return member.excluded(replace(error.problem, code="not-offered"))
    return member
