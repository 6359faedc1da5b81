"""How far each host's chain holds, from the PCI bus to a finished CUDA pod: the hosts' links, then the cluster's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.contract.status import LAYOUT
from gpunode.engine import nodes, prove
from gpunode.engine.chain import first_broken, judge_host
from gpunode.engine.listener import Listener, progress
from gpunode.engine.member import Member, Members, outcomes
from gpunode.errors import ClusterError, Problem
from gpunode.links import plugin
from gpunode.links.capacity.link import judge_capacity, with_mig
from gpunode.links.kubelet import link as kubelet
from gpunode.links.node import Node
from gpunode.links.node.link import judge_missing, judge_node, read_gates
from gpunode.links.plugin import Row, daemonset, dra, mig, published
from gpunode.links.plugin.link import judge_image, judge_owned, judge_plugin
from gpunode.links.pod import isolation_test
from gpunode.links.pod.link import judge_isolation, judge_pod
from gpunode.links.pod.requests import target
from gpunode.model import Inventory, Layer, Verdict
from gpunode.wording import Advice, Command, lines

ABOVE: tuple[Layer, ...] = ("node", "plugin", "capacity", "pod")

Chain = tuple[Verdict, ...]


def chains(
    inventory: Inventory, members: Sequence[Member], listener: Listener, *, run: bool
) -> Mapping[str, Chain]:
    """Every link of every host; those above the kubelet only where the inventory names a plugin. `run`: with pods."""
    below = {outcome.host: tuple(judge_host(outcome)) for outcome in outcomes(members)}
    if inventory.cluster.plugin is None:
        return below
    reported = _reported(
        inventory, [member for member in members if _lost(below[member.host.name])], listener
    )
    below = {host: _explained(chain, reported.get(host, "")) for host, chain in below.items()}
    above = _above(
        inventory, [member for member in members if holds(below[member.host.name])], listener, run=run
    )
    unknown = _unknown(ABOVE)
    return {host: tuple(first_broken([*chain, *above.get(host, unknown)])) for host, chain in below.items()}


def holds(chain: Sequence[Verdict]) -> bool:
    return not any(link.status == "broken" for link in chain)


def _lost(chain: Sequence[Verdict]) -> bool:
    """Whether GPUs do not answer the driver."""
    return any(link.layer == "NVML" and link.status == "broken" for link in chain)


def _explained(chain: Chain, why: str) -> Chain:
    """The chain with what the plugin reports of GPUs that do not answer."""
    return tuple(link.because(lines((why, link.cause))) if why and _lost([link]) else link for link in chain)


def _unknown(layers: Sequence[Layer]) -> Chain:
    return tuple(Verdict.unknown(layer) for layer in layers)


def _reported(inventory: Inventory, members: Sequence[Member], listener: Listener) -> Mapping[str, str]:
    """Why GPUs do not answer, as the device plugin reports it, which has heard their Xid; only hosts of which it reports
    something. A cluster that cannot be asked has its own link."""
    words: dict[str, str] = {}
    if members:
        with suppress(ClusterError):
            api = nodes.connect(inventory)
            pods = _plugins(api, inventory.cluster.namespace)
            for member in _placed(api, members, listener):
                if member.node and (pod := pods.get(member.node.name)):
                    why = published.why_missing(published.read(api, member.node, pod))
                    words[member.host.name] = why.what if why else published.earlier(api, member.node, pod)
    return words


def _above(
    inventory: Inventory, members: Sequence[Member], listener: Listener, *, run: bool
) -> Mapping[str, Chain]:
    """The cluster's links of the hosts whose own links hold."""
    if not members:
        return {}
    try:
        api = nodes.connect(inventory)
        return _judged(api, inventory, members, listener, run=run)
    except ClusterError as error:
        text = "the Kubernetes API does not answer as it should"
        broken = Verdict.broken("node", text, error.message, error.hint)
        return {member.host.name: (broken, *_unknown(ABOVE[1:])) for member in members}


