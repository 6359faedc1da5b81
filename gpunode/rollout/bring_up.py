"""From hosts that are right to proven GPUs, in stages: find and label the nodes, deploy the plugin, wait for every GPU,
run vectoradd on each. A stage takes the members and returns them, with what it found out."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from gpunode.cluster import expected, mig, offer, plugin
from gpunode.cluster.api import Api
from gpunode.cluster.offer import Expected
from gpunode.cluster.reason import Reason, of
from gpunode.cluster.watch import Tell
from gpunode.errors import ClusterError
from gpunode.model import Host, Inventory, Outcome
from gpunode.rollout import nodes, prove
from gpunode.rollout.listener import Listener, tells
from gpunode.rollout.member import Member

PLUGIN_SECONDS = 180.0  # for the plugin to run, and again for its GPUs to be offered

Members = tuple[Member, ...]


def bring_up(
    api: Api,
    inventory: Inventory,
    hosts: Sequence[Host],
    outcomes: Sequence[Outcome],
    listener: Listener,
    *,
    run: bool,
) -> Members:
    """All stages, for the hosts that are right; tells which are verified, and of the others why not."""
    tell = tells(listener)
    by_host = {outcome.host: outcome for outcome in outcomes}
    members = tuple(Member(host, by_host[host.name]) for host in hosts)
    members = found(api, members, tell)
    changed = [one.node.name for one in members if one.node and one.driver_changed]
    renew = plugin.uids(api, inventory.cluster.namespace, changed)  # before labels bring new pods
    members = labelled(api, members)
    members = aimed(inventory, members)
    if any(one.going for one in members):
        members = deployed(api, inventory, members, renew, tell)
        members = offered(api, inventory, members, tell)
    for one in members:
        if one.good and one.wrong:
            listener.problem(ClusterError(one.wrong.words, hint=one.wrong.fix), one.host.name)
    if run:
        members = proven(api, inventory, members, tell)
    prove.show([one.result for one in members if one.result], listener)
    verdicts = [(one.host.name, one.node.name if one.node else "", *prove.verdict(one)) for one in members]
    listener.rows("verified", ("host", "node", "result", "proof"), verdicts)
    return members


def succeeded(members: Members) -> bool:
    """Whether all hosts that were right are proven as far as asked; hosts that were not right do not count."""
    good = [one for one in members if one.good]
    return not any(one.wrong or (one.result and not one.result.passed) for one in good)


def found(api: Api, members: Members, tell: Tell) -> Members:
    """The node of each good host; a kubelet that was just started has time to register it."""
    good = [one for one in members if one.good]
    facts = {one.host.name: one.outcome.facts for one in good if one.outcome.facts}
    there, missing = nodes.find(
        api, [one.host for one in good], facts, seconds=nodes.REGISTER_SECONDS, tell=tell
    )

    def stage(one: Member) -> Member:
        if error := missing.get(one.host.name):
            return one.out(nodes.missing(error))
        return replace(one, node=there.get(one.host.name))

    return tuple(stage(one) for one in members)


def labelled(api: Api, members: Members) -> Members:
    """gpunode's labels on the nodes; a member is out where another's label is in the way."""
    conflicts = nodes.label(api, [(one.host, one.node) for one in members if one.going and one.node])

    def stage(one: Member) -> Member:
        if not one.going or one.node is None:
            return one
        if error := conflicts.get(one.host.name):
            return one.out(of("label-conflict", error))
        return replace(one, labels={**one.node.labels, **nodes.wished(one.host)})

    return tuple(stage(one) for one in members)


def aimed(inventory: Inventory, members: Members) -> Members:
    """What each node is to offer by the plugin's configuration, and which GPUs its pods are to see."""
    config = inventory.cluster.plugin_config

    def stage(one: Member) -> Member:
        if not one.going or one.node is None or one.outcome.facts is None:
            return one
        units = expected.units(config, one.gpus, one.labels)
        trouble = mig.trouble(config, one.gpus, one.labels)
        partly = None
        if trouble and trouble.missing:  # the rest of its GPUs is waited for and tried, if there is a rest
            partly = Reason("mig", f"{one.node.name}: {trouble.what}", fix=trouble.fix)
        return replace(
            one,
            aim=expected.target(config, one.node.name, one.gpus, one.labels),
            # A configuration may make of them what cannot be told from here, e.g. MIG devices.
            expected=units or (None if config else len(one.gpus)),
            partly=partly,
        )

    return tuple(stage(one) for one in members)


def deployed(api: Api, inventory: Inventory, members: Members, renew: set[str], tell: Tell) -> Members:
    """The plugin on every node; a member is out where it does not run, or can find no GPU."""
    wish = inventory.cluster
    rollout = plugin.deploy(
        api,
        wish.namespace,
        nodes.image_of(inventory),
        wish.plugin_config,
        wish.plugin_voice,
        seconds=PLUGIN_SECONDS,
        tell=tell,
        only=[one.node.name for one in members if one.going and one.node],
        renew=renew,
        hopeless=[one.node.name for one in members if one.going and one.node and one.no_driver],
    )
    rows = {row.node: row for row in rollout.rows}

    def stage(one: Member) -> Member:
        if not one.going or one.node is None:
            return one
        row = rows.get(one.node.name)
        if row and row.trouble:
            return one.out(Reason(row.code, f"{one.node.name}: {row.trouble}"))
        if one.no_driver:
            return one.out(
                Reason("no-driver", f"{one.host.name}: {one.no_driver}", fix="`gpunode verify` says why.")
            )
        units = expected.units(wish.plugin_config, one.gpus, one.labels)
        return one.out(one.partly) if units is None else one

    return tuple(stage(one) for one in members)


def offered(api: Api, inventory: Inventory, members: Members, tell: Tell) -> Members:
    """Every GPU offered; a member is out where one is not in time."""
    counts = {one.node.name: one.expected for one in members if one.going and one.node and one.outcome.facts}
    late = waited(api, inventory.cluster.namespace, counts, tell)
    return tuple(one.out(late.get(one.node.name)) if one.going and one.node else one for one in members)


def proven(api: Api, inventory: Inventory, members: Members, tell: Tell) -> Members:
    """vectoradd on every free GPU of the members that are left."""
    aims = [one.aim for one in members if one.going and one.aim]
    results = prove.vectoradd(api, inventory, aims, tell) if aims else ()
    by_node = {result.node: result for result in results}
    return tuple(
        replace(one, result=by_node.get(one.node.name)) if one.going and one.node else one for one in members
    )


def waited(api: Api, namespace: str, counts: Mapping[str, Expected], tell: Tell) -> Mapping[str, Reason]:
    """Wait, for all nodes together, until each offers what is expected of it: node → why it does not."""
    reasons = {}
    end = time.monotonic() + PLUGIN_SECONDS
    for node, count in counts.items():
        left = max(0.0, end - time.monotonic())
        before = PLUGIN_SECONDS - left
        try:
            offer.wait_allocatable(
                api, node, count, namespace=namespace, seconds=left, tell=tell, waited=before
            )
        except ClusterError as error:
            reasons[node] = of("not-offered", error)
    return reasons
