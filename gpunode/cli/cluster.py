"""The cluster's part of a command: the nodes that hosts are, and their labels; told through the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeAlias

from gpunode.errors import ClusterError
from gpunode.model import Event, Facts, Host, Inventory, Outcome, PluginImage

if TYPE_CHECKING:
    from gpunode.cli.session import Session
    from gpunode.cluster.api import Api
    from gpunode.cluster.nodes import Node
    from gpunode.report import Report

REGISTER_SECONDS = 90.0  # a kubelet that was just started registers its node
PLUGIN_SECONDS = 180.0
PODS_SECONDS = 180.0

WITHOUT_PLUGIN = (
    "The cluster is left out, since the inventory names no `cluster.plugin`: no device plugin is deployed, no node is labelled "
    "and no pod is run. For the whole job add `cluster: {plugin: {archive: plugin.tar}}`; docs/deviceplugin.md says how to "
    "build that file."
)

Troubles: TypeAlias = dict[str, ClusterError]  # host -> what keeps it from its part in the cluster


def connect(inventory: Inventory) -> Api:
    """The inventory's cluster, seen to answer. Raises ClusterError with the cause."""
    from gpunode.cluster.api import connect as api_of

    api = api_of(inventory.cluster)
    api.version()
    return api


def image_of(inventory: Inventory) -> PluginImage:
    """The plugin's image, or a refusal that says where to name it."""
    if inventory.cluster.plugin is None:
        raise ClusterError(
            f"{inventory.path} names no image of the device plugin",
            hint="Set cluster.plugin.image, or cluster.plugin.archive to a `docker save` file that gpunode loads "
            "onto the nodes; docs/deviceplugin.md says how to build it.",
        )
    return inventory.cluster.plugin


def tells(report: Report) -> Callable[[str], None]:
    """A listener for the cluster room's sentences that leaves out repetitions."""
    said: list[str] = [""]

    def tell(sentence: str) -> None:
        if sentence != said[0]:
            said[0] = sentence
            report.event(Event("stage", None, sentence))

    return tell


def wished(host: Host) -> dict[str, str]:
    """The labels gpunode keeps on the node of a host it provisioned."""
    from gpunode.cluster.nodes import GPU_LABEL, RUNTIME_LABEL

    runtime = {RUNTIME_LABEL: "class"} if host.runtime == "class" else {}
    return {GPU_LABEL: "true", **runtime, **host.labels}


def find(
    api: Api,
    hosts: Sequence[Host],
    facts: Mapping[str, Facts],
    *,
    seconds: float,
    tell: Callable[[str], None],
) -> tuple[dict[str, Node], Troubles]:
    """host → its node, waiting for those that are not registered or not Ready yet; and host → why there is none."""
    from gpunode.cluster import identity, nodes

    end = time.monotonic() + seconds
    while True:
        found: dict[str, Node] = {}
        missing: Troubles = {}
        everyone = nodes.every(api)
        for host in hosts:
            try:
                found[host.name] = identity.of(host, everyone, facts.get(host.name))
            except ClusterError as error:
                missing[host.name] = error
        twice = identity.shared(found)
        found, missing = (
            {name: node for name, node in found.items() if name not in twice},
            {**missing, **twice},
        )
        hoped = [name for name, error in missing.items() if not isinstance(error, identity.Mistaken)]
        late = [*hoped, *(name for name, node in found.items() if not node.ready)]
        if not late or time.monotonic() >= end:
            return found, missing
        tell(f"waiting for {', '.join(late[:5])} to be a Ready node")
        time.sleep(1)


def find_or_ask(api: Api, work: Session, tell: Callable[[str], None]) -> tuple[dict[str, Node], Troubles]:
    """host → its node, for commands that need nothing else of the hosts: only those of which neither name nor
    address is a node's are asked for their own name, as `provision` asks all."""
    from gpunode import converge
    from gpunode.cluster import identity

    found, missing = find(api, work.hosts, {}, seconds=0, tell=tell)
    strangers = [host for host in work.hosts if host.name in missing and not host.node]
    if not strangers:
        return found, missing
    outcomes = work.each(converge.look, strangers)
    facts = {outcome.host: outcome.facts for outcome in outcomes if outcome.facts}
    for outcome in outcomes:
        if outcome.facts is None:
            error = missing[outcome.host]
            missing[outcome.host] = ClusterError(
                f"{error.message}, and it could not be asked for its own name: {outcome.error}",
                hint=error.hint,
            )
    asked = [host for host in strangers if host.name in facts]
    named, still = find(api, asked, facts, seconds=0, tell=tell)
    still = {
        outcome.host: no_node(outcome, still[outcome.host]) for outcome in outcomes if outcome.host in still
    }
    found |= named
    twice = identity.shared(found)
    missing = {name: error for name, error in missing.items() if name not in named} | still | twice
    return {name: node for name, node in found.items() if name not in twice}, missing


def no_node(outcome: Outcome, error: ClusterError) -> ClusterError:
    """Why a host that was looked at is no node: a host that is refused need not become one."""
    if outcome.error is None:
        return error
    return ClusterError(
        f"{outcome.host}: {outcome.error}; it is no node of the cluster either", hint=outcome.hint
    )


def label(api: Api, hosts: Sequence[Host], found: Mapping[str, Node]) -> Troubles:
    """Keep gpunode's labels on the hosts' nodes; host → why it was refused."""
    from gpunode.cluster import nodes

    conflicts: Troubles = {}
    for host in hosts:
        if host.name in found:
            try:
                nodes.label(api, found[host.name], wished(host))
            except ClusterError as error:
                conflicts[host.name] = error
    return conflicts


def warn(
    api: Api, inventory: Inventory, hosts: Sequence[Host], found: Mapping[str, Node], report: Report
) -> None:
    """Tell of other device plugins, and of what the plugin's image and configuration would come to without a word."""
    from gpunode.cluster import images, rivals
    from gpunode.cluster.caution import cautions

    for rival, count in rivals.every(api).items():
        report.note(
            f"{rival}, on {count} node{'s' if count > 1 else ''}, offers NVIDIA GPUs too. Where two device plugins run on a "
            "node, the one that started last wins: remove that one first; running pods keep their GPUs."
        )
    nodes = [
        (host, node, {**node.labels, **wished(host)}) for host in hosts if (node := found.get(host.name))
    ]
    for caution in cautions(inventory.cluster.plugin_config, nodes):
        report.note(caution)
    if floating := images.floating(image_of(inventory)):
        report.note(floating)