def _judged(
    api: Api, inventory: Inventory, members: Sequence[Member], listener: Listener, *, run: bool
) -> Mapping[str, Chain]:
    placed = _placed(api, members, listener)
    wish, owners = inventory.cluster, dra.owners(api)
    rows = {row.node: row for row in plugin.status(api, wish.namespace, wish.plugin_config, owners)}
    judged = {one.host.name: _links(api, inventory, one, rows, owners) for one in placed}
    if run:
        sound = [one for one in placed if holds(judged[one.host.name])]
        for host, link in _pods(api, inventory, sound, listener).items():
            judged[host] = (*judged[host], link)
    layers = ABOVE if run else ABOVE[:-1]
    return {host: (*chain, *_unknown(layers[len(chain) :])) for host, chain in judged.items()}


def _placed(api: Api, members: Sequence[Member], listener: Listener) -> Members:
    """The members with their nodes, or with the reason why they have none."""
    return nodes.locate(api, [member for member in members if member.facts], seconds=0, tell=listener.note)


def _links(
    api: Api, inventory: Inventory, member: Member, rows: Mapping[str, Row], owners: dra.Owners
) -> Chain:
    """Node, plugin and capacity."""
    if member.node is None:
        return (judge_missing(member.reason or Problem("no-node", "")),)
    if owned := owners.reason(member.node):
        return (_node(api, member, member.node), judge_owned(owned))
    config, namespace = inventory.cluster.plugin_config, inventory.cluster.namespace
    row, unfit = rows.get(member.node.name), mig.problem(config, member.gpus, member.labels)
    pod = row.pod if row else ""
    capacity = judge_capacity(api, member.node, member.gpus, config=config, namespace=namespace, pod=pod)
    if row and capacity.status == "ok":  # of what else the node has, some may be out
        capacity = capacity.because(lines((capacity.cause, row.missing)))
    by_mig = unfit and row and row.reason and row.reason.code == LAYOUT
    fix = unfit.fix if unfit and by_mig else Advice(Command("provision"))
    image = judge_image(member.outcome) if member.outcome else None
    return _node(api, member, member.node), image or judge_plugin(row, fix), capacity


def _node(api: Api, member: Member, node: Node) -> Verdict:
    """The node, and whether its kubelet goes by the gates that its host was to have; only then is it asked."""
    link = judge_node(node)
    if link.status == "broken" or member.outcome is None or not kubelet.wished(member.outcome):
        return link
    return kubelet.in_force(link, member.outcome, read_gates(api, node.name))


def _pods(
    api: Api, inventory: Inventory, members: Sequence[Member], listener: Listener
) -> Mapping[str, Verdict]:
    """The last link: what vectoradd shows on the nodes of these hosts."""
    config = inventory.cluster.plugin_config
    aims = [target(config, member.node.name, member.gpus, member.labels) for member in members if member.node]
    if not aims:
        return {}
    results = {result.node: result for result in prove.vectoradd(api, inventory, aims, progress(listener))}
    pods = _plugins(api, inventory.cluster.namespace)
    strangers = _strangers(api, inventory, members, listener)
    found = {}
    for one in members:
        if one.node is None:
            continue
        result, pod = results[one.node.name], pods.get(one.node.name)
        failed = not all(each.passed for each in result.results)
        status = published.read(api, one.node, pod) if pod and (failed or result.shared) else None
        why = published.why_missing(status) if status and failed else None
        unlimited = published.unlimited(status) if status and result.shared else ""
        link = judge_pod(result, why.what if why else "", unlimited)
        if link.status == "broken":
            link = with_mig(link, mig.problem(config, one.gpus, one.labels))
        if one.node.name in strangers:
            link = judge_isolation(link, strangers[one.node.name])
        found[one.host.name] = link
    return found


def _strangers(
    api: Api, inventory: Inventory, members: Sequence[Member], listener: Listener
) -> Mapping[str, str]:
    """What pods that ask for no GPU see on the nodes of hosts with isolation."""
    isolated = [member.node for member in members if member.node and member.host.isolation]
    if not isolated:
        return {}
    return isolation_test.seen(
        api,
        isolated,
        namespace=inventory.cluster.namespace,
        image=nodes.image_of(inventory),
        seconds=prove.PODS_SECONDS,
        tell=progress(listener),
    )


def _plugins(api: Api, namespace: str) -> Mapping[str, Object]:
    """The plugin's pods by node."""
    return daemonset.by_node(api.find("Pod", namespace, labels=daemonset.SELECTOR)[0])
